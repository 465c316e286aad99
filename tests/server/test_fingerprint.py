"""``system_fingerprint``: what determines an output besides the request."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.server.live import LiveServer
from twofold.fleet.reading import system_fingerprint
from twofold.formats.identity import END_BYTES
from twofold.host.versions import NUMERICS, twofold_version

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
TEXT = {"prompt": "hello", "max_tokens": 3}


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_replies_and_all_chunks_have_it(server: LiveServer, path: str, body: dict[str, Any]) -> None:
    whole = server.post(path, {"model": "tiny", **body}).json()["system_fingerprint"]
    assert re.fullmatch(rf"twofold-{re.escape(twofold_version())}-n{NUMERICS}-[0-9a-f]{{12}}-bf16", whole)
    lines = server.post(path, {"model": "tiny", "stream": True, **body}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert len(chunks) > 1
    assert {chunk["system_fingerprint"] for chunk in chunks} == {whole}


def test_it_changes_with_the_file_and_the_kv_type_alone(tmp_path: Path) -> None:
    path, same = tmp_path / "model.gguf", tmp_path / "other.gguf"
    content = bytearray(3 * END_BYTES)
    for each in (path, same):
        each.write_bytes(content)
    first = system_fingerprint([path], "bf16")
    assert first == system_fingerprint([same], "bf16"), "neither the name nor the time counts"
    assert first != system_fingerprint([path], "q8")
    for place in (5, len(content) - 5):
        path.write_bytes(content[:place] + b"x" + content[place + 1 :])
        assert system_fingerprint([path], "bf16") != first
    path.write_bytes(content + b"\0")
    assert system_fingerprint([path], "bf16") != first
