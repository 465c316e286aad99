"""How an event becomes a line: JSON for machines, or words and key=value pairs for people.

A line is one line whatever is in it: control characters, line ends and terminal sequences are escaped.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from twofold.observe.logs.redact import Event

PLAIN: Final = re.compile(r"[\w./:@+,-]+", re.ASCII)
"""Values that need no quotes."""
FIRST: Final = ("time", "level", "event")


def json_line(_logger: object, _method: str, event: Event) -> str:
    ordered = {name: event.pop(name) for name in FIRST if name in event}
    return _json(ordered | dict(event))


def text_line(_logger: object, _method: str, event: Event) -> str:
    clock, level, name = (str(event.pop(field, "")) for field in FIRST)
    pairs = (f"{_text(field)}={_text(value)}" for field, value in event.items())
    return " ".join((clock[11:19], f"{level:<8}", _line(name), *pairs))


def _line(text: str) -> str:
    """Words as they are, without what a terminal would obey."""
    return "".join(c if c.isprintable() else "�" for c in text)


def _text(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if PLAIN.fullmatch(text) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=lambda odd: f"<{type(odd).__name__}>")
