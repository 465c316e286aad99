"""llama.cpp through the low-level calls of llama-cpp-python. Times are of ``llama_decode`` only.

Only the time of ``generate`` includes filling batches and greedy sampling in numpy.
"""

# mypy: ignore-errors
import ctypes
import tempfile
import time
from pathlib import Path

import llama_cpp as lc
import numpy as np
from serve import serve

state = {}
MAX_ROWS = 512


def load(path, threads, context, streams, q4_0=False, kv_types=None):
    """``q4_0`` requantises the model to the format for which llama.cpp has its fastest kernels. ``kv_types`` name the
    types of keys and values; both are kept in flash attention's layout, which quantised values need."""
    began = time.perf_counter()
    lc.llama_log_set(QUIET, ctypes.c_void_p(0))
    lc.llama_backend_init()
    if q4_0:
        path = as_q4_0(path)
    params = lc.llama_model_default_params()
    state["model"] = lc.llama_model_load_from_file(path.encode(), params)
    options = lc.llama_context_default_params()
    options.n_ctx = context * streams
    options.n_batch = options.n_ubatch = MAX_ROWS
    options.n_seq_max = streams
    options.n_threads = options.n_threads_batch = threads
    if kv_types:
        options.type_k, options.type_v = (getattr(lc, f"GGML_TYPE_{name.upper()}") for name in kv_types)
        options.flash_attn_type = 1
    state["context"] = lc.llama_init_from_model(state["model"], options)
    if not state["context"]:
        raise RuntimeError("llama.cpp failed to create a context")
    state["batch"] = lc.llama_batch_init(MAX_ROWS, 0, 1)
    return time.perf_counter() - began


def as_q4_0(path):
    state["folder"] = tempfile.TemporaryDirectory()
    target = str(Path(state["folder"].name) / "q4_0.gguf")
    params = lc.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = lc.LLAMA_FTYPE_MOSTLY_Q4_0, True, 1
    if lc.llama_model_quantize(path.encode(), target.encode(), ctypes.byref(params)):
        raise RuntimeError("llama.cpp failed to quantise the model")
    return target


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
        raise RuntimeError(f"llama_decode returned {code}")
    return elapsed


def clear():
    state["prompt"] = None
    lc.llama_memory_clear(lc.llama_get_memory(state["context"]), True)


def feed(tokens, sequence=0):
    total = 0.0
    for first in range(0, len(tokens), MAX_ROWS):
        part = tokens[first : first + MAX_ROWS]
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


def long(prompt, steps):
    clear()
    seconds = feed(prompt)
    return {"prompt": seconds, "steps": [run([(prompt[i], len(prompt) + i, 0, True)]) for i in range(steps)]}


def logits(tokens, target):
    """Writes the logits after each token to the .npy file ``target``."""
    clear()
    seconds = run([(token, i, 0, True) for i, token in enumerate(tokens)])
    vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(state["model"]))
    rows = [lc.llama_get_logits_ith(state["context"], row) for row in range(len(tokens))]
    np.save(target, np.stack([np.ctypeslib.as_array(row, (vocabulary,)) for row in rows]))
    return seconds


def batch(streams, prompt, steps):
    clear()
    for stream in range(streams):
        feed(prompt, stream)
    return [
        run([(prompt[(i + s) % len(prompt)], len(prompt) + i, s, True) for s in range(streams)]) for i in range(steps)
    ]


def generate(prompts, count):
    """Seconds to compute all prompts and then one row per sequence and step, up to ``count`` tokens each."""
    clear()
    began = time.perf_counter()
    rows = [
        (token, i, sequence, i == len(prompt) - 1)
        for sequence, prompt in enumerate(prompts)
        for i, token in enumerate(prompt)
    ]
    tokens = []
    for first in range(0, len(rows), MAX_ROWS):
        part = rows[first : first + MAX_ROWS]
        run(part)
        tokens += [sample(row) for row, (_, _, _, wanted) in enumerate(part) if wanted]
    for step in range(count - 1):
        run([(token, len(prompts[s]) + step, s, True) for s, token in enumerate(tokens)])
        tokens = [sample(row) for row in range(len(tokens))]
    return time.perf_counter() - began


def lookup(prompt, count, stop, size, most):
    """Greedy completion of at most ``count`` tokens, with drafts of ``most`` tokens that followed the latest earlier
    occurrence of the last ``size`` tokens (``most`` 0: plain). Seconds of ``llama_decode`` only, so looking is free."""
    memory = lc.llama_get_memory(state["context"])
    if state.get("prompt") != prompt:
        clear()
        feed(prompt)
        state["prompt"] = prompt
    lc.llama_memory_seq_rm(memory, 0, len(prompt) - 1, -1)
    run([(prompt[-1], len(prompt) - 1, 0, True)])
    known, seconds, steps = [*prompt, sample(-1)], 0.0, 0
    places, indexed = {}, 0
    while len(known) - len(prompt) < count and known[-1] not in stop:
        for end in range(max(indexed, size), len(known)):
            places[tuple(known[end - size : end])] = end
        indexed = len(known)
        found = places.get(tuple(known[-size:])) if most else None
        room = min(most, count - (len(known) - len(prompt)) - 1)
        drafts = known[found : found + room] if found else []
        position = len(known) - 1
        seconds += run([(token, position + i, 0, True) for i, token in enumerate([known[-1], *drafts])])
        steps += 1
        for row in range(len(drafts) + 1):
            known.append(sample(row))
            if row == len(drafts) or drafts[row] != known[-1] or known[-1] in stop:
                break
        lc.llama_memory_seq_rm(memory, 0, len(known) - 1, -1)
    return {"decode": seconds, "tokens": len(known) - len(prompt), "steps": steps}


def sample(row):
    """The most likely token after row ``row`` of the last batch."""
    vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(state["model"]))
    logits = lc.llama_get_logits_ith(state["context"], row)
    return int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())


operations = (load, prefill, decode, long, batch, generate, lookup, logits)
serve({operation.__name__: operation for operation in operations})
