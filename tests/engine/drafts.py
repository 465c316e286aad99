"""Speculators for tests: they record completions, and propose tokens that are right or wrong on purpose."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal
from unittest.mock import patch

from twofold.core.step import StepPlan
from twofold.engine.async_llm import AsyncLLM
from twofold.engine.llm import LLM
from twofold.engine.scheduler.draft_model import ModelDrafts, placeholders
from twofold.engine.scheduler.feature import Gain, StepFeature
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.speculation import Speculator, _Allotment

Kind = Literal["random", "right", "wrong", "wrong at the end"]
KINDS: tuple[Kind, ...] = ("random", "right", "wrong", "wrong at the end")
Key = tuple[tuple[int, ...], int]


def key_of(sequence: Sequence) -> Key:
    return tuple(sequence.tokens[: sequence.prompt_length]), sequence.seed


class Recorder(StepFeature):
    """Proposes nothing. ``found`` has the tokens of ended sequences, by prompt and seed."""

    def __init__(self) -> None:
        self.found: dict[Key, array[int]] = {}

    def left(self, sequence: Sequence, _now: float) -> None:
        if sequence.finish_reason is not None:
            self.found[key_of(sequence)] = sequence.tokens[:]


class Scripted(Recorder):
    """Proposes up to ``most`` tokens for each sequence, made from what is known to follow. Counts ``drafted`` rows."""

    def __init__(self, kind: Kind, known: dict[Key, array[int]], vocab: int, *, most: int = 6, seed: int = 0) -> None:
        super().__init__()
        self._kind = kind
        self._known = known
        self._vocab = vocab
        self._most = most
        self._chance = Random(seed)
        self.drafted = 0
        self.accepted = 0

    def propose(self, decoding: Collection[Sequence], rows: int) -> dict[int, array[int]]:
        proposed: dict[int, array[int]] = {}
        for sequence in decoding:
            count = min(self._chance.randint(0, self._most), rows, sequence.limit - sequence.known - 1)
            if count < 1 or not sequence.speculates:
                continue
            tokens = self._tokens(sequence, count)
            rows -= len(tokens)
            self.drafted += len(tokens)
            proposed[sequence.sequence_id] = tokens
        return proposed

    def advanced(self, gain: Gain) -> None:
        self.accepted += max(len(gain.tokens) - 1, 0)

    def _tokens(self, sequence: Sequence, count: int) -> array[int]:
        known = self._known.get(key_of(sequence), array("i"))
        tokens = known[sequence.known : sequence.known + count]
        tokens.extend(self._chance.randrange(self._vocab) for _ in range(count - len(tokens)))
        match self._kind:
            case "random":
                tokens = array("i", [self._chance.randrange(self._vocab) for _ in range(count)])
            case "wrong":
                tokens = array("i", [(token + 1) % self._vocab for token in tokens])
            case "wrong at the end":
                tokens[-1] = (tokens[-1] + 1) % self._vocab
        return tokens


def use(llm: LLM | AsyncLLM, speculator: Recorder | Speculator | None) -> None:
    """Replaces the speculator of an engine."""
    scheduler = llm._engine.scheduler
    others = [each for each in scheduler.features if not isinstance(each, Recorder | Speculator)]
    scheduler.features = (*others, *([] if speculator is None else [speculator]))


def draft_config(path: Path | str) -> dict[str, Any]:
    """Engine options that make the model at ``path`` the draft model."""
    return {"speculative_config": {"method": "draft_model", "model": str(path), "num_speculative_tokens": 6}}


@contextmanager
def eager_drafts(seed: int) -> Iterator[None]:
    """Drafts of the draft model wherever there is room, at random lengths, whatever they cost."""
    chance = Random(seed)

    def deepest(
        _self: Speculator, _model: ModelDrafts, ready: list[Sequence], rows: int, base: _Allotment, **_: Any
    ) -> _Allotment:
        counts: dict[int, int] = {}
        for sequence in ready:
            most = min(6, rows, sequence.limit - sequence.known - 1)
            counts[sequence.sequence_id] = count = chance.randint(0, max(most, 0))
            rows -= count
        return base._replace(drafts=base.drafts | placeholders(counts), seconds=1e-9)

    catches_up = patch.object(Speculator, "_catches_up", lambda *_: chance.random() < 0.5)
    with patch.object(Speculator, "_deepest", deepest), catches_up:
        yield


class ModelDraftCounts:
    """Counts what a run did with the draft model: its ``drafts``, and the ``rows`` of the model itself."""

    def __init__(self, llm: LLM) -> None:
        self.drafts = self.rows = 0
        llm.engine.watch_plans(self._count)

    def _count(self, plan: StepPlan) -> None:
        for step in plan.steps:
            self.drafts += step.model_drafts
            self.rows += 0 if step.draft is None else len(step.draft.tokens)
