"""Work on a thread of its own while its caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Starts ``work`` on a thread. The thread does not keep the process alive."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._values: list[T] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()  # a signal leaves it intact; ``Thread.join`` would count the thread as ended
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._values.append(work())
        except BaseException as error:  # the caller gets it
            self._error = error
        self._ended.set()

    def wait(self) -> None:
        """Waits until the work has ended. Signals interrupt it."""
        self._ended.wait()

    def result(self) -> T:
        """What ``work`` returned, as soon as it has ended; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._values[0]
