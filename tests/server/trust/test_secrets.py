"""Only the server's own process has the key that its environment names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.server.live import live_server
from tests.server.trust.client import CHAT, chat
from tests.support.tiny import TinyModel

KEY: Final = "CANARYKEY-0123456789"
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCENARIO: Final = {"model": "llama-3.1-8b", "machine": "h100"}


def descendants(pid: int) -> list[int]:
    """All processes that this one started, or that those started."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found[1:]


def test_the_key_of_the_environment_is_in_no_child_process(tiny: TinyModel, tmp_path: Path) -> None:
    """The worker, the sandbox of templates, the hosts of grammars, and the planner."""
    arguments = (f"tiny={tiny.path}", "--threads", "1")
    with live_server(tmp_path, *arguments, environment={"TWOFOLD_API_KEY": KEY}) as live:
        assert live.post(CHAT, chat(max_tokens=1)).status_code == 401
        with live.client(headers={"authorization": f"Bearer {KEY}"}) as client:
            form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
            asked = chat(max_tokens=20) | {"response_format": form}
            assert client.post(CHAT, json=asked).status_code == 200
            assert client.post("/v1/twofold/explain", json=SCENARIO).status_code in (200, 400)
            children = descendants(live.process.pid)
            assert len(children) >= 4
            for pid in children:
                assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
                assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
