"""vLLM on this processor, in one process, with the model dequantised: it reads no GGUF file here."""

# mypy: ignore-errors
import os
import tempfile
import time
from itertools import count as counter
from itertools import pairwise

from gguf_to_hf import convert, own_dtype
from serve import serve
from vllm import LLM, SamplingParams

state = {}
numbers = counter()


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
    """Seconds until the last token of the last prompt."""
    return watch(prompts, count)[-1][0]


def watch(prompts, count):
    """Of each step with tokens: seconds since the start, and how many sequences got one."""
    engine = state["llm"].llm_engine
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    for prompt in prompts:
        engine.add_request(f"{next(numbers)}", {"prompt_token_ids": prompt}, params)
    steps = []
    made = {}
    while engine.has_unfinished_requests():
        outputs = engine.step()
        made |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        if outputs:
            steps.append((time.perf_counter() - began, len(outputs)))
    if sum(made.values()) != count * len(prompts):
        raise RuntimeError(f"vLLM generated {sum(made.values())} tokens of {count * len(prompts)}")
    return steps


def between(steps, streams=1):
    """Seconds of the steps that gave every stream a token."""
    return [later - earlier for (earlier, _), (later, count) in pairwise(steps) if count == streams]


def prefill(tokens):
    return generate([tokens], 1)


def decode(prompt, steps):
    return between(watch([prompt], steps + 1))


def long(prompt, steps):
    found = watch([prompt], steps + 1)
    return {"prompt": found[0][0], "steps": between(found)}


def batch(streams, prompt, steps):
    return between(watch([[prompt[s % 7], *prompt[s % 7 :]] for s in range(streams)], steps + streams), streams)


serve({"load": load, "generate": generate, "prefill": prefill, "decode": decode, "long": long, "batch": batch})
