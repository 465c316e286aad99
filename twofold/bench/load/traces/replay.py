"""Replays a trace, or a part of it, at another speed or with scaled lengths.

- The first selected request is due at 0; gaps and pauses are divided by the speed.
- Scaling lengths scales the boundaries of shared pieces, so prompts that shared a prefix still do.
- Pieces at the end of a prompt's shared prefix that no other selected request has are not shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.base import (
    Ask,
    EndedRequest,
    Prompt,
    PromptMessage,
    Shared,
    continues,
    ended_s,
    history_after,
)
from twofold.bench.load.checks import MAX_RATE, MAX_REQUESTS, MAX_SECONDS, above_zero, number, whole
from twofold.bench.load.traces.trace import Extra, Later, Trace
from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Part:
    """A selection: the first ``requests`` requests that arrive from ``from_s`` until ``until_s``, in seconds after the
    first request of the trace. Later turns belong to the first turn of their session."""

    from_s: float = 0.0
    until_s: float | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        number("from", self.from_s, 0, MAX_SECONDS)
        if self.until_s is not None:
            number("until", self.until_s, self.from_s, MAX_SECONDS)
        if self.requests is not None:
            whole("requests", self.requests, 1, MAX_REQUESTS)

    def rows(self, trace: Trace) -> range:
        """The numbers of the selected requests. Raises ParameterError if there are none."""
        since = np.asarray(trace.at_s) - trace.at_s[0]
        begin = int(np.searchsorted(since, self.from_s))
        end = len(trace) if self.until_s is None else int(np.searchsorted(since, self.until_s))
        rows = range(begin, end)[: self.requests]
        if not rows:
            raise ParameterError(
                f"{trace.path.name} has no request in that part of its {since[-1]:g} s.",
                param="from",
                hint="Choose an earlier start or a later end.",
            )
        return rows


@dataclass(frozen=True, slots=True)
class TraceScale:
    """Changes to a trace. ``speed`` 2 is twice as fast; ``rate`` sets the mean requests a second instead. ``input`` and
    ``output`` are factors of lengths, which stay at least 1."""

    speed: float = 1.0
    rate: float | None = None
    input: float = 1.0
    output: float = 1.0

    def __post_init__(self) -> None:
        above_zero("speed", self.speed, 1e6)
        above_zero("input scale", self.input, 1e4)
        above_zero("output scale", self.output, 1e4)
        if self.rate is not None:
            above_zero("rate", self.rate, MAX_RATE)
            if self.speed != 1:
                raise ParameterError("A trace is scaled by a speed or to a rate, not by both.", param="rate")


class TraceReplay:
    """``part`` of a trace, changed by ``scale``; at most ``max_open`` requests are open at once.

    ``prompt`` gives the messages of a request, for the history of later turns. Raises ParameterError for invalid
    values.
    """

    def __init__(
        self,
        trace: Trace,
        prompt: Prompt,
        *,
        part: Part | None = None,
        scale: TraceScale | None = None,
        max_open: int | None = None,
    ) -> None:
        self._trace, self._prompt = trace, prompt
        self._part = Part() if part is None else part
        self._scale = TraceScale() if scale is None else scale
        self.max_open = None if max_open is None else whole("concurrency", max_open, 1, MAX_REQUESTS)
        self._rows = self._part.rows(trace)
        self._speed = self._speed_of(trace.at_s[self._rows[-1]] - trace.at_s[self._rows[0]])
        self._named_again = _named_again(trace, self._rows)
        self._later = {session: trace.later[session] for session in self._sessions() if session in trace.later}
        self._first_later = dict(
            zip(self._later, accumulate(map(len, self._later.values()), initial=len(self._rows)), strict=False)
        )
        self._check_scaled()

    @property
    def duration_s(self) -> float:
        """When the last first turn is due."""
        return self._due_s(self._rows[-1])

    def describe(self) -> Mapping[str, Any]:
        trace, rows, scale, skipped = self._trace, self._rows, self._scale, self._trace.skipped
        return {
            "kind": "trace",
            "format": trace.form,
            "file": trace.path.name,
            "sha256": trace.sha256,
            "from_s": self._part.from_s,
            "until_s": self._part.until_s,
            "requests": len(rows),
            "later_turns": sum(map(len, self._later.values())),
            "duration_s": self.duration_s,
            "rate": (len(rows) - 1) / self.duration_s if self.duration_s else None,
            "speed": self._speed,
            "input_scale": scale.input,
            "output_scale": scale.output,
            "concurrency": self.max_open,
            "skipped_lines": skipped.count,
            "first_skipped": skipped.first,
            "unused_fields": sorted(trace.unused),
        }

    def begin(self) -> Iterator[Ask]:
        return (self._first(index, row) for index, row in enumerate(self._rows))

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """The next turn of the session, if the completion has a text."""
        ask = ended.ask
        turns = self._later.get(ask.session, []) if ask.session is not None else []
        if ask.turn >= len(turns) or not continues(ended):
            return None
        later = turns[ask.turn]
        due_s = ended_s(ended, now_s) + later.after_s / self._speed
        return self._turn(later, due_s, history_after(ended, self._prompt))

    def _first(self, index: int, row: int) -> Ask:
        trace = self._trace
        extra = trace.extras.get(row, _NOTHING)
        return Ask(
            index,
            self._due_s(row),
            _scaled(trace.input_tokens[row], self._scale.input),
            _scaled(trace.output_tokens[row], self._scale.output),
            self._pieces(row),
            extra.messages,
            session=extra.session,
            fields=extra.fields,
        )

    def _turn(self, later: Later, due_s: float, history: tuple[PromptMessage, ...]) -> Ask:
        session = later.extra.session
        assert session is not None
        return Ask(
            self._first_later[session] + later.turn - 1,
            due_s,
            _scaled(later.input_tokens, self._scale.input),
            _scaled(later.output_tokens, self._scale.output),
            messages=later.extra.messages,
            history=history,
            session=session,
            turn=later.turn,
            fields=later.extra.fields,
        )

    def _due_s(self, row: int) -> float:
        return (self._trace.at_s[row] - self._trace.at_s[self._rows[0]]) / self._speed

    def _pieces(self, row: int) -> tuple[Shared, ...]:
        """The shared prefix of a prompt, scaled, without trailing pieces that no other request has."""
        trace, start = self._trace, self._trace.start(row)
        offset = trace.start(self._rows[0])
        end = trace.ends[row]
        while end > start and not self._named_again[end - 1 - offset]:
            end -= 1
        pieces, place, edge = [], 0, 0
        for at in range(start, end):
            place += trace.piece_tokens[at]
            next_edge = round(place * self._scale.input)
            if next_edge > edge:
                pieces.append(Shared(trace.keys[at], next_edge - edge))
            edge = next_edge
        return tuple(pieces)

    def _speed_of(self, span_s: float) -> float:
        """The divisor of times. The rate of n requests is that of their n − 1 gaps."""
        rate = self._scale.rate
        if rate is None:
            return self._scale.speed
        if span_s <= 0:
            raise ParameterError(
                f"All selected requests of {self._trace.path.name} arrive at once, so there is no rate to scale.",
                param="rate",
                hint="Select a longer part, or remove --rate.",
            )
        return rate * span_s / (len(self._rows) - 1)

    def _sessions(self) -> Iterator[int]:
        rows = self._rows
        for row, extra in self._trace.extras.items():
            if row in rows and extra.session is not None:
                yield extra.session

    def _check_scaled(self) -> None:
        """Raises ParameterError if the length of a given text would have to change."""
        if self._scale.input == 1:
            return
        kept = [extra for row, extra in self._trace.extras.items() if row in self._rows]
        later = [turn.extra for turns in self._later.values() for turn in turns]
        if any(extra.messages is not None for extra in kept + later):
            raise ParameterError(
                f"{self._trace.path.name} contains prompt texts, whose length cannot be scaled.",
                param="input scale",
                hint="Remove --input-scale.",
            )


_NOTHING = Extra()


def _scaled(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor)) if tokens else 0


def _named_again(trace: Trace, rows: range) -> NDArray[np.bool_]:
    """(pieces of the rows,) whether their key occurs more than once among them."""
    keys = np.asarray(trace.keys)[trace.start(rows[0]) : trace.ends[rows[-1]]]
    in_order = np.sort(keys)
    again = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    return np.isin(keys, again)
