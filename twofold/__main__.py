"""The ``twofold`` command, also as ``python -m twofold``.

Ctrl-C ends it with exit code 130 and without a traceback, also while it imports its modules and while Python ends.
"""

from __future__ import annotations

import os

INTERRUPTED = 130

try:
    import signal  # imports others
except KeyboardInterrupt:
    os._exit(INTERRUPTED)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def start() -> int:
    """Runs the command line of this process. Returns the exit code."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.SIG_IGN:  # as in a background job
        signal.signal(signal.SIGINT, _leave)
    from twofold.cli.main import main  # noqa: PLC0415 - takes a tenth of a second

    try:
        signal.signal(signal.SIGINT, usual)
        return main()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if usual is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _leave)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    raise SystemExit(start())
