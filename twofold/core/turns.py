"""A line in which callers take turns, however much each of them asks for."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items by caller. Each caller's come in order, and callers one after the other. Not thread-safe."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, caller: str, item: T) -> None:
        """Puts an item behind those of its caller."""
        self._lines.setdefault(caller, deque()).append(item)

    def next(self, besides: Container[str]) -> T | None:
        """Takes the next item of a caller that is not one of ``besides``; None where there is none."""
        caller = next((caller for caller in self._lines if caller not in besides), None)
        if caller is None:
            return None
        line = self._lines.pop(caller)
        item = line.popleft()
        if line:
            self._lines[caller] = line
        return item

    def surplus(self, most: int) -> T | None:
        """Takes the last item of the caller with the most where there are more than ``most``."""
        if len(self) <= most:
            return None
        caller = max(reversed(self._lines), key=lambda caller: len(self._lines[caller]))
        line = self._lines[caller]
        item = line.pop()
        if not line:
            del self._lines[caller]
        return item
