"""Places in host memory where blocks wait while their sequence is preempted. Law: free + taken = all."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class SlotPool:
    """``slots`` places for one block each, numbered from 0; there may be none."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> array[int]:
        """``count`` slots; the caller has seen that they are free."""
        assert count <= len(self._free), f"{count} host slots are wanted and {len(self._free)} are free"
        taken = array("i", (self._free.pop() for _ in range(count)))
        self._taken.update(taken)
        return taken

    def release(self, slots: Iterable[int]) -> None:
        """Gives taken slots back."""
        for slot in slots:
            assert slot in self._taken, f"host slot {slot} is free already"
            self._taken.remove(slot)
            self._free.append(slot)

    def check(self, held: Iterable[int]) -> None:
        """Asserts the law, and that exactly the ``held`` slots are taken."""
        assert sorted(held) == sorted(self._taken), "host slots leaked"
        assert sorted([*self._free, *self._taken]) == list(range(self.slots)), "a host slot is lost"
