"""A batch in a folder: lines to give, and what was written about them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.clock import VirtualClock
from twofold.api.batch.lines import ENDPOINTS
from twofold.api.batch.run import BatchProgress, open_batch
from twofold.api.batch.runner import BatchRunner
from twofold.engine.llm import LLM

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def prompts(count: int, **body: Any) -> list[str]:
    """Completions of different prompts and lengths."""
    fields = {"ignore_eos": True, "return_token_ids": True, **body}
    return [line(f"r{n}", prompt=f"the {n} " * (1 + n % 3), max_tokens=1 + n % 7, **fields) for n in range(count)]


class Folder:
    """An input and an output, run as often as a test likes."""

    def __init__(self, folder: Path) -> None:
        self.source, self.target = folder / "in.jsonl", folder / "out.jsonl"

    def give(self, lines: Iterable[str]) -> None:
        self.source.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def run(
        self, llm: LLM, *, overwrite: bool = False, names: tuple[str, ...] = ("mock",), **more: Any
    ) -> BatchProgress:
        clock = VirtualClock()
        with open_batch(self.source, self.target, clock, ENDPOINTS, overwrite=overwrite) as batch:
            return BatchRunner(llm, batch, names=names, clock=clock, wall=lambda: 7.0, **more).run()

    @property
    def written(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.target.read_text(encoding="utf-8").splitlines()]

    @property
    def results(self) -> dict[str, Any]:
        """The response and the error of each line, by custom_id; fails if a line has two results."""
        found = {one["custom_id"]: (one["response"], one["error"]) for one in self.written}
        assert len(found) == len(self.written)
        return found

    def message(self, custom_id: str) -> str:
        _, error = self.results[custom_id]
        return f"{error['code']}: {error['message']}"
