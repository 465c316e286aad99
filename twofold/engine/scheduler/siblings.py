"""Sequences of one prompt: the others wait until the first has computed what they will share."""

from __future__ import annotations

from twofold.engine.scheduler.sequence import Sequence, SequenceState


def is_coming(parent: Sequence) -> bool:
    """Whether the prompt's blocks are on their way, so that it is worth waiting for them."""
    if parent.state is SequenceState.RUNNING:
        return parent.computed < parent.prompt_length - 1
    return parent.state is SequenceState.WAITING and parent.admitted_at is None


class Siblings:
    """Who waits for which parent; nobody waits for more than one."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Sequence]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, sequence: Sequence, parent: Sequence) -> None:
        """It waits until its parent is called for."""
        self._waiting.setdefault(parent.sequence_id, []).append(sequence)

    def call(self, parent: Sequence) -> list[Sequence]:
        """Those that waited for this parent; they wait for it no longer."""
        return self._waiting.pop(parent.sequence_id, [])

    def leave(self, sequence: Sequence) -> None:
        """It waits no longer, if it did."""
        parent = sequence.parent
        if parent is None or sequence not in self._waiting.get(parent.sequence_id, ()):
            return
        self._waiting[parent.sequence_id].remove(sequence)
        if not self._waiting[parent.sequence_id]:
            del self._waiting[parent.sequence_id]
