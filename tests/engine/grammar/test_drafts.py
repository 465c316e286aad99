"""Masks after drafts are those of a constraint that takes the tokens one by one; wrong drafts leave nothing behind."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from tests.engine.grammar.conftest import LocalCompiler, byte_level
from tests.engine.grammar.walks import FORMS
from twofold.core.params import ThinkingParams
from twofold.core.step import TokenConstraint
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.form import OutputGrammar
from twofold.engine.grammar.hosted import HostedConstraint
from twofold.engine.grammar.thinking import ThinkingConstraint

Make = Callable[[], TokenConstraint]
VOCABULARY = byte_level().vocab_size


def choices(mask: memoryview | None) -> list[int]:
    """Tokens that are allowed; masks have more bits than there are tokens."""
    if mask is None:
        return list(range(5, 60))
    words = np.asarray(mask)
    return [token for token in range(VOCABULARY) if words[token >> 5] >> (token & 31) & 1]


def state(constraint: TokenConstraint) -> tuple[object, ...]:
    """After the host's reply, for which ``finished`` waits only shortly."""
    while isinstance(constraint, HostedConstraint) and constraint._inbox.awaited and constraint._inbox.error is None:
        assert constraint.finished in (True, False)
    return constraint.finished, constraint.shortened, list(constraint.forced)


def check(make: Make, rounds: int, seed: int) -> int:
    """Walks with drafts, some of which are wrong or not allowed, beside the same walk without drafts. Returns the
    number of masks after drafts."""
    draw, after = random.Random(seed), 0
    walker, plain = make(), make()
    for _ in range(rounds):
        drafts = walk(make(), plain_path(plain), draw, draw.randint(0, 4))
        if drafts and draw.random() < 0.3:
            drafts[draw.randrange(len(drafts))] = draw.randrange(VOCABULARY)
        if drafts and draw.random() < 0.3:  # the step was not sampled, and has other drafts in the next turn
            walker.prepare([*drafts[: draw.randrange(len(drafts))], draw.randrange(VOCABULARY), 3])
        walker.prepare(drafts)
        masks = [None if mask is None else bytes(mask) for mask in walker.masks()]
        assert 1 <= len(masks) <= 1 + len(drafts)
        after += len(masks) - 1
        taken: list[int] = []
        for mask, draft in zip(masks, [*drafts, None], strict=False):
            plain.prepare()
            expected = plain.masks()[0]
            assert mask == (None if expected is None else bytes(expected))
            allowed = choices(expected)
            token = draft if draft in allowed and draw.random() < 0.8 else draw.choice(allowed)
            taken.append(token)
            plain.advance([token])
            PATHS[id(plain)].append(token)
            if token != draft or plain.finished:
                break
        walker.advance(taken)
        assert state(walker) == state(plain)
        if walker.finished:
            break
    del PATHS[id(plain)]
    return after


PATHS: defaultdict[int, list[int]] = defaultdict(list)
"""The tokens that a constraint has taken."""


def plain_path(constraint: TokenConstraint) -> list[int]:
    return PATHS[id(constraint)]


def walk(constraint: TokenConstraint, path: list[int], draw: random.Random, most: int) -> list[int]:
    """Tokens that are allowed one after another behind ``path``."""
    for token in path:
        constraint.masks()
        constraint.advance([token])
    taken: list[int] = []
    while len(taken) < most and not constraint.finished:
        taken.append(draw.choice(choices(constraint.masks()[0])))
        constraint.advance([taken[-1]])
    return taken


@pytest.mark.parametrize("name", FORMS)
def test_in_this_process(local: LocalCompiler, name: str) -> None:
    form = local.compile(FORMS[name].params)
    assert sum(check(lambda: form.start(form.min_tokens + 40), 12, seed) for seed in range(6))


@pytest.mark.parametrize("name", list(FORMS)[:3])
def test_in_a_process_of_its_own(compiler: GrammarCompiler, name: str) -> None:
    form = compiler.submit(FORMS[name].params).result()
    assert sum(check(lambda: form.start(form.min_tokens + 12), 8, seed) for seed in range(2))


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

    assert sum(check(make, 8, seed) for seed in range(4))
