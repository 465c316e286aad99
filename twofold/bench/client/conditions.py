"""What a process needs to measure well: no garbage collection meanwhile, and enough open files."""

from __future__ import annotations

import contextlib
import gc
import resource
from collections.abc import Iterator
from typing import Final

from twofold.core.errors import ResourceError

SPARE_FILES: Final = 64


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """No pause for garbage; what a run makes and drops goes by its reference counts."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def room_for_connections(wanted: int | None) -> int:
    """How many connections this process may open, its limit of files raised as far as it can be.

    Raises ResourceError where that is less than ``wanted``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    room = soft - SPARE_FILES if soft != resource.RLIM_INFINITY else 1 << 20
    if wanted is not None and wanted > room:
        message = f"{wanted} requests at once need more connections than the {room} that this process may open."
        raise ResourceError(message, hint="Raise the limit with `ulimit -n`, or lower --concurrency.")
    return room
