"""vLLM on this processor, in one process, with the model dequantised: it reads no GGUF file here."""

# mypy: ignore-errors
import os
import tempfile
import time

from gguf_to_hf import convert, own_dtype
from serve import serve
from vllm import LLM, SamplingParams

state = {}


def load(path, threads, context, streams, dtype=None, compiled=True):
    """``dtype`` defaults to the one with native multiplication on this processor: bfloat16 or float32."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="4",
        VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}",
        VLLM_NO_USAGE_STATS="1",
    )
    state["folder"] = tempfile.TemporaryDirectory()
    convert(path, state["folder"].name)
    began = time.perf_counter()
    state["llm"] = LLM(
        state["folder"].name,
        dtype=dtype or own_dtype(),
        enforce_eager=not compiled,
        skip_tokenizer_init=True,
        max_model_len=context,
        max_num_seqs=streams,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    return time.perf_counter() - began


def generate(prompts, count):
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    began = time.perf_counter()
    outputs = state["llm"].generate(given, params, use_tqdm=False)
    elapsed = time.perf_counter() - began
    made = sum(len(output.outputs[0].token_ids) for output in outputs)
    if made != count * len(prompts):
        raise RuntimeError(f"vLLM generated {made} tokens of {count * len(prompts)}")
    return elapsed


def prefill(tokens):
    return generate([tokens], 1)


def decode(prompt, steps):
    """Mean of the steps after the first: the time of all tokens without that of one."""
    first = generate([prompt], 1)
    return [(generate([prompt], steps + 1) - first) / steps] * steps


def long(prompt, steps):
    first = generate([prompt], 1)
    return {"prompt": first, "steps": [(generate([prompt], steps + 1) - first) / steps] * steps}


def batch(streams, prompt, steps):
    """As ``decode``, for ``streams`` prompts."""
    prompts = [[prompt[s % 7], *prompt[s % 7 :]] for s in range(streams)]
    first = generate(prompts, 1)
    return [(generate(prompts, steps + 1) - first) / steps] * steps


serve({"load": load, "generate": generate, "prefill": prefill, "decode": decode, "long": long, "batch": batch})
