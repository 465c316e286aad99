"""``--trace``: the file that ``run`` and ``chat`` write."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    """The arguments of the slices of steps."""
    return [event["args"] for event in events(path) if event["ph"] == "X" and "step" in event.get("args", {})]


def requests(path: Path) -> list[dict[str, Any]]:
    """The slices of whole requests."""
    return [event["args"] for event in events(path) if "prompt_tokens" in event.get("args", {})]


def test_every_step_of_a_completion_is_in_it(twofold: Command, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = twofold("run", "in the", "-m", tiny, "-n", 5, "--ignore-eos", "--json", "--trace", path)
    assert result.code == 0
    usage = json.loads(result.out)["usage"]
    assert [step["step"] for step in steps(path)] == list(range(5))
    assert [step["decode_rows"] for step in steps(path)] == [0, 1, 1, 1, 1]
    assert steps(path)[0]["prefill_rows"] == usage["prompt_tokens"]
    (request,) = requests(path)
    assert (request["prompt_tokens"], request["output_tokens"]) == (usage["prompt_tokens"], 5)


def test_a_conversation_has_a_request_for_each_turn(
    twofold: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    monkeypatch.setattr("sys.stdin", io.StringIO("in the\non the"))
    assert twofold("chat", "-m", tiny, "-n", 3, "--ignore-eos", "--trace", path).code == 0
    assert [request["output_tokens"] for request in requests(path)] == [3, 3]


def test_no_text_is_in_it(twofold: Command, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    flags = ("-m", tiny, "-n", 8, "--ignore-eos", "--temperature", 0)
    completion = twofold("run", "canary in the", *flags, "--trace", path).out.strip()
    text = path.read_text()
    assert "canary" not in text
    assert json.dumps(completion)[1:-1] not in text


def test_a_file_that_cannot_be_made_ends_it_before_the_model_loads(twofold: Command, tmp_path: Path) -> None:
    result = twofold("run", "in the", "-m", tmp_path / "no-model.gguf", "--trace", tmp_path / "nowhere" / "out.json")
    assert (result.code, result.out) == (4, "")
    assert "nowhere" in result.err
    assert "Traceback" not in result.err
