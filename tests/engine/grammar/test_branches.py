"""Constraints that fork and roll back know what one knows that took the remaining tokens alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.engine.grammar.conftest import LocalCompiler, byte_level
from tests.engine.grammar.walks import FORMS, allowed
from twofold.core.params import ThinkingParams
from twofold.core.step import TokenConstraint
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.source import OutputGrammar
from twofold.engine.grammar.thinking import ThinkingConstraint

Make = Callable[[], TokenConstraint]
VOCABULARY = byte_level().vocab_size


def take(constraint: TokenConstraint, draw: random.Random, most: int) -> list[int]:
    """Random tokens that are allowed one after another, until nothing can follow."""
    taken: list[int] = []
    while len(taken) < most:
        constraint.mask()
        if constraint.finished:
            break
        taken.append(draw.choice(choices(constraint)))
        constraint.advance(taken[-1])
    return taken


def choices(constraint: TokenConstraint) -> list[int]:
    """Tokens that are allowed; masks have more bits than there are tokens."""
    if constraint.mask() is None:
        return list(range(5, 60))
    return [token for token in allowed(constraint) if token < VOCABULARY]


def state(constraint: TokenConstraint) -> tuple[object, ...]:
    mask = constraint.mask()
    return None if mask is None else bytes(mask), constraint.finished, constraint.shortened


def check(make: Make, rounds: int, seed: int) -> None:
    """Walks with detours, and after each the same walk anew without them."""
    draw, path = random.Random(seed), list[int]()
    walker = make()
    for _ in range(rounds):
        branch = walker.fork()
        before = state(walker)
        detour = take(branch, draw, draw.randint(1, 4))
        assert state(walker) == before, "a fork changed what it came from"
        branch.rollback(len(detour))
        assert state(branch) == before
        detour = take(walker, draw, draw.randint(1, 4))
        kept = draw.randint(0, len(detour))
        walker.rollback(len(detour) - kept)
        path += detour[:kept]
        plain = make()
        for token in path:
            plain.mask()
            plain.advance(token)
        assert state(walker) == state(plain)
        if walker.finished:
            return


@pytest.mark.parametrize("name", FORMS)
def test_in_this_process(local: LocalCompiler, name: str) -> None:
    form = local.compile(FORMS[name].params)
    for seed in range(3):
        check(lambda: form.start(form.min_tokens + 12), 12, seed)


@pytest.mark.parametrize("name", list(FORMS)[:3])
def test_in_a_process_of_its_own(compiler: GrammarCompiler, name: str) -> None:
    form = compiler.submit(FORMS[name].params).result()
    check(lambda: form.start(form.min_tokens + 12), 8, 1)


@pytest.mark.parametrize("form", [None, *list(FORMS)[:2]])
@pytest.mark.parametrize("opened", [False, True])
def test_around_thinking(local: LocalCompiler, form: str | None, opened: bool) -> None:
    tokenizer = byte_level()
    start, end = (tuple(local.vocabulary.encode(mark)) for mark in (b"<t>", b"</t>"))
    inner: OutputGrammar | None = None if form is None else local.compile(FORMS[form].params)
    least = 0 if inner is None else inner.min_tokens
    thinking = ThinkingParams(start=() if opened else start, end=end, budget=5)

    def make() -> TokenConstraint:
        return ThinkingConstraint(
            thinking,
            inner,
            max_tokens=len(start) + len(end) + 9 + least,
            spell=tokenizer.token_bytes,
            end_ids=tokenizer.eos_ids,
            vocab_size=tokenizer.vocab_size,
        )

    for seed in range(4):
        check(make, 8, seed)
