"""Flags of vLLM, llama.cpp and Ollama that Twofold does not have, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_NO_GPU: Final = "Twofold has no GPU support: it computes on the processor (--threads, --isa)."
_COPIES: Final = "Twofold has no GPU support. A model uses all cores (--threads); serve --replicas N runs copies of it."
_MEMORY: Final = "Twofold has no GPU support. --kv-cache-memory-bytes and, of serve, --memory-budget limit its memory."
_FILE: Final = (
    "The model file decides, and its name chooses it: hf.co/USER/MODEL:Q4_K_M. --kv-cache-dtype is for the KV cache."
)
_ALWAYS: Final = "Leave it out: Twofold always does that."
_TEMPLATE: Final = "Leave it out: the model's chat template says how it writes tool calls and reasoning."
_DRAFT: Final = """Use --speculative-config '{"model": "qwen2.5-coder-0.5b"}'; without it, drafts come from the text."""

_HINTS: Final[Mapping[str, str]] = {
    "--device -dev --main-gpu -mg --num-gpu --enforce-eager --cpu-offload-gb --gpu-layers-draft -ngld": _NO_GPU,
    "--n-gpu-layers --gpu-layers -ngl --num-gpu-layers": _NO_GPU,
    "--tensor-parallel-size -tp --tensor-split -ts --split-mode -sm --pipeline-parallel-size -pp": _COPIES,
    "--data-parallel-size -dp": _COPIES,
    "--gpu-memory-utilization": _MEMORY,
    "--quantization --dtype --load-format": _FILE,
    "--cache-type-k -ctk --cache-type-v -ctv": "Use --kv-cache-dtype q8 or k8v4, for keys and values.",
    "--flash-attn -fa --cont-batching -cb --jinja --enable-chunked-prefill --kv-unified": _ALWAYS,
    "--enable-auto-tool-choice --tool-call-parser --reasoning-parser --reasoning-format --enable-reasoning": _TEMPLATE,
    "--trust-remote-code": "Leave it out: Twofold runs no code of models.",
    "--batch-size --ubatch-size -ub": "Use --max-num-batched-tokens, the most tokens of a step.",
    "--threads-batch -tb": "Use --threads: prompts and completions have the same.",
    "--num-ctx --n-ctx --context-length --max-seq-len": "Use --max-model-len, or -c.",
    "--hf-repo -hf -hfr --hf-file -hff": "Name the model as hf.co/USER/MODEL[:QUANT].",
    "--alias -a": "Use --served-model-name.",
    "--keepalive --keep-alive": "Use --idle-unload of serve.",
    "--format": "Use --json-schema.",
    "--grammar-file": "Use --grammar.",
    "--download-dir --cache-dir": "Set the variable TWOFOLD_CACHE.",
    "--model-draft -md --speculative-model --num-speculative-tokens --draft-max": _DRAFT,
    "--lora --enable-lora --lora-modules": "Twofold does not support LoRA.",
    "--mmproj --image --limit-mm-per-prompt": "Twofold does not support images.",
    "--embedding --embeddings --task --runner": "Leave it out: /v1/embeddings is always there.",
    "--disable-log-requests --no-enable-log-requests": "Use --access-log off.",
    "--no-webui": "Use --no-web.",
}
FOREIGN_FLAGS: Final[Mapping[str, str]] = {name: hint for names, hint in _HINTS.items() for name in names.split()}
"""Hints by the name of a flag."""


RUNNING: Final = ("run", "chat", "serve", "batch", "node", "bench")
"""Commands that run models. Those of the cost model have some of these flags."""


def foreign_flag(unknown: str | None, arguments: Iterable[str]) -> tuple[str, str] | None:
    """The name and the hint of the unknown option, or of the first such argument with one dash: -ngl is read as -n."""
    short = (each for each in arguments if not each.startswith("--"))
    name = next((each for each in (unknown, *short) if each in FOREIGN_FLAGS), None)
    return None if name is None else (name, FOREIGN_FLAGS[name])
