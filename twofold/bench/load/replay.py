"""Replays a trace or a part of it, at the same or another speed, with the same or scaled lengths.

- The first selected request is due at 0; gaps and pauses are divided by the speed.
- Scaled lengths scale the boundaries of shared pieces too, so prompts that share a prefix still do.
- Pieces at the end of a shared prefix that no other selected request has are replaced by unique tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.base import (
    MAX_RATE,
    MAX_REQUESTS,
    MAX_SECONDS,
    Ask,
    EndedRequest,
    Prompt,
    Shared,
    can_continue,
    check_number,
    check_positive,
    check_whole,
    ended_s,
    history_after,
)
from twofold.bench.load.trace import Extra, Trace
from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class TracePart:
    """A selection: the first ``requests`` requests that arrive from ``from_s`` until ``until_s``, in seconds after the
    first request of the trace. A session is selected by its first turn. Raises ParameterError for invalid values."""

    from_s: float = 0.0
    until_s: float | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        check_number("from", self.from_s, 0, MAX_SECONDS)
        if self.until_s is not None:
            check_number("until", self.until_s, self.from_s, MAX_SECONDS)
        if self.requests is not None:
            check_whole("requests", self.requests, 1, MAX_REQUESTS)

    def rows(self, trace: Trace) -> range:
        """The numbers of the selected requests. Raises ParameterError if there are none."""
        since = np.asarray(trace.at_s) - trace.at_s[0]
        begin = int(np.searchsorted(since, self.from_s))
        end = len(trace) if self.until_s is None else int(np.searchsorted(since, self.until_s))
        rows = range(begin, end)[: self.requests]
        if not rows:
            message = f"{trace.path.name} has no request in that part of its {since[-1]:g} s."
            raise ParameterError(message, param="from", hint="Choose an earlier start or a later end.")
        return rows


@dataclass(frozen=True, slots=True)
class TraceScale:
    """Changes to a trace. ``speed`` 2 is twice as fast; ``rate`` sets the mean requests a second instead. ``input`` and
    ``output`` are factors of lengths, which stay at least 1. Raises ParameterError for invalid values."""

    speed: float = 1.0
    rate: float | None = None
    input: float = 1.0
    output: float = 1.0

    def __post_init__(self) -> None:
        check_positive("speed", self.speed, 1e6)
        check_positive("input scale", self.input, 1e4)
        check_positive("output scale", self.output, 1e4)
        if self.rate is not None:
            check_positive("rate", self.rate, MAX_RATE)
            if self.speed != 1:
                raise ParameterError("A trace is scaled by a speed or to a rate, not by both.", param="rate")


class TraceReplay:
    """``part`` of a trace, changed by ``scale``; at most ``max_open`` requests are open at once.

    ``prompt`` gives the messages of a request, for the history of later turns. Raises ParameterError for an invalid
    ``max_open``, an empty selection, a rate that cannot be reached, and scaled lengths of prompt texts.
    """

    def __init__(
        self,
        trace: Trace,
        prompt: Prompt,
        *,
        part: TracePart | None = None,
        scale: TraceScale | None = None,
        max_open: int | None = None,
    ) -> None:
        self._trace, self._prompt = trace, prompt
        self._part = TracePart() if part is None else part
        self._scale = TraceScale() if scale is None else scale
        self.max_open = None if max_open is None else check_whole("concurrency", max_open, 1, MAX_REQUESTS)
        self._rows = self._part.rows(trace)
        self._speed = self._speed_of(trace.at_s[self._rows[-1]] - trace.at_s[self._rows[0]])
        self._repeated = _repeated_keys(trace, self._rows)
        selected = [extra for row, extra in trace.extras.items() if row in self._rows]
        sessions = [extra.session for extra in selected if extra.session is not None]
        self._later = {session: trace.later[session] for session in sessions if session in trace.later}
        self._first_later = dict(
            zip(self._later, accumulate(map(len, self._later.values()), initial=len(self._rows)), strict=False)
        )
        selected += [turn.extra for turns in self._later.values() for turn in turns]
        if self._scale.input != 1 and any(extra.messages is not None for extra in selected):
            message = f"{trace.path.name} contains prompt texts, whose length cannot be scaled."
            raise ParameterError(message, param="input scale", hint="Remove --input-scale.")

    @property
    def duration_s(self) -> float:
        """When the last request is due that is not a later turn."""
        return self._due_s(self._rows[-1])

    def describe(self) -> Mapping[str, Any]:
        trace, rows, scale = self._trace, self._rows, self._scale
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
            "skipped_lines": trace.skipped,
            "first_skipped": trace.first_skipped or None,
            "unused_fields": sorted(trace.unused),
        }

    def begin(self) -> Iterator[Ask]:
        trace = self._trace
        for index, row in enumerate(self._rows):
            tokens, extra = (trace.input_tokens[row], trace.output_tokens[row]), trace.extras.get(row, Extra())
            yield self._ask(index, self._due_s(row), tokens, extra, shared=self._pieces(row))

    def follow(self, ended: EndedRequest, now_s: float) -> Ask | None:
        """The next turn of the session, if the request succeeded and its completion has text."""
        session, turn = ended.ask.session, ended.ask.turn
        turns = self._later.get(session, []) if session is not None else []
        if session is None or turn >= len(turns) or not can_continue(ended):
            return None
        later, index = turns[turn], self._first_later[session] + turn
        due_s = ended_s(ended, now_s) + later.after_s / self._speed
        tokens, history = (later.input_tokens, later.output_tokens), history_after(ended, self._prompt)
        return self._ask(index, due_s, tokens, later.extra, history=history, turn=later.turn)

    def _ask(self, index: int, due_s: float, tokens: tuple[int, int], extra: Extra, **rest: Any) -> Ask:
        """A request with scaled lengths; ``tokens`` are its unscaled input and output tokens."""
        factors = (self._scale.input, self._scale.output)
        inputs, outputs = (max(1, round(n * factor)) if n else 0 for n, factor in zip(tokens, factors, strict=True))
        rest |= {"messages": extra.messages, "session": extra.session, "fields": extra.fields}
        return Ask(index, due_s, inputs, outputs, **rest)

    def _due_s(self, row: int) -> float:
        return (self._trace.at_s[row] - self._trace.at_s[self._rows[0]]) / self._speed

    def _pieces(self, row: int) -> tuple[Shared, ...]:
        """The shared prefix of a prompt, scaled, without trailing pieces that no other request has."""
        trace, start = self._trace, self._trace.start(row)
        offset = trace.start(self._rows[0])
        end = trace.ends[row]
        while end > start and not self._repeated[end - 1 - offset]:
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
        """The divisor of times. The rate of n requests is n − 1 gaps in ``span_s``."""
        rate = self._scale.rate
        if rate is None:
            return self._scale.speed
        if span_s <= 0:
            message = f"All selected requests of {self._trace.path.name} arrive at once: their rate cannot be scaled."
            raise ParameterError(message, param="rate", hint="Select a longer part, or remove --rate.")
        return rate * span_s / (len(self._rows) - 1)


def _repeated_keys(trace: Trace, rows: range) -> NDArray[np.bool_]:
    """(number of pieces of the rows,): whether the key of a piece occurs more than once among them."""
    keys = np.asarray(trace.keys)[trace.start(rows[0]) : trace.ends[rows[-1]]]
    in_order = np.sort(keys)
    again = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    return np.isin(keys, again)
