"""Which sequences of a step get draft tokens, and how many.

A draft row pays if it adds more to the expected tokens of a step, relatively, than to its predicted seconds:

    P(accepted) / expected tokens > Δ seconds / seconds

Rows are added in the order of P, which falls along a sequence, because a draft is accepted only if all before it are.
So the number of drafts maximises the expected tokens a second, for any odds and any cost of rows: in large batches, and
for texts that do not repeat, there are none.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from operator import add
from typing import Final, NamedTuple

from twofold.engine.draft.drafter import Proposal, SequenceDrafter
from twofold.engine.draft.index import PastTexts
from twofold.engine.draft.odds import MODEL, PREDICTED, Odds
from twofold.engine.scheduler.draft_model import READY, ModelDrafts, placeholders
from twofold.engine.scheduler.feature import Gain, StepFeature
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

MAX_SALTS: Final = 64
"""Cache salts whose completions are remembered: the least recently used one is forgotten."""
PAST_TOKENS: Final = 32_768
"""Tokens of past completions that are remembered for a salt."""
FEW: Final = 4
FEED: Final = 256
"""Tokens of a sequence that are indexed while a step is planned, if it has at most FEW sequences."""
FEED_AHEAD: Final = 2_048
"""Tokens that are indexed while a step is computed."""
MAX_PAUSE: Final = 15
"""After a step of more than FEW sequences in which no draft paid, none is looked for in at most this many steps."""
SURE: Final = 0.995
"""No draft is more probable than this."""
MOST_PASSES: Final = 16
"""Most tokens that the draft model proposes for a sequence in a step."""
USUAL_LENGTH: Final = 128.0
"""The usual length of a completion, before some have ended."""
USUAL_DECAY: Final = 0.1


@dataclass(slots=True)
class _SaltMemory:
    """The past completions and the odds of one cache salt: one tenant's texts are never proposed to another one."""

    past: PastTexts
    odds: Odds


@dataclass(slots=True)
class _Drafting:
    """A sequence's drafter, and its proposal for the planned step, if there is one."""

    drafter: SequenceDrafter
    proposal: Proposal | None = None


class _Allotment(NamedTuple):
    """Drafts of a step by sequence, the step's shape and seconds, and its expected tokens."""

    drafts: dict[int, array[int]]
    shape: StepShape
    seconds: float
    expected: float

    @property
    def rate(self) -> float:
        """Expected tokens a second."""
        return self.expected / self.seconds


class Speculator(StepFeature):
    """Drafts for the sequences of a scheduler. ``most`` limits the drafts of a sequence in a step. ``model`` is the
    draft model, None without one; it is a feature of the scheduler, too."""

    def __init__(self, step_time: StepTimeModel, most: int, model: ModelDrafts | None = None) -> None:
        self.model = model
        self._usual = USUAL_LENGTH
        self._pause = self._rest = 0
        self._step_time = step_time
        self._most = most
        self._drafting: dict[int, _Drafting] = {}
        self._salts: OrderedDict[str, _SaltMemory] = OrderedDict()
        self._ended: deque[tuple[str, array[int]]] = deque()

    def propose(self, decoding: Iterable[Sequence], rows: int) -> dict[int, array[int]]:
        """Draft tokens by sequence, for a step of these sequences with a row each and at most ``rows`` more rows."""
        if self.model is not None:
            self.model.begin()
        if rows < 1:
            return {}
        eligible, read, count = [], 0, 0
        for sequence in decoding:
            count += 1
            read += sequence.computed + 1
            if sequence.options.speculation and sequence.speculates:
                eligible.append(sequence)
        shape = StepShape(count, count, read, read)
        seconds = self._step_time.predict(shape)
        if seconds is None or not eligible:
            return {}
        few = len(eligible) <= FEW
        if not few and self._rest:
            self._rest -= 1
            return {}
        more = self._step_time.predict(shape.plus_row(eligible[0].computed + 1)) or 0.0
        least = shape.rows * (more / seconds - 1)
        if least > SURE:
            return {}
        if few:
            self.overlap(())
        found = []
        willing = []
        for sequence in eligible:
            most = min(self._most, sequence.limit - sequence.known - 1)
            if most < 1:
                continue
            willing.append(sequence)
            proposal = self._proposal(sequence, least, FEED if few else 0)
            if proposal is not None:
                found.append((sequence, proposal, min(most, len(proposal))))
        allotted = self._allot(found, rows, shape, seconds)
        self._pause = 0 if allotted.drafts else min(2 * self._pause + 1, MAX_PAUSE)
        self._rest = self._pause
        if self.model is None or not willing:
            return allotted.drafts
        return self._with_model(
            self.model, willing, found, rows, _Allotment({}, shape, seconds, float(count)), allotted
        )

    def advanced(self, gain: Gain) -> None:
        """Compares the proposal for the step with the tokens that became known."""
        sequence, tokens = gain.sequence, gain.tokens
        drafting = self._drafting.get(sequence.sequence_id)
        if drafting is None or not tokens:
            return
        drafted = 0 if self.model is None else self.model.take_drafted(sequence)
        for index in range(min(len(tokens), drafted)):
            drafting.drafter.learn_model(index + 1 < len(tokens))
        if drafting.proposal is None:
            drafting.drafter.lose()
        else:
            if drafting.proposal.kind == PREDICTED:
                sequence.record.predict(gain.step.drafts - gain.step.model_drafts, len(tokens) - 1)
            drafting.drafter.learn(drafting.proposal, tokens)
            drafting.proposal = None

    def left(self, sequence: Sequence, now: float) -> None:
        """Forgets a sequence that ended; its completion may be proposed to others of its salt."""
        if sequence.finish_reason is None:
            return
        if self.model is not None:
            self._usual += USUAL_DECAY * (sequence.generated - self._usual)
        if self._drafting.pop(sequence.sequence_id, None) is not None:
            self._ended.append((sequence.options.cache_key, sequence.tokens[sequence.prompt_length :]))

    def overlap(self, running: Iterable[Sequence]) -> None:
        """Indexes known tokens."""
        while self._ended:
            salt, completion = self._ended.popleft()
            self._memory(salt).past.add(completion)
        left = FEED_AHEAD
        for sequence in running:
            drafting = self._drafting.get(sequence.sequence_id)
            if drafting is not None and left > 0:
                left -= drafting.drafter.feed(sequence.tokens, left)

    def _proposal(self, sequence: Sequence, least: float, feed: int) -> Proposal | None:
        drafting = self._drafting.get(sequence.sequence_id)
        if drafting is None:
            memory = self._memory(sequence.options.cache_key)
            sampled = sequence.tokens[sequence.prompt_length :]
            drafter = SequenceDrafter(sequence.options.prediction, memory.past, memory.odds, sampled)
            drafting = self._drafting[sequence.sequence_id] = _Drafting(drafter)
        if feed:
            drafting.drafter.feed(sequence.tokens, feed)
        forced: Tokens[int] = () if sequence.constraint is None else sequence.constraint.forced
        drafting.proposal = drafting.drafter.propose(sequence.tokens, forced, least)
        return drafting.proposal

    def _memory(self, salt: str) -> _SaltMemory:
        memory = self._salts.get(salt)
        if memory is None:
            memory = self._salts[salt] = _SaltMemory(PastTexts(PAST_TOKENS), Odds())
            if len(self._salts) > MAX_SALTS:
                self._salts.popitem(last=False)
        else:
            self._salts.move_to_end(salt)
        return memory

    def _allot(
        self, found: list[tuple[Sequence, Proposal, int]], rows: int, shape: StepShape, seconds: float
    ) -> _Allotment:
        """Adds rows in the order of their probability while they pay."""
        if not found:
            return _Allotment({}, shape, seconds, float(shape.rows))
        counts = [0] * len(found)
        heap = [(-self._chance(sequence, proposal, 0), i) for i, (sequence, proposal, _) in enumerate(found)]
        heapq.heapify(heap)
        expected = float(shape.rows)
        while heap and rows:
            negative, i = heap[0]
            sequence, proposal, most = found[i]
            chance = -negative
            if not self._pays(chance, sequence, counts[i] + 1, expected, shape, seconds):
                break
            shape = shape.plus_row(sequence.computed + counts[i] + 1)
            seconds = self._step_time.predict(shape) or seconds
            expected += chance
            counts[i] += 1
            rows -= 1
            if counts[i] < most:
                heapq.heapreplace(heap, (negative * self._chance(sequence, proposal, counts[i]), i))
            else:
                heapq.heappop(heap)
        drafts = {
            sequence.sequence_id: proposal.tokens(count)
            for (sequence, proposal, _), count in zip(found, counts, strict=True)
            if count
        }
        return _Allotment(drafts, shape, seconds, expected)

    def _with_model(
        self,
        model: ModelDrafts,
        willing: list[Sequence],
        found: list[tuple[Sequence, Proposal, int]],
        rows: int,
        plain: _Allotment,
        others: _Allotment,
    ) -> dict[int, array[int]]:
        """The drafts of the ``others`` alone, or with the draft model's, whichever makes more tokens a second.

        The draft model is asked where the others propose nothing, or a less probable token. A sequence that it has not
        computed far enough gets rows for that, if what it would save is worth them.
        """
        first = {sequence.sequence_id: self._chance(sequence, proposal, 0) for sequence, proposal, _ in found}
        ready: list[Sequence] = []
        behind: list[Sequence] = []
        for sequence in willing:
            chance = self._odds(sequence).chances[MODEL]
            asks = sequence.constraint is None and first.get(sequence.sequence_id, 0.0) < chance
            if asks and sequence.known + 1 < model.context:
                (ready if model.lacking(sequence) <= READY else behind).append(sequence)
        chosen = others
        if ready:
            asked = {sequence.sequence_id for sequence in ready}
            rest = [each for each in found if each[0].sequence_id not in asked]
            base = self._allot(rest, rows, plain.shape, plain.seconds)
            best = self._deepest(model, ready, rows - (base.shape.rows - plain.shape.rows), base)
            if best.rate > others.rate:
                chosen = best
        drafts = dict(chosen.drafts)
        for sequence in ready:
            count = len(drafts.get(sequence.sequence_id, ())) if chosen is not others else 0
            if not count:
                self._odds(sequence).fade(MODEL)
            elif not model.place(sequence, READY, count):
                del drafts[sequence.sequence_id]
        for sequence in behind:
            if self._catches_up(model, sequence, plain):
                model.place(sequence, model.chunk(sequence, chosen.seconds))
        return drafts

    def _deepest(
        self, model: ModelDrafts, ready: list[Sequence], rows: int, base: _Allotment, *, behind: bool = False
    ) -> _Allotment:
        """The best number of drafts of the draft model for each of ``ready``, at most ``rows`` in all: as many passes.
        If they are ``behind``, what the draft model lacks of them does not count."""
        shape, expected, passes, left = base.shape, base.expected, 0.0, rows
        best, counts = base, dict.fromkeys((sequence.sequence_id for sequence in ready), 0)
        chances = {sequence.sequence_id: 1.0 for sequence in ready}
        for number in range(1, min(self._most, MOST_PASSES) + 1):
            able = [each for each in ready if each.known + number < min(each.limit, model.context)]
            left -= len(able)
            if not able or left < 0:
                break
            drafted = StepShape()
            for sequence in able:
                key = sequence.sequence_id
                chances[key] *= min(self._odds(sequence).chances[MODEL], SURE)
                expected += chances[key]
                counts[key] = number
                shape = shape.plus_row(sequence.computed + number)
                only = StepShape().plus(sequence.computed + number - 1, 1, 1)
                first = number == 1 and not behind
                drafted = StepShape(*map(add, drafted, model.shape(sequence) if first else only))
            passes += model.predict(drafted)
            seconds = (self._step_time.predict(shape) or base.seconds) + passes
            if expected / seconds > best.rate:
                best = _Allotment(base.drafts | placeholders(counts), shape, seconds, expected)
        return best

    def _catches_up(self, model: ModelDrafts, sequence: Sequence, plain: _Allotment) -> bool:
        """Whether the draft model's drafts would save more time than what it lacks of the sequence costs, if as many
        tokens follow as usual, or as were generated."""
        best = self._deepest(model, [sequence], MOST_PASSES, plain, behind=True)
        ahead = max(self._usual - sequence.generated, sequence.generated)
        saved = (1 / plain.rate - 1 / best.rate) * min(ahead, sequence.limit - sequence.known)
        return saved > model.predict(model.shape(sequence, drafts=False))

    def _odds(self, sequence: Sequence) -> Odds:
        return self._drafting[sequence.sequence_id].drafter.odds

    def _chance(self, sequence: Sequence, proposal: Proposal, index: int) -> float:
        return min(self._odds(sequence).chances[proposal.kind_at(index)], SURE)

    def _pays(
        self, chance: float, sequence: Sequence, number: int, expected: float, shape: StepShape, seconds: float
    ) -> bool:
        """Whether the sequence's draft ``number`` adds more to the expected tokens than to the seconds."""
        more = self._step_time.predict(shape.plus_row(sequence.computed + number))
        return more is not None and chance * seconds > expected * (more - seconds)
