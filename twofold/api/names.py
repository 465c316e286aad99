"""The names of fields that requests may have: logs repeat no others."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from twofold.api.body import RequestObject

UNDECLARED: Final = "(unknown field)"
PARTS: Final = re.compile(r"([^.\[\]]+)\]?")
MAX_DIGITS: Final = 7
MAX_PATH: Final = 200
BESIDE_BODIES: Final = frozenset({"body", "by", "since", "file", "content-type", "content-encoding", "x-twofold-cache"})
"""Names in errors that no body declares: of queries, forms and headers."""


@cache
def declared_names() -> frozenset[str]:
    """The names of all fields that requests may have."""
    found, kinds = set(BESIDE_BODIES), [RequestObject]
    while kinds:
        kind = kinds.pop()
        found |= {*kind.__struct_fields__, *kind.__struct_encode_fields__}
        kinds += kind.__subclasses__()
    return frozenset(found)


def declared_name(path: str) -> str:
    """The path of a field for logs, which repeat only declared names and short numbers of what callers write."""
    known = ""
    for part in PARTS.finditer(path):
        name = part[1]
        if name not in declared_names() and not (name.isascii() and name.isdecimal() and len(name) < MAX_DIGITS):
            return f"{known}.{UNDECLARED}" if known else UNDECLARED
        known = path[: part.end()]
    return path if len(path) <= MAX_PATH and known else UNDECLARED
