"""Lanes: what the sequences of an engine do, as events with times on the engine's clock.

    kind       values                      text           the sequence …
    ARRIVE     prompt tokens               request id     waits in the queue
    ADMIT      slot, cached, loaded                       runs in a slot; ``loaded`` of its cached tokens came from disk
    COMPUTE    computed tokens                            has computed so much of its prompt, or of a preempted text
    FIRST                                                 has its first token
    TOKENS     tokens so far                              has more tokens; one event for several steps
    DRAFTS     drafted, accepted so far                   had draft tokens; one event for several steps
    PREEMPT    swapped blocks              cause          lost its slot: for "blocks", or to another "tenant"
    RETURN     slot, computed tokens                      runs again
    HOLD                                                  is paused, because its client does not read
    LOAD       tokens                                     left the queue while its prefix is read from the KV store
    QUEUE                                                 waits in the queue again, after HOLD or LOAD
    END        tokens                      finish reason  ended

A running sequence has a slot, a number below the maximum of running sequences, which it keeps until it stops to run.
From FIRST to END a sequence has rows in every step, unless it does not run or waits for a token mask, so events are
O(requests) and not O(steps · sequences).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class LaneKind(StrEnum):
    """What happened to a sequence."""

    ARRIVE = "+"
    ADMIT = "a"
    COMPUTE = "p"
    FIRST = "f"
    TOKENS = "o"
    DRAFTS = "s"
    PREEMPT = "x"
    RETURN = "r"
    HOLD = "h"
    LOAD = "l"
    QUEUE = "u"
    END = "."


class LaneEvent(NamedTuple):
    """An event of the sequence ``number``, at seconds on the engine's clock."""

    number: int
    kind: LaneKind
    at: float
    values: tuple[int, ...] = ()
    text: str = ""
