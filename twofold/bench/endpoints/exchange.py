"""One request outside of a load: what looking at a server before a run needs of a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

Reply: TypeAlias = tuple[int, Mapping[str, str], bytes]
"""Status, headers (names in lower case) and body."""


class Exchange(Protocol):
    """Asks once. Raises NetworkError where no response comes."""

    def __call__(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], /) -> Reply: ...
