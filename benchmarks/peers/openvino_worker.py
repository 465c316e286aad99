"""OpenVINO GenAI on the same GGUF file, if it supports that."""

# mypy: ignore-errors
import time

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from serve import serve

state = {}


def load(path, threads, context, streams):
    began = time.perf_counter()
    state["pipe"] = ov_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
    return time.perf_counter() - began


def generate(tokens, count):
    config = ov_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
    config.apply_chat_template = False
    ids = ov.Tensor(np.array([tokens], np.int64))
    inputs = ov_genai.TokenizedInputs(ids, ov.Tensor(np.ones((1, len(tokens)), np.int64)))
    began = time.perf_counter()
    result = state["pipe"].generate(inputs, config)
    return time.perf_counter() - began, result


def prefill(tokens):
    return generate(tokens, 1)[0]


def decode(prompt, steps):
    _, result = generate(prompt, steps + 1)
    return [result.perf_metrics.get_tpot().mean / 1e3] * steps


def long(prompt, steps):
    _, result = generate(prompt, steps + 1)
    metrics = result.perf_metrics
    return {"prompt": metrics.get_ttft().mean / 1e3, "steps": [metrics.get_tpot().mean / 1e3] * steps}


def batch(streams, prompt, steps):
    """Not measured: the pipeline accepts one stream of token ids at a time."""
    return


serve({"load": load, "prefill": prefill, "decode": decode, "long": long, "batch": batch})
