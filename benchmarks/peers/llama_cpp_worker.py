"""llama.cpp through llama-cpp-python's low-level calls: only ``llama_decode`` is timed, no sampling, no text."""

# mypy: ignore-errors
import ctypes
import time

import llama_cpp as lc
from serve import serve

state = {}


def load(path, threads, context, streams):
    began = time.perf_counter()
    lc.llama_log_set(QUIET, ctypes.c_void_p(0))
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    state["model"] = lc.llama_model_load_from_file(path.encode(), params)
    options = lc.llama_context_default_params()
    options.n_ctx = context * streams
    options.n_batch = options.n_ubatch = 512
    options.n_seq_max = streams
    options.n_threads = options.n_threads_batch = threads
    state["context"] = lc.llama_init_from_model(state["model"], options)
    if not state["context"]:
        raise RuntimeError("llama.cpp did not make a context")
    state["batch"] = lc.llama_batch_init(512, 0, 1)
    return time.perf_counter() - began


QUIET = lc.llama_log_callback(lambda _level, _text, _data: None)


def run(rows):
    """One llama_decode over rows of (token, position, sequence, wants logits)."""
    batch = state["batch"]
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i] = token, position
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.logits[i] = wanted
    began = time.perf_counter()
    code = lc.llama_decode(state["context"], batch)
    lc.llama_synchronize(state["context"])
    elapsed = time.perf_counter() - began
    if code:
        raise RuntimeError(f"llama_decode gave {code}")
    return elapsed


def clear():
    lc.llama_memory_clear(lc.llama_get_memory(state["context"]), True)


def feed(tokens, sequence=0):
    total = 0.0
    for first in range(0, len(tokens), 512):
        part = tokens[first : first + 512]
        last = first + len(part) == len(tokens)
        total += run([(t, first + i, sequence, last and i == len(part) - 1) for i, t in enumerate(part)])
    return total


def prefill(tokens):
    clear()
    return feed(tokens)


def decode(prompt, steps):
    clear()
    feed(prompt)
    return [run([(prompt[i % len(prompt)], len(prompt) + i, 0, True)]) for i in range(steps)]


def batch(streams, prompt, steps):
    clear()
    for stream in range(streams):
        feed(prompt, stream)
    return [
        run([(prompt[(i + s) % len(prompt)], len(prompt) + i, s, True) for s in range(streams)]) for i in range(steps)
    ]


serve({"load": load, "prefill": prefill, "decode": decode, "batch": batch})
