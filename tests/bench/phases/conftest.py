"""A bench over the mock model, whose steps take no time to speak of: what is looked at are counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.engine.conftest import VOCAB, MakeLoaded, make_loaded, tokenizer  # noqa: F401 - fixtures
from tests.engine.mock import MockForward
from twofold.backends.sampling.base import F32
from twofold.bench.phases.bench import PhaseBench
from twofold.engine.llm import LLM
from twofold.models.ops import Batch


class CountingForward(MockForward):
    """``rows`` are those of each step."""

    rows: list[int]

    def run(self, batch: Batch) -> F32:
        self.rows.append(len(batch.tokens))
        return super().run(batch)


@dataclass(slots=True)
class Turns:
    """So many turns until a bench is stopped; None for as many as it wants."""

    left: int | None

    def stop(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0


@dataclass(frozen=True, slots=True)
class Bed:
    """A bench with its model."""

    bench: PhaseBench
    llm: LLM
    forward: CountingForward

    @property
    def idle(self) -> bool:
        """Whether nothing is left in the engine, which asserts that it then holds nothing."""
        self.llm.engine.check_idle()
        return not self.llm.engine.has_work


MakeBed = Callable[..., Bed]


@pytest.fixture
def make_bed(make_loaded: MakeLoaded) -> Iterator[MakeBed]:  # noqa: F811
    """``make_bed(rounds=2, turns=None, rows=64, blocks=128, caching=True, …)``"""
    opened: list[LLM] = []

    def make(
        *,
        rounds: int = 2,
        turns: int | None = None,
        rows: int = 64,
        blocks: int = 512,
        context: int = 256,
        seqs: int = 8,
        caching: bool = True,
    ) -> Bed:
        forward = CountingForward(vocab=VOCAB, blocks=blocks, block_size=4, max_rows=rows, max_logit_rows=64)
        forward.rows = []
        loaded = make_loaded(forward=forward, rows=rows, blocks=blocks, context=context, seqs=seqs, caching=caching)
        llm = LLM.from_loaded(loaded)
        opened.append(llm)
        left = Turns(turns)
        return Bed(PhaseBench(llm, rounds, left.stop), llm, forward)

    yield make
    for llm in opened:
        llm.close()
