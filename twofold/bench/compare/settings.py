"""What differs between two documents besides their figures, so that nobody takes it for the server's doing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from twofold.bench.report.document import Document, Run

EXPECTED: Final = ("target.url", "target.server", "settings.url", "settings.seed", "target.details.prompts.seed")
"""What two runs may well differ in; all else makes the comparison one of two things."""


@dataclass(frozen=True, slots=True)
class Difference:
    """``path`` says where; None is what is not there. ``expected``: it does not make the figures incomparable."""

    path: str
    a: Any
    b: Any
    expected: bool

    def words(self) -> str:
        return f"{self.path}: {_told(self.a)} and {_told(self.b)}"


def differences(a: Document, b: Document, runs: tuple[Run, Run]) -> tuple[Difference, ...]:
    """Of all that was set, asked and found there; the weighty ones first. ``runs`` are those whose loads are held
    against each other."""
    first, second = _flat(_settings(a, runs[0])), _flat(_settings(b, runs[1]))
    found = [
        Difference(path, first.get(path), second.get(path), _expected(path))
        for path in sorted(first.keys() | second.keys())
        if first.get(path) != second.get(path)
    ]
    return tuple(sorted(found, key=lambda each: each.expected))


def _settings(document: Document, run: Run) -> dict[str, Any]:
    target, machine = document.target, document.machine
    measured, goodput = run.summary.get("measured"), run.summary.get("goodput")
    rule = measured if isinstance(measured, Mapping) else {}
    return {
        "version": document.version,
        "command": document.command,
        "target": {
            "url": target.url,
            "endpoint": target.endpoint,
            "model": target.model,
            "server": target.server,
            "details": target.details,
        },
        "client": {
            "processor": machine.processor,
            "usable_threads": machine.usable_threads,
            "system": machine.system,
            "python": machine.python,
            "stamps": run.client.stamps,
        },
        "settings": document.settings,
        "load": run.load,
        "rule": {name: rule.get(name) for name in ("warmup_s", "cooldown_s")},
        "objectives": goodput.get("objectives") if isinstance(goodput, Mapping) else None,
    }


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    return dict(_leaves(value, before))


def _leaves(value: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        path = f"{before}{name}"
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{path}.")
        elif item is not None:
            yield path, item


def _expected(path: str) -> bool:
    return path in EXPECTED or path.rpartition(".")[2] == "seed"


def _told(value: Any) -> str:
    return "nothing" if value is None else f"{value!s:.80}"
