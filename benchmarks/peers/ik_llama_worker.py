"""ik_llama.cpp through its own benchmark programs, which load the model for each request and do not count that."""

# mypy: ignore-errors
import json
import subprocess
import tempfile
import time
from pathlib import Path

from serve import serve

BIN = Path(__file__).parents[2] / ".venv-peers" / "ik_llama"
state = {}


def load(path, threads, context, streams):
    began = time.perf_counter()
    state.update(path=path, threads=str(threads), context=context)
    bench("-p", "16", "-n", "0")
    return time.perf_counter() - began


def bench(*options):
    """Seconds of a repetition of the only test."""
    common = ["-m", state["path"], "-t", state["threads"], "-rtr", "1", "-r", "1", "-o", "json"]
    (test,) = json.loads(run([BIN / "llama-bench", *common, *options]).stdout)
    return test["avg_ns"] / 1e9


def run(command):
    """Both programs leave a log where they run."""
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tempfile.gettempdir())


def prefill(tokens):
    return bench("-p", str(len(tokens)), "-n", "0")


def decode(prompt, steps):
    """From an empty context on: ``llama-bench`` has no prompt here."""
    return [bench("-p", "0", "-n", str(steps)) / steps] * steps


def long(prompt, steps):
    """The prompt is computed for each of the two numbers."""
    seconds = bench("-w", "0", "-p", "0", "-n", "0", "-gp", f"{len(prompt)},{steps}") / steps
    return {"prompt": bench("-w", "0", "-p", str(len(prompt)), "-n", "0"), "steps": [seconds] * steps}


def batch(streams, prompt, steps):
    sizes = ["-npp", str(len(prompt)), "-ntg", str(steps), "-npl", str(streams)]
    options = ["-c", str(streams * (len(prompt) + steps)), "-b", "512", "-ub", "512", "-t", state["threads"], "-rtr"]
    command = [BIN / "llama-batched-bench", "-m", state["path"], *options, *sizes]
    rows = [line.split("|") for line in run(command).stderr.splitlines() if line.startswith("|")]
    columns, values = ([cell.strip() for cell in row] for row in (rows[0], rows[-1]))
    return [float(values[columns.index("T_TG s")]) / steps] * steps


serve({"load": load, "prefill": prefill, "decode": decode, "long": long, "batch": batch})
