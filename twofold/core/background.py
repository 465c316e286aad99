"""Work on a thread of its own while its caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Starts ``work`` on a thread that does not keep the process alive, as those of an executor would."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # the caller gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
