"""How to start each server: Twofold, and the others whose environments exist."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from benchmarks.http.processes import ROOT, Recipe
from twofold.formats.gguf import GGUFFile

MODEL: Final = "bench"
"""The model's name over HTTP."""
NEVER: Final = -100
VLLM_START_S: Final = 600.0


def ours(path: Path, threads: int, context: int, *options: str) -> Recipe:
    """``twofold serve`` with these options."""
    command = [sys.executable, "-m", "twofold", "serve", f"{MODEL}={path}", "--port", "{port}"]
    command += ["--threads", f"{threads}", "--max-model-len", f"{context}", "--data-folder", "{folder}/data", *options]
    return Recipe("twofold", command, "/ready", {"ignore_eos": True})


def others(path: Path, threads: int, context: int) -> list[Recipe]:
    """Servers of the other installed engines, with the same model and number of threads."""
    found = []
    llama, vllm = (ROOT / name / "bin" / "python" for name in (".venv-peers", ".venv-vllm"))
    if llama.exists():
        found.append(llama_cpp(llama, path, threads, context))
    if vllm.exists():
        script = ROOT / "benchmarks" / "peers" / "vllm_server.py"
        command = [str(vllm), str(script), str(path), "{folder}/model", "{port}", f"{threads}", f"{context}", MODEL]
        found.append(Recipe("vllm", command, "/health", {"ignore_eos": True}, VLLM_START_S))
    return found


def llama_cpp(python: Path, path: Path, threads: int, context: int) -> Recipe:
    """llama-cpp-python's server, which runs one request at a time; a new request must not interrupt the running one."""
    command = [str(python), "-m", "llama_cpp.server", "--model", str(path), "--model_alias", MODEL]
    command += ["--host", "127.0.0.1", "--port", "{port}", "--n_ctx", f"{context}", "--interrupt_requests", "false"]
    command += ["--n_threads", f"{threads}", "--n_threads_batch", f"{threads}"]
    bias = {str(token): NEVER for token in _control_tokens(path)}
    return Recipe("llama.cpp", command, "/v1/models", {"logit_bias": bias})


def _control_tokens(path: Path) -> list[int]:
    """Ids of special tokens, which may end a completion."""
    with GGUFFile.open(path) as file:
        ids = {value for key, value in file.metadata.items() if key.endswith("_token_id")}
    return sorted(value for value in ids if isinstance(value, int))
