"""The progress of a download. The command line shows it."""

from __future__ import annotations

from typing import Final, Protocol


class Progress(Protocol):
    """Receives the progress of one piece of work after another: ``start``, any number of ``advance``, ``done``."""

    def start(self, total_bytes: int | None, what: str, *, follows: bool = False) -> None:
        """Work begins on ``what``; ``total_bytes`` is None where the size is not known. ``follows``: it belongs to the
        piece before, as unpacking to a download."""
        ...

    def advance(self, count: int) -> None:
        """``count`` more bytes are done."""
        ...

    def done(self) -> None:
        """The work has ended, or failed."""
        ...


class _Silent:
    def start(self, *_: object, **__: object) -> None:
        return

    def advance(self, *_: object, **__: object) -> None:
        return

    def done(self) -> None:
        return


SILENT: Final[Progress] = _Silent()
"""For callers that show nothing."""
