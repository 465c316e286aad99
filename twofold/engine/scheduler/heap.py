"""A priority queue whose items may leave from any place, or change their key.

An entry that no longer counts stays until it surfaces, or until such entries outnumber the others; every operation is
therefore O(log n) in the mean, whatever the order.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SPARE = 16


class Heap(Generic[T]):
    """Items, least key first. Keys of one heap must be comparable; equal keys need comparable items."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, T]] = []
        self._keys: dict[T, Any] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, item: T) -> bool:
        return item in self._keys

    def key(self, item: T) -> Any:
        return self._keys[item]

    def put(self, item: T, key: Any) -> None:
        """Adds an item, or gives one that is there another key."""
        self._keys[item] = key
        heapq.heappush(self._entries, (key, item))
        self._compact()

    def drop(self, item: T) -> None:
        """Takes an item out, wherever it stands; nothing happens where it is not there."""
        if self._keys.pop(item, None) is not None:
            self._compact()

    def first(self) -> T | None:
        """The item of the least key; None when there is none."""
        entries = self._entries
        while entries:
            key, item = entries[0]
            if self._keys.get(item) == key:
                return item
            heapq.heappop(entries)
        return None

    def _compact(self) -> None:
        if len(self._entries) > 2 * len(self._keys) + SPARE:
            self._entries = [(key, item) for item, key in self._keys.items()]
            heapq.heapify(self._entries)
