"""``twofold batch`` with tiny models: output, messages, exit codes, and resuming after a kill."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from twofold.fleet.reading import system_fingerprint

Start = Callable[..., "subprocess.Popen[str]"]
PATIENCE = 300


def write_input(path: Path, count: int, **body: Any) -> Path:
    """Completions, each with a prompt of its own; a field of ``body`` may be made of the line's number."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(count):
            fields = {"prompt": f"in the {n}", "max_tokens": 4, "temperature": n % 2, "ignore_eos": True, **body}
            request = {"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": fields}
            file.write(json.dumps(request) + "\n")
    return path


def lines_of(path: Path) -> dict[str, Any]:
    """The choices of each line. Fails for an incomplete line, an error or a repeated line."""
    return {name: body["choices"] for name, body in bodies_of(path).items()}


def bodies_of(path: Path) -> dict[str, Any]:
    """The response of each line."""
    lines = [json.loads(text) for text in path.read_bytes().splitlines()]
    found = {line["custom_id"]: line["response"]["body"] for line in lines if line["error"] is None}
    assert len(found) == len(lines)
    return found


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_input(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"


def test_every_line_has_a_response(twofold: Command, tiny: Path, files: tuple[Path, Path]) -> None:
    result = twofold("batch", *files, "-m", tiny)
    assert (result.code, result.out) == (0, "")
    bodies = bodies_of(files[1])
    assert bodies.keys() == {f"r{n}" for n in range(20)}
    assert {body["system_fingerprint"] for body in bodies.values()} == {system_fingerprint([tiny], "bf16")}
    start, half, last = (line for line in result.err.splitlines() if "20 lines" in line)
    assert start == "20 lines"
    assert re.match(r"1\d of 20 lines, ", half)
    assert last.startswith("20 of 20 lines in ")
    assert "80 output tokens in " in last


def give(path: Path, *requests: tuple[str, str, dict[str, Any]]) -> Path:
    """Lines of a custom_id, an endpoint and a body each."""
    lines = [{"custom_id": name, "method": "POST", "url": url, "body": body} for name, url, body in requests]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def vectors(target: Path) -> dict[str, Any]:
    lines = [json.loads(text) for text in target.read_text().splitlines()]
    assert all(line["error"] is None for line in lines)
    return {line["custom_id"]: [one["embedding"] for one in line["response"]["body"]["data"]] for line in lines}


def test_embeddings(twofold: Command, tiny: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    give(
        source,
        ("both", "/v1/embeddings", {"input": ["in the", "on the"]}),
        ("one", "/v1/embeddings", {"input": "on the"}),
        ("last", "/v1/embeddings", {"input": "on the", "pooling": "last"}),
    )
    assert twofold("batch", source, target, "-m", tiny).code == 0
    found = vectors(target)
    assert found["both"][1] == found["one"][0] != found["last"][0]
    assert all(sum(value * value for value in one) == pytest.approx(1) for one in found["both"])


@pytest.mark.model
def test_embeddings_of_a_real_model(twofold: Command, default_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts = ["The cat sat on the mat.", "A feline rested on a rug.", "Stock prices fell on Tuesday."]
    give(source, ("a", "/v1/embeddings", {"input": texts, "dimensions": 576}))
    assert twofold("batch", source, target, "-m", default_model, "-c", 256).code == 0
    cat, feline, stocks = vectors(target)["a"]
    assert sum(a * b for a, b in zip(cat, feline, strict=True)) > sum(a * b for a, b in zip(cat, stocks, strict=True))


def test_lines_with_structured_output(twofold: Command, tiny: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    wanted = [("a", {"choice": ["red", "blue"]}), ("b", {"regex": "[0-9]{2}"}), ("bad", {"regex": "("})]
    bodies = [(name, {"prompt": "in", "max_tokens": 30, "structured_outputs": form}) for name, form in wanted]
    source = give(tmp_path / "in.jsonl", *[(name, "/v1/completions", body) for name, body in bodies])
    assert ", 1 of them failed" in twofold("batch", source, target, "-m", tiny).err
    lines = {line["custom_id"]: line for line in map(json.loads, target.read_text().splitlines())}
    (red,), (number,) = (lines[name]["response"]["body"]["choices"] for name in "ab")
    assert (red["finish_reason"], number["finish_reason"]) == ("stop", "stop")
    assert red["text"] in ("red", "blue")
    assert number["text"].isdigit()
    assert lines["bad"]["response"]["status_code"] == 400


def test_a_trace_holds_every_step(twofold: Command, tiny: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert twofold("batch", *files, "-m", tiny, "--trace", trace).code == 0
    told = [event.get("args", {}) for event in json.loads(trace.read_text())]
    assert sum("output_tokens" in one for one in told) == 20
    assert sum(one["decode_rows"] for one in told if "step" in one) == 60


def test_a_trace_over_a_file_of_the_batch(twofold: Command, tiny: Path, files: tuple[Path, Path]) -> None:
    files[1].touch()
    for trace in (*files, files[1].parent / "." / files[1].name):
        result = twofold("batch", *files, "-m", tiny, "--trace", trace)
        assert result.code == 2
        assert "Name another file for the trace" in result.err
    assert files[0].stat().st_size
    assert not files[1].stat().st_size


def test_flags_and_json(twofold: Command, tiny: Path, files: tuple[Path, Path]) -> None:
    named = twofold("batch", "-i", files[0], "-o", files[1], "-m", tiny, "--max-num-seqs", 3, "--json")
    told = json.loads(named.out)
    assert told.keys() == {
        *("lines", "found", "done", "failed", "finished", "seconds"),
        *("prompt_tokens", "completion_tokens", "prompt_tok_s", "completion_tok_s"),
    }
    assert (told["lines"], told["done"], told["completion_tokens"], told["finished"]) == (20, 20, 80, True)
    again = twofold("batch", *files, "-m", tiny, "--json")
    assert json.loads(again.out) | {"found": 20, "completion_tokens": 0} == json.loads(again.out)
    assert "nothing to do" in twofold("batch", *files, "-m", tiny).err


def test_the_number_of_sequences_changes_no_completion(twofold: Command, tiny: Path, files: tuple[Path, Path]) -> None:
    twofold("batch", *files, "-m", tiny, "-np", 1)
    alone = lines_of(files[1])
    twofold("batch", *files, "-m", tiny, "-np", 16, "--overwrite")
    assert lines_of(files[1]) == alone


def test_failed_lines_are_reported_and_do_not_fail_the_batch(
    twofold: Command, tiny: Path, files: tuple[Path, Path]
) -> None:
    with files[0].open("a") as file:
        file.write("nonsense\n")
    result = twofold("batch", *files, "-m", tiny)
    assert result.code == 0
    assert "21 of 21 lines in " in result.err
    assert ", 1 of them failed" in result.err
    assert "remove them from the output" in result.err


def test_names_of_the_model(twofold: Command, tiny: Path, tmp_path: Path) -> None:
    source, target = write_input(tmp_path / "in.jsonl", 2, model="gpt-4o-mini"), tmp_path / "out.jsonl"
    refused = twofold("batch", source, target, "-m", tiny)
    assert ", 2 of them failed" in refused.err
    twofold("batch", source, target, "-m", tiny, "--overwrite", "--accept-any-model")
    assert len(lines_of(target)) == 2
    twofold("batch", source, target, "-m", tiny, "--overwrite", "--served-model-name", "gpt-4o-mini")
    assert len(lines_of(target)) == 2
    other = twofold("batch", write_input(source, 3), target, "-m", tiny)
    assert other.code == 2
    assert "--overwrite" in other.err


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["gone.jsonl", "{out}"], 2, "gone.jsonl does not exist"),
        (["{in}", "{in}"], 2, "same file"),
        (["{in}", "{in}/out"], 4, "cannot be opened"),
        (["{in}"], 2, "output"),
        (["{in}", "{out}", "--max-num-seqs", "0"], 2, "--max-num-seqs"),
        (["{in}", "{out}", "--max-num-seq", "3"], 2, "--max-num-seqs"),
        (["{in}", "{out}", "-m", "gone.gguf"], 3, "gone.gguf"),
    ],
)
def test_impossible_requests(
    twofold: Command, tiny: Path, files: tuple[Path, Path], flags: list[str], code: int, said: str
) -> None:
    given = [flag.replace("{in}", str(files[0])).replace("{out}", str(files[1])) for flag in flags]
    result = twofold("batch", *given, *([] if "-m" in flags else ["-m", tiny]))
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert "\nerror: " in f"\n{result.err}"  # kernels may have been compiled before
    assert "Traceback" not in result.err


def wait_for_lines(target: Path, command: subprocess.Popen[str], count: int) -> None:
    """Waits until the output has that many lines while the command runs."""
    deadline = time.monotonic() + PATIENCE
    while not target.exists() or target.read_bytes().count(b"\n") < count:
        assert command.poll() is None, "the batch ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_explains_how_to_resume(process: Start, tiny: Path, tmp_path: Path) -> None:
    source, target = write_input(tmp_path / "in.jsonl", 400, max_tokens=200), tmp_path / "out.jsonl"
    command = process("batch", source, target, "-m", tiny, "-np", 4)
    wait_for_lines(target, command, 3)
    command.send_signal(signal.SIGINT)
    out, errors = command.communicate(timeout=PATIENCE)
    assert (command.returncode, out) == (130, "")
    assert "run the same command again" in errors
    assert "Traceback" not in errors
    assert 3 <= len(lines_of(target)) < 400


def killed_and_taken_up(process: Start, model: Path, source: Path, target: Path) -> str:
    """Runs the batch, kills it after a few lines and runs it again to the end; the result of the second run."""
    command = process("batch", source, target, "-m", model, "-np", 4)
    wait_for_lines(target, command, 4)
    command.kill()
    command.communicate(timeout=PATIENCE)
    assert command.returncode == -signal.SIGKILL
    written = target.read_bytes()
    whole = written[: written.rindex(b"\n") + 1]
    target.write_bytes(written + whole[:50])  # as if the kill had come in the middle of a write
    command = process("batch", source, target, "-m", model, "-np", 4)
    _, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0
    assert target.read_bytes().startswith(whole)
    return errors


def test_a_kill_loses_nothing_and_nothing_is_done_twice(process: Start, tiny: Path, tmp_path: Path) -> None:
    source, target = write_input(tmp_path / "in.jsonl", 40, max_tokens=60), tmp_path / "out.jsonl"
    assert "of 40 lines were finished before" in killed_and_taken_up(process, tiny, source, target)
    process("batch", source, tmp_path / "whole", "-m", tiny).communicate(timeout=PATIENCE)
    assert lines_of(target) == lines_of(tmp_path / "whole")
    assert len(lines_of(target)) == 40


@pytest.mark.model
def test_a_kill_of_a_real_model(process: Start, default_model: Path, tmp_path: Path) -> None:
    source, target = write_input(tmp_path / "in.jsonl", 24, max_tokens=16), tmp_path / "out.jsonl"
    killed_and_taken_up(process, default_model, source, target)
    process("batch", source, tmp_path / "whole", "-m", default_model, "-c", 512).communicate(timeout=PATIENCE)
    assert lines_of(target) == lines_of(tmp_path / "whole")
    assert len(lines_of(target)) == 24


def test_a_bar_on_a_terminal(tiny: Path, files: tuple[Path, Path], variables: Mapping[str, str]) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "twofold", "batch", *map(str, files), "-m", str(tiny)]
    with subprocess.Popen(command, stderr=theirs, env={**variables, "TERM": "xterm", "COLUMNS": "100"}) as running:
        os.close(theirs)
        shown = b"".join(iter(partial(read_terminal, ours), b"")).decode()
        assert running.wait(PATIENCE) == 0
    os.close(ours)
    assert "/20" in shown
    assert "tok/s in" in shown
    assert "20 lines\r\n" not in shown


def read_terminal(terminal: int) -> bytes:
    """Output of the terminal; empty after the other side closed, which Linux reports by an error."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""
