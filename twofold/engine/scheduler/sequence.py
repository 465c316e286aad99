"""The life of a sequence: one list of tokens, four cursors, four states.

    cached     tokens whose keys and values were found in a cache
    computed   tokens whose keys and values are in the sequence's blocks, or were when it was swapped out
    known      tokens of the prompt and sampled tokens
    limit      maximum number of tokens: the prompt with max_tokens, or the context

    state      may become                     blocks             cursors
    WAITING    RUNNING, FINISHED              none               cached = computed = 0
    RUNNING    WAITING, SWAPPED, FINISHED     up to computed     computed and known move
    SWAPPED    RUNNING, FINISHED              on the host        at rest
    FINISHED   —                              none               at rest

Laws, asserted where a cursor moves:
    1. cached ≤ computed ≤ known ≤ limit.
    2. A step advances ``computed`` by at least 1 and never past ``known``. It samples only when it reaches ``known``,
       and only sampling advances ``known``. So there is no prefill path and no decode path. Drafts are not known:
       accepted ones become known and computed together.
    3. Keys and values of the last possible token are never needed if it is sampled: limit − 1 positions suffice.
    4. A sequence has a finish reason exactly when it is FINISHED.
    5. Preemption changes no result, and no result is reported twice. RUNNING → WAITING keeps all known tokens; rows
       whose log-probabilities or hidden states were reported are computed again without reporting them.

Candidates (beam search) make no token known: the sequence rests until ``extend`` adds one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from enum import Enum
from typing import Final

from twofold.core.params import SamplingParams
from twofold.core.record import SequenceRecord
from twofold.core.request import RequestOptions
from twofold.core.step import (
    NO_TOKENS,
    SAMPLED_TOKEN,
    FinishReason,
    Pooling,
    SamplingSpec,
    SequenceOutcome,
    SequenceStart,
    SequenceStep,
    TokenConstraint,
    TokenEvent,
)
from twofold.core.timeline import TokensMade, origins
from twofold.engine.kv.block_tables import BlockTables, Swapped
from twofold.engine.scheduler.queue import TenantAccount
from twofold.engine.scheduler.trace import RequestTrace


class SequenceState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


TRANSITIONS: Final = {
    SequenceState.WAITING: (SequenceState.RUNNING, SequenceState.FINISHED),
    SequenceState.RUNNING: (SequenceState.WAITING, SequenceState.SWAPPED, SequenceState.FINISHED),
    SequenceState.SWAPPED: (SequenceState.RUNNING, SequenceState.FINISHED),
    SequenceState.FINISHED: (),
}


@dataclass(eq=False)
class Sequence:
    """One prompt and its completion.

    options         the options of its request, which arrived at ``arrival`` (seconds on the engine's clock)
    record          counts its work and its waits
    end_ids         the model's end-of-sequence tokens
    reports_prompt  its steps also request the prompt's log-probabilities
    samples         whether it samples; otherwise it finishes when its prompt is computed
    constraint      restricts the completion; ``append`` advances it
    parent          a sequence with the same prompt, whose blocks this one will share
    pooling         its steps request hidden states instead of samples
    candidates      its steps request this many candidates instead of a sample
    trace           notes the steps of its request, if that asks for its timeline
    request_id      of its request, for lanes

    ``decodes``: at most its newest token is not computed yet. Otherwise it computes its prompt, or tokens again after a
    preemption. ``paced_from``: its TPOT schedule starts at this time, with this number of generated tokens.
    ``account``: of its tenant, once it has run.
    """

    sequence_id: int
    prompt: InitVar[Iterable[int]]
    params: SamplingParams
    _: KW_ONLY
    seed: int
    limit: int
    options: RequestOptions
    arrival: float
    record: SequenceRecord
    end_ids: InitVar[Iterable[int]] = ()
    reports_prompt: bool = False
    samples: bool = True
    constraint: TokenConstraint | None = None
    parent: Sequence | None = None
    pooling: Pooling | None = None
    candidates: int = 0
    trace: RequestTrace | None = None
    request_id: str = ""

    def __post_init__(self, prompt: Iterable[int], end_ids: Iterable[int]) -> None:
        self.samples = self.samples and self.pooling is None
        self.tokens = array("i", prompt)
        self.prompt_length = len(self.tokens)
        self.state = SequenceState.WAITING
        self.cached = 0
        self.computed = 0
        self.resting = False
        self._passed = False
        self._forced: list[int] = []
        self.paused = False
        self.deferred = False
        self.decodes = False
        self.finish_reason: FinishReason | None = None
        self.stop_token: int | None = None
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.paced_from: tuple[float, int] | None = None
        self.account = TenantAccount()
        self.tables: BlockTables | None = None
        self.swapped: Swapped | None = None
        self._reached = 0
        ends = frozenset() if self.params.ignore_eos else frozenset(end_ids)
        self._stops = frozenset(self.params.stop_tokens) | ends
        self._suppressed = tuple(sorted(self._stops))
        self._check()

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens known but not computed."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def positions_needed(self) -> int:
        """The maximum number of positions whose keys and values it stores (law 3)."""
        return self.limit - 1 if self.samples else self.limit

    @property
    def scores_prompt(self) -> bool:
        """Whether its next rows each need logits, for the prompt's log-probabilities."""
        return self.reports_prompt and self._reached <= self.computed < self.prompt_length

    @property
    def samples_next(self) -> bool:
        """Whether it samples once all known tokens are computed."""
        return self.samples and not self.resting

    @property
    def speculates(self) -> bool:
        """Whether draft tokens may follow the row of its newest token."""
        return self.pending == 1 and self.samples_next and not (self.candidates or self.deferred or self.scores_prompt)

    @property
    def waits(self) -> bool:
        """Whether its last sample was deferred and its token mask is still not ready."""
        return self.deferred and self.constraint is not None and not self.constraint.ready

    @property
    def max_cached(self) -> int:
        """The number of its first tokens that may come from a cache: rows whose results are reported are computed."""
        if self._reports_rows:
            return min(self._reached, self.known - 1)
        return self.known - 1

    @property
    def longest_chunk(self) -> int:
        """The maximum number of rows of its next step. Rows with and without reported results are not mixed (law 5)."""
        if self._reports_rows and self.computed < self._reached:
            return self._reached - self.computed
        if self.scores_prompt:
            return self.prompt_length - self.computed  # tokens of the completion may follow: another engine made them
        return self.known - self.computed

    @property
    def _reports_rows(self) -> bool:
        return self.reports_prompt or self.pooling == "mean"

    def logit_rows(self, rows: int) -> int:
        """The number of its next ``rows`` rows that need logits."""
        if self.scores_prompt:
            return rows
        return 1 if rows == self.pending and self.samples_next else 0

    def admit(self, tables: BlockTables, computed: int) -> None:
        """WAITING → RUNNING; the blocks have the keys and values of its first ``computed`` tokens."""
        self._become(SequenceState.RUNNING)
        self.tables = tables
        self.cached = self.computed = computed
        self.decodes = self.pending == 1
        self._check()

    def resume(self, tables: BlockTables) -> None:
        """SWAPPED → RUNNING, where it stopped."""
        self._become(SequenceState.RUNNING)
        self.tables, self.swapped = tables, None

    def preempt(self) -> None:
        """RUNNING → WAITING: all tokens will be computed again."""
        self._become(SequenceState.WAITING)
        self.tables = None
        self.cached = self.computed = 0
        self.decodes = False

    def swap_out(self, swapped: Swapped) -> None:
        """RUNNING → SWAPPED."""
        self._become(SequenceState.SWAPPED)
        self.tables, self.swapped = None, swapped
        self.record.swapped += swapped.blocks

    def next_step(self, rows: int, drafts: Iterable[int] = ()) -> SequenceStep:
        """The step that computes its next ``rows`` tokens, and then the proposed tokens ``drafts``."""
        assert self.tables is not None, "a sequence without blocks cannot take a step"
        start, end, scored = self.computed, self.computed + rows, NO_TOKENS
        tokens, last, proposed = self.tokens[start:end], end == len(self.tokens), array("i", drafts)
        samples = 1 + len(proposed) if last and self.samples and not self.resting else 0
        assert samples or not proposed, "drafts follow the last known token of a sequence that samples"
        if self.reports_prompt and self.scores_prompt:
            scored = self.tokens[start + 1 : min(end + 1, self.prompt_length)]
        begin = self._start() if self.tables.sent is None else None
        return SequenceStep(
            self.sequence_id,
            tokens + proposed,
            start,
            self.tables.take_changes(),
            samples,
            len(proposed),
            self.candidates if samples else 0,
            scored,
            self.params.prompt_logprobs or 0,
            self._pooled(last) if self.pooling else None,
            self.decodes,
            begin,
        )

    def following(self, step: SequenceStep) -> SequenceStep | None:
        """Its next step, planned while ``step`` computes its last known token, which the runner replaces (``SAMPLED``).
        None if a sampled token that does not end the sequence may change the step, or if it needs a new block."""
        tables, end = self.tables, step.end
        if not (step.decode and step.samples == 1) or self.constraint is not None or self.candidates:
            return None
        if tables is None or not end == len(self.tokens) < min(self.limit - 1, tables.room, tables.slides):
            return None
        return SequenceStep(
            self.sequence_id, SAMPLED_TOKEN, end, samples=1, alternatives=step.alternatives, decode=True
        )

    def prepared(self, step: SequenceStep) -> SequenceStep:
        """A step that was planned ahead, with the changes of the block tables since."""
        assert self.tables is not None, "a sequence without blocks cannot take a step"
        assert step.start == self.computed, "it was made for another row"
        assert self.pending == 1, "it was made for the newest token"
        changes = self.tables.take_changes()
        return replace(step, changes=changes) if changes else step

    def advance(self, rows: int, *, deferred: bool = False) -> None:
        """``rows`` more known tokens are computed; the last one must be computed again if its sample was
        ``deferred``."""
        assert rows >= 1, "a step computes at least one token"
        self.deferred = deferred
        rows -= deferred
        self.computed += rows
        self._reached = max(self._reached, self.computed)
        self.decodes = self.pending <= 1
        self._check()

    def pass_on(self, result: SequenceOutcome) -> None:
        """Passes the sampled tokens to the constraint: its host works on them while other sequences take theirs."""
        if self.constraint is not None and result.tokens:
            if self.trace is not None:
                masks = self.constraint.masks()[: len(result.tokens)]
                self._forced = [place for place, mask in enumerate(masks) if mask is not None and _allows_one(mask)]
            self.constraint.advance(result.tokens)
            self._passed = True

    def append(self, sampled: Iterable[int]) -> tuple[int, ...]:
        """Makes sampled tokens known until one ends the sequence; returns those that became known. All but the last are
        accepted drafts, which are computed already."""
        assert self.pending == 0, "sampling needs every known token computed"
        sampled = tuple(sampled)
        if self.constraint is not None and not self._passed:
            self.constraint.advance(sampled)
        self._passed = False
        taken = 0
        for token in sampled:
            assert len(self.tokens) < self.limit, "no token can follow the last possible one"
            self.computed = len(self.tokens)
            self.tokens.append(token)
            taken += 1
            reason = self._ending(token, last=taken == len(sampled))
            if reason is not None:
                self.finish(reason)
                break
        self._reached = max(self._reached, self.computed)
        return sampled[:taken]

    def take(self, result: SequenceOutcome) -> tuple[int, ...]:
        """Applies the outcome of a step; returns the tokens that became known. The sequence may rest or end."""
        if result.error is not None:
            self.finish("abort")
        elif result.complete:
            self.finish(self._formed)
        elif result.tokens:
            return self.append(result.tokens)
        elif result.candidates:
            self.rest()
        elif not self.samples and self.pending == 0:
            self.finish("length" if self.pooling is None else "stop")
        return ()

    def event(self, tokens: tuple[int, ...], result: SequenceOutcome, now: float, step: int) -> TokenEvent | None:
        """The event of step ``step``, in which ``tokens`` became known; None without any result."""
        has_result = tokens or result.prompt_logprobs or result.candidates or result.hidden is not None
        if not has_result and self.state is not SequenceState.FINISHED:
            return None
        made = None
        if self.trace is not None and tokens:
            made = TokensMade(now - self.arrival, step, origins(len(result.tokens), len(tokens), self._forced))
        return TokenEvent(
            self.sequence_id,
            tokens,
            result.logprobs[: len(tokens)],
            result.prompt_logprobs,
            self.finish_reason,
            self.stop_token,
            result.candidates,
            result.hidden,
            result.error,
            made,
        )

    def rest(self) -> None:
        """Waits with candidates until ``extend``."""
        assert self.pending == 0, "sampling needs every known token computed"
        self.resting = True

    def extend(self, token: int) -> None:
        """Makes a chosen candidate known; there must be room for one more token."""
        assert self.resting, "only a sequence that gave candidates can be extended"
        assert self.known + 1 < self.limit, "nothing could follow this token"
        self.tokens.append(token)
        self.resting = False

    def finish(self, reason: FinishReason) -> None:
        """→ FINISHED. The caller releases its blocks."""
        self._become(SequenceState.FINISHED)
        self.finish_reason = reason

    def _ending(self, token: int, *, last: bool) -> FinishReason | None:
        """Why the sequence ends with this token, the ``last`` one that was sampled or one before it; None if it
        continues. Only the last token can complete a structured output."""
        if token in self._stops and self.generated > self.params.min_tokens:
            self.stop_token = token
        elif self.constraint is None or not last or not self.constraint.finished:
            return "length" if len(self.tokens) == self.limit else None
        return self._formed

    @property
    def _formed(self) -> FinishReason:
        """The finish reason of a completion that its constraint ended."""
        return "length" if self.constraint is not None and self.constraint.shortened else "stop"

    def _pooled(self, last: bool) -> Pooling | None:
        if self.pooling == "mean":
            return "mean" if self.computed >= self._reached else None
        return self.pooling if last else None

    def _start(self) -> SequenceStart:
        if not self.samples:
            return SequenceStart()
        params = self.params
        until = self.prompt_length + params.min_tokens if params.min_tokens else 0
        sampling = SamplingSpec(params, self.seed, self.prompt_length, self._suppressed if until else (), until)
        return SequenceStart(sampling, self.tokens[: self.computed]) if params.penalises else SequenceStart(sampling)

    def _become(self, state: SequenceState) -> None:
        assert state in TRANSITIONS[self.state], f"a {self.state.value} sequence cannot become {state.value}"
        self.state = state

    def _check(self) -> None:
        assert 0 <= self.cached <= self.computed <= len(self.tokens) <= self.limit, (
            f"cached {self.cached} ≤ computed {self.computed} ≤ known {self.known} ≤ limit {self.limit} is broken"
        )


def _allows_one(mask: memoryview) -> bool:
    """Whether a mask of 32-bit words has one bit."""
    return int.from_bytes(mask.tobytes(), "little").bit_count() == 1
