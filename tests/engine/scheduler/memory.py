"""KV blocks whose contents can be checked: each position holds a trace of all tokens up to it."""

from __future__ import annotations

from collections.abc import Sequence as Row

from twofold.core.step import MoveKind, SequenceStep, StepPlan
from twofold.engine.scheduler.sequence import Sequence


class BlockMemory:
    """Does a plan's moves and writes its rows; asserts that every row finds what it reads.

    ``windows`` are those of the groups, None for one that sees all. With ``states`` a last group has a state for each
    sequence: the trace of the tokens that it has seen.
    """

    def __init__(self, windows: Row[int | None], block_size: int, *, states: bool = False) -> None:
        self._windows = windows
        self._states = states
        self._block_size = block_size
        self._blocks: dict[tuple[int, int], dict[int, int]] = {}
        self._host: dict[tuple[int, int], dict[int, int]] = {}
        self._tables: dict[int, list[list[int]]] = {}

    def run(self, plan: StepPlan, sequences: dict[int, Sequence]) -> None:
        for move in plan.moves:
            source = self._host if move.kind is MoveKind.IN else self._blocks
            target = self._host if move.kind is MoveKind.OUT else self._blocks
            target[move.group, move.target] = dict(source.get((move.group, move.source), {}))
        for number in plan.ended:
            self._tables.pop(number, None)
        for step in plan.steps:
            self._change(step)
        traces = {step.sequence_id: _traces(sequences[step.sequence_id], step) for step in plan.steps}
        for step in plan.steps:
            self._write(step, traces[step.sequence_id])
        for step in plan.steps:
            self._read(step, traces[step.sequence_id])

    def _change(self, step: SequenceStep) -> None:
        """Keeps block tables as a runner does: what changed is all that it is sent."""
        if step.begin is not None:
            self._tables[step.sequence_id] = [[] for _ in range(len(self._windows) + self._states)]
        for change in step.changes:
            self._tables[step.sequence_id][change.group][change.first :] = change.blocks

    def _write(self, step: SequenceStep, traces: list[int]) -> None:
        tables = self._tables[step.sequence_id]
        if self._states:
            (slot,) = tables[-1]
            state = len(self._windows), slot
            if step.start:
                assert self._blocks[state] == {0: traces[step.start - 1]}, "a state has seen other tokens"
            self._blocks[state] = {0: traces[-1]}
        for position in range(step.start, step.start + len(step.tokens)):
            for group, table in enumerate(tables[: len(self._windows)]):
                block = self._blocks.setdefault((group, table[position // self._block_size]), {})
                block[position % self._block_size] = traces[position]

    def _read(self, step: SequenceStep, traces: list[int]) -> None:
        last = step.start + len(step.tokens) - 1
        tables = self._tables[step.sequence_id][: len(self._windows)]
        for group, (table, window) in enumerate(zip(tables, self._windows, strict=True)):
            first = 0 if window is None else max(step.start - window + 1, 0)
            for position in range(first, last + 1):
                block = self._blocks[group, table[position // self._block_size]]
                found = block.get(position % self._block_size)
                assert found == traces[position], f"sequence {step.sequence_id} reads another's position {position}"


def _traces(sequence: Sequence, step: SequenceStep) -> list[int]:
    trace, traces = hash(sequence.options.cache_salt), []
    for token in sequence.tokens[: step.start + len(step.tokens)]:
        trace = hash((trace, token))
        traces.append(trace)
    return traces
