"""The command ``llm``, with a server that its file of models names. Needs the package llm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.clients.conftest import TINY
from tests.server.live import LiveServer

pytest.importorskip("llm", reason="the package llm is not installed")

Ask = Callable[..., str]


@pytest.fixture
def ask(server: LiveServer, tmp_path: Path) -> Ask:
    """``ask("hi", "-o", "temperature", "0")``: what the command prints."""
    models = f"- model_id: mine\n  model_name: {TINY}\n  api_base: {server.url}/v1\n  supports_tools: true\n"
    models += "  supports_schema: true\n"
    models += f"- model_id: texts\n  model_name: {TINY}\n  api_base: {server.url}/v1\n  completion: true\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    (tmp_path / "keys.json").write_text("{}")

    def run(prompt: str, *arguments: str, model: str = "mine") -> str:
        command = [sys.executable, "-m", "llm", "-m", model, prompt, "--key", "none", *arguments]
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_whole_and_streamed(ask: Ask) -> None:
    settings = ("-o", "temperature", "0", "-o", "max_tokens", "8")
    assert ask("hi", *settings, "--no-stream").strip() == ask("hi", *settings).strip() != ""


def test_a_schema(ask: Ask) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    reply = ask("hi", "--schema", json.dumps(schema), "-o", "max_tokens", "200", "-o", "temperature", "0")
    assert isinstance(json.loads(reply)["ok"], bool)


def test_texts(ask: Ask) -> None:
    assert ask("the river", "-o", "max_tokens", "8", model="texts").strip()
