"""Outputs of the default model to the bit, written down once: ``python -m tests.engine.golden`` writes them anew.

They may change only with the numerics contract (``docs/kernels.md``), and then a new file is part of that change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from twofold import BeamSearchParams, SamplingParams, StructuredOutputsParams
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput

FILES: Final = {
    kv: Path(__file__).with_name(name) for kv, name in (("bf16", "golden_bf16.json"), ("f16", "golden.json"))
}
"""By KV cache type."""
SHORT: Final = "The capital of France is"
LONG: Final = "A ship sailed past the lighthouse at dawn, and the keeper wrote its name into his book. " * 40
CODE: Final = "def fibonacci(n: int) -> int:\n"
TOKENS: Final = 24

CASES: Final[Mapping[str, tuple[str, SamplingParams]]] = {
    "greedy": (SHORT, SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=3)),
    "greedy code": (CODE, SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=3)),
    "long prompt": (LONG, SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=3)),
    "temperature": (SHORT, SamplingParams(temperature=0.8, seed=1, max_tokens=TOKENS, logprobs=3)),
    "filters": (
        CODE,
        SamplingParams(temperature=1, top_p=0.9, top_k=40, min_p=0.02, seed=2, max_tokens=TOKENS, logprobs=1),
    ),
    "penalties": (
        LONG,
        SamplingParams(
            temperature=0.7,
            seed=3,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=0.3,
            max_tokens=TOKENS,
            logprobs=1,
        ),
    ),
    "two completions": (SHORT, SamplingParams(n=2, temperature=1, seed=4, max_tokens=TOKENS, logprobs=1)),
    "regex": (
        "A date as YYYY-MM-DD: ",
        SamplingParams(
            temperature=0.5,
            seed=5,
            max_tokens=TOKENS,
            logprobs=1,
            structured_outputs=StructuredOutputsParams(regex=r"\d{4}-\d\d-\d\d"),
        ),
    ),
}


def outputs(llm: LLM) -> dict[str, Any]:
    """What every case gives now, as JSON holds it. Floats survive JSON to the bit."""
    prompts, params = zip(*CASES.values(), strict=True)
    found: dict[str, Any] = dict(zip(CASES, map(_completions, llm.generate(list(prompts), list(params))), strict=True))
    beams = llm.beam_search([SHORT], BeamSearchParams(beam_width=3, max_tokens=8))[0]
    found["beams"] = [[list(each.token_ids), each.cumulative_logprob] for each in beams.outputs]
    found["embedding"] = llm.embed([SHORT])[0].embedding
    found["score"] = llm.score([LONG])[0].cumulative_logprob
    return found


def _completions(output: RequestOutput) -> Sequence[Any]:
    return [
        {
            "tokens": list(each.token_ids),
            "logprobs": [
                {str(token): value.logprob for token, value in place.items()} for place in each.logprobs or ()
            ],
        }
        for each in output.outputs
    ]


def main() -> None:
    for kv, file in FILES.items():
        with LLM(model="smollm2-135m", kv_cache_dtype=kv) as llm:
            file.write_text(json.dumps(outputs(llm)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
