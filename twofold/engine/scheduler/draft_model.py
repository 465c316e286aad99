"""What a draft model has computed of each sequence, and what its passes cost.

The draft model computes a token when it is about to propose others after it, not before: short completions and large
batches cost nothing. What it lacks of a sequence is computed in chunks beside steps that generate. Its keys and values
are in the sequence's blocks. A block's tag is a hash of the tokens up to its end if the draft model has computed all of
it, so a sequence finds what others have computed of a shared prefix.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from twofold.core.step import DRAFTED, BlockMove, DraftRows, MoveKind, SequenceStep, StepOutcome, StepPlan
from twofold.engine.scheduler.budget import StepBuilder
from twofold.engine.scheduler.feature import Gain, StepFeature
from twofold.engine.scheduler.sequence import Sequence, SequenceState
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel, StepWork

READY: Final = 16
"""Tokens that the draft model may lack and still propose in the same step."""
CHUNK: Final = 64
"""Most tokens of a sequence that are computed beside one step otherwise."""
MIN_CHUNK: Final = 16
ONE_ROW: Final = StepShape(1, 1, 0, 0)
FIRST_SHAPES: Final = (ONE_ROW, StepShape(16), StepShape(64), ONE_ROW, StepShape(16), StepShape(64), ONE_ROW)
"""Passes that are assumed to have been seen at first."""


@dataclass(slots=True)
class _Covered:
    """Tokens of a sequence that the draft model has computed, a hash for each of its first blocks, and the drafts of
    the step that was committed last."""

    tokens: int = 0
    hashes: list[int] = field(default_factory=list)
    drafted: int = 0


class ModelDrafts(StepFeature):
    """The draft model's part of the scheduler. A ``Speculator`` asks it, and comes after it.

    target   predicts steps of the target. Passes are learned in units of its shortest step, whose seconds follow the
             speed of the machine; at first they cost ``ratio`` of the same step of the target
    context  most tokens that the draft model attends to
    rows     most rows of a pass
    """

    def __init__(self, target: StepTimeModel, ratio: float, *, context: int, rows: int, block_size: int) -> None:
        self._target = target
        self._ratio = ratio
        self.context = context
        self._rows = rows
        self._block_size = block_size
        self._time: StepTimeModel | None = None
        self._covered: dict[int, _Covered] = {}
        self._tags: dict[int, int] = {}
        self._writing: set[int] = set()
        self._planned: dict[int, DraftRows] = {}

    def begin(self) -> None:
        """Begins to plan a step."""
        self._planned = {}
        self._writing = set()

    def extend(self, step: StepBuilder) -> float:
        """Adds the planned rows once."""
        while self._planned:
            number, rows = self._planned.popitem()
            if number in step.steps:
                step.steps[number] = replace(step.steps[number], draft=rows)
        return self.predict_steps(step.steps.values())

    def predict(self, shape: StepShape) -> float:
        """Seconds of a pass; 0 while the target's step times are unknown."""
        unit = self._target.predict(ONE_ROW)
        return (self._relative(unit).predict(shape) or 0.0) * unit if unit else 0.0

    def _relative(self, unit: float) -> StepTimeModel:
        """The model of passes, whose unit of time is now ``unit`` seconds."""
        if self._time is None:
            seen = [(shape, self._ratio * (self._target.predict(shape) or unit) / unit) for shape in FIRST_SHAPES]
            self._time = StepTimeModel(self._target.basis, seen)
        return self._time

    def lacking(self, sequence: Sequence) -> int:
        """Known and computed tokens that the draft model has not computed."""
        return sequence.computed - self._find(sequence).tokens

    def shape(self, sequence: Sequence, drafts: bool = True) -> StepShape:
        """The shape of a sequence's rows in a first pass."""
        start = self._find(sequence).tokens
        return StepShape().plus(start, sequence.computed - start + drafts, int(drafts))

    def chunk(self, sequence: Sequence, seconds: float) -> int:
        """Rows of a sequence beside a step of so many ``seconds``: they may double it."""
        start, rows = self._find(sequence).tokens, CHUNK
        while rows > MIN_CHUNK and self.predict(StepShape().plus(start, rows)) > seconds:
            rows //= 2
        return rows

    def place(self, sequence: Sequence, most: int, drafts: int = 0) -> bool:
        """Plans the next rows of a sequence, at most ``most``, and ``drafts`` after them. False if another sequence
        computes the same blocks in this step, or if no row is left."""
        assert sequence.tables is not None, "only a running sequence has blocks"
        start = self._find(sequence).tokens
        left = self._rows - sum(len(rows.tokens) + 1 for rows in self._planned.values())
        end = min(sequence.computed, start + min(most, left - 1))
        table, size = sequence.tables.blocks[0], self._block_size
        blocks = set(table[start // size : -(-(end + drafts) // size)])
        if end < sequence.computed if drafts else end <= start:
            return False
        if blocks & self._writing:
            return False
        self._writing |= blocks
        self._planned[sequence.sequence_id] = DraftRows(start, sequence.tokens[start:end])
        return True

    def planned(self, step: StepBuilder, moves: Iterable[BlockMove], now: float) -> None:
        """Blocks whose contents a step replaces lose their tags."""
        for move in moves:
            if move.kind is not MoveKind.OUT and not move.group:
                self._tags.pop(move.target, None)

    def advanced(self, gain: Gain) -> None:
        """Notes what the draft model computed in a step."""
        sequence, step = gain.sequence, gain.step
        covered = self._covered.get(sequence.sequence_id)
        if step.draft is None or covered is None or sequence.tables is None:
            return
        before = covered.tokens
        covered.drafted = step.model_drafts
        covered.tokens = step.draft.end
        if step.model_drafts:
            covered.tokens = min(step.start + step.model_drafts, sequence.computed)
        size, table = self._block_size, sequence.tables.blocks[0]
        for block in table[before // size : (step.start + step.model_drafts) // size + 1]:
            self._tags.pop(block, None)
        for number in range(before // size, covered.tokens // size):
            self._tags[table[number]] = self._hash(sequence, covered, number)

    def take_drafted(self, sequence: Sequence) -> int:
        """Drafts of the sequence in the step that was committed last."""
        covered = self._covered.get(sequence.sequence_id)
        if covered is None:
            return 0
        drafted, covered.drafted = covered.drafted, 0
        return drafted

    def left(self, sequence: Sequence, now: float) -> None:
        if sequence.state is not SequenceState.SWAPPED:
            self._covered.pop(sequence.sequence_id, None)

    def computed(self, plan: StepPlan, outcome: StepOutcome, work: StepWork) -> None:
        """Learns from the passes of a step."""
        unit = self._target.predict(ONE_ROW)
        for shape, each in zip(passes(plan.steps), outcome.draft_s, strict=True):
            if unit:
                self._relative(unit).observe(shape, each / unit)

    def predict_steps(self, steps: Iterable[SequenceStep]) -> float:
        """Seconds of the passes of a step."""
        return sum(map(self.predict, passes(steps)))

    def _find(self, sequence: Sequence) -> _Covered:
        """What is computed of a sequence, blocks included that others have computed."""
        covered = self._covered.get(sequence.sequence_id)
        if covered is None:
            covered = self._covered[sequence.sequence_id] = _Covered()
        assert sequence.tables is not None, "only a running sequence has blocks"
        size, table = self._block_size, sequence.tables.blocks[0]
        while not covered.tokens % size and covered.tokens + size <= sequence.computed:
            number = covered.tokens // size
            if self._tags.get(table[number]) != self._hash(sequence, covered, number):
                break
            covered.tokens += size
        return covered

    def _hash(self, sequence: Sequence, covered: _Covered, number: int) -> int:
        """A hash of the salt and of all tokens up to the end of block ``number``."""
        hashes, size = covered.hashes, self._block_size
        while len(hashes) <= number:
            before = hashes[-1] if hashes else hash(sequence.options.cache_key)
            start = len(hashes) * size
            hashes.append(hash((before, sequence.tokens[start : start + size].tobytes())))
        return hashes[number]


def passes(steps: Iterable[SequenceStep]) -> list[StepShape]:
    """The shapes of the draft model's passes in a step."""
    shapes: list[StepShape] = []
    for step in steps:
        if step.draft is None:
            continue
        drafts = step.model_drafts
        shapes += [StepShape()] * (max(drafts, 1) - len(shapes))
        shapes[0] = shapes[0].plus(step.draft.start, len(step.draft.tokens) + bool(drafts), bool(drafts))
        for number in range(1, drafts):
            shapes[number] = shapes[number].plus(step.start + number, 1, 1)
    return shapes


def placeholders(counts: Mapping[int, int]) -> dict[int, array[int]]:
    """DRAFTED tokens by sequence."""
    return {number: array("i", [DRAFTED]) * count for number, count in counts.items() if count}
