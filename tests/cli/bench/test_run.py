"""``twofold bench run`` starts, measures and ends a server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command


def test_our_server_is_started_measured_and_ended(twofold: Command, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    load = ("--concurrency", 2, "--requests", 6, "--input-tokens", 40, "--output-tokens", 8, "--quiet")
    result = twofold("bench", "run", "--model", tiny, *load, "-o", path, "--", "--threads", "1")
    assert result.code == 0, result.err
    document = json.loads(path.read_text())
    assert document["command"] == "run"
    assert document["target"]["details"]["prompts"]["counted_by"] == "the server's /tokenize"
    tokens = document["runs"][0]["summary"]["tokens"]
    assert tokens["prompt"]["equal"] == tokens["output"]["equal"] == 6
    port = document["target"]["url"].rpartition(":")[2]
    assert not _listens(int(port))


def test_a_server_that_does_not_start_says_why(twofold: Command, tmp_path: Path) -> None:
    result = twofold("bench", "run", "--model", tmp_path / "gone.gguf", "--rate", 1, "--requests", 1)
    assert result.code == 4
    assert "The server did not start" in result.err
    assert "gone.gguf" in result.err


def test_flags_are_read_before_anything_starts(twofold: Command) -> None:
    result = twofold("bench", "run", "--rate", -1)
    assert result.code == 2
    assert "Starting" not in result.err


def _listens(port: int) -> bool:
    tables = (Path("/proc/net/tcp").read_text().splitlines()[1:],)
    listening = {line.split()[1] for table in tables for line in table if line.split()[3] == "0A"}
    return f"0100007F:{port:04X}" in listening
