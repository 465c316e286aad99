"""Seconds of steps with drafts and with compressed prompts, in the mean; the scheduler's rules stay as they are.

    drafts       a turn checks γ drafts of each decoding sequence and yields E tokens of it. So a step of one token
                 takes turn − (1 − 1/E) · (turn without its prompts), with the γ ≥ 0 that makes it shortest
    compression  each computed prompt token stands for 1/keep tokens that were scored

Tokens of a turn arrive together; here they are spread evenly: TPOT is that of drafts, gaps between tokens are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twofold.bench.load.base import Outcome
from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec, read_positions, visible
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.speculation import MAX_DRAFTS, tokens_a_turn
from twofold.planner.predict.steps import StepPredictor, StepSize
from twofold.planner.simulate.fleet import Source
from twofold.planner.simulate.jobs import SimulatedJob
from twofold.planner.simulate.setting import StepSeconds


@dataclass(frozen=True, slots=True)
class SimulatedDrafts:
    """Up to ``most`` draft tokens a step, each accepted with this rate if those before it were; by ``draft``, or (None)
    looked up in the text at no cost."""

    acceptance: float
    most: int = MAX_DRAFTS
    draft: ModelSpec | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1:
            raise ParameterError(
                f"The acceptance rate must be from 0 to 1, not {self.acceptance:g}.", param="acceptance"
            )
        if not 1 <= self.most <= 16:
            raise ParameterError(f"Draft tokens per step must be from 1 to 16, not {self.most}.", param="drafts")


class SpeculativeSteps:
    """Seconds of steps with drafts, from those of ``seconds`` without them."""

    def __init__(
        self,
        seconds: StepSeconds,
        drafts: SimulatedDrafts,
        machine: Machine,
        constants: Constants,
        setup: Setting = PLAIN,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:
        self._seconds, self._drafts, self._by, self._windows = seconds, drafts, constants, windows
        self._draft = None if drafts.draft is None else StepPredictor.of(drafts.draft, machine, setup)
        self._tokens = [tokens_a_turn(drafts.acceptance, count) for count in range(drafts.most + 1)]

    def __call__(self, size: StepSize) -> float:
        """Seconds in which each decoding sequence gets one token, and the step's prompts are computed."""
        plain = self._seconds(size)
        decodes = self._decodes(size)
        if not decodes.rows:
            return plain
        draft_s = 0.0 if self._draft is None else self._drafting_s(self._draft, decodes)
        return min(plain, *(self._turn(size, decodes, count, draft_s) for count in range(1, self._drafts.most + 1)))

    def _turn(self, size: StepSize, decodes: StepSize, drafts: int, draft_s: float) -> float:
        whole = self._seconds(_with_drafts(size, decodes, drafts)) + drafts * draft_s
        alone = whole
        if size.prompts:
            alone = self._seconds(_with_drafts(decodes, decodes, drafts)) + drafts * draft_s
        return whole - (1 - 1 / self._tokens[drafts]) * alone

    def _decodes(self, size: StepSize) -> StepSize:
        """The step without its prompts."""
        if not size.prompts:
            return size
        spans = [(count, span.cached, span.new) for count, span in size.prompts]
        rows = size.rows - sum(count * new for count, _, new in spans)
        attended, read = (
            tuple(
                total - sum(count * of(start, new, window) for count, start, new in spans)
                for total, window in zip(totals, self._windows, strict=True)
            )
            for totals, of in ((size.attended, visible), (size.read, read_positions))
        )
        return StepSize(rows, rows, rows, attended, read)

    def _drafting_s(self, draft: StepPredictor, decodes: StepSize) -> float:
        """Seconds of a step of the draft model, whose sequences are as long."""
        context = max(1, decodes.read[0] // decodes.sequences)
        return draft.demand([(decodes.sequences, SequenceRows(1, context - 1))]).seconds(self._by)


def _with_drafts(size: StepSize, decodes: StepSize, drafts: int) -> StepSize:
    """``size`` with so many more rows for each of its ``decodes``; each sees as much as the row before it, and one."""
    more = drafts * decodes.rows
    behind = drafts * (drafts + 1) // 2 * decodes.rows
    return StepSize(
        size.rows + more,
        size.logit_rows + more,
        size.sequences,
        tuple(total + drafts * own + behind for total, own in zip(size.attended, decodes.attended, strict=True)),
        tuple(total + more for total in size.read),
        size.prompts,
    )


@dataclass(frozen=True, slots=True)
class SimulatedCompression:
    """``keep``: share of each prompt's own tokens that is left, after ``scorer`` has read all of them."""

    keep: float
    scorer: ModelSpec

    def __post_init__(self) -> None:
        if not 0 < self.keep < 1:
            raise ParameterError(f"keep must be between 0 and 1, not {self.keep:g}.", param="keep")

    def kept(self, prompt: int, shared: int) -> int:
        """Tokens left of a prompt whose first ``shared`` tokens stay as they are; at least one more than these."""
        return shared + max(1, round((prompt - shared) * self.keep)) if prompt > shared else prompt


class CompressedSteps:
    """Seconds of steps whose prompts were scored, on one device; chunks of one row count as decoding."""

    def __init__(
        self, seconds: StepSeconds, compression: SimulatedCompression, machine: Machine, constants: Constants
    ) -> None:
        self._seconds, self._keep, self._by = seconds, compression.keep, constants
        self._scorer = StepPredictor.of(compression.scorer, machine)

    def __call__(self, size: StepSize) -> float:
        """Seconds of the step and of scoring what its prompts stood for."""
        if not size.prompts:
            return self._seconds(size)
        spans = []
        for count, span in size.prompts:
            rows = max(1, round(span.new / self._keep))
            spans.append((count, SequenceRows(rows, round(span.cached / self._keep), rows)))
        return self._seconds(size) + self._scorer.demand(spans).seconds(self._by)


class CompressedSource:
    """The jobs of a source in which none follows another, with their prompts compressed."""

    def __init__(self, source: Source, compression: SimulatedCompression) -> None:
        self._source, self._compression = source, compression
        if source.follows:
            raise ParameterError(
                "Conversations are not compressed: each turn repeats the one before it from the prefix cache.",
                param="keep",
                hint="Remove --keep, or the later turns.",
            )

    @property
    def follows(self) -> bool:
        return False

    @property
    def max_open(self) -> int | None:
        return self._source.max_open

    def begin(self) -> Iterator[SimulatedJob]:
        """The jobs, ascending in time."""
        for job in self._source.begin():
            shared = sum(piece.tokens for piece in job.pieces)
            yield job._replace(prompt=self._compression.kept(job.prompt, min(shared, job.prompt)))

    def ended(self, job: SimulatedJob, outcome: Outcome, ended_s: float) -> SimulatedJob | None:
        """None: nothing follows."""
        return self._source.ended(job, outcome, ended_s)
