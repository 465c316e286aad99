"""Masks depend on the grammar, the vocabulary, the limit and the tokens so far: never on a clock."""

from __future__ import annotations

import ast
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import twofold.engine.grammar
from tests.engine.grammar.conftest import LocalCompiler, byte_level
from tests.engine.grammar.walks import FORMS, allowed
from twofold.engine.grammar.compiled import CompiledGrammar
from twofold.engine.grammar.constraint import GrammarConstraint

HARD = ["branches", "wildcard", "lark", "lengths", "person"]
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
MODULES = sorted(Path(twofold.engine.grammar.__file__).parent.glob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_module_knows_a_clock(path: Path) -> None:
    assert not imported(path) & {"time", "datetime", "twofold.core.clock"}


def masks(compiled: CompiledGrammar, limit: int, seed: int) -> Iterator[bytes]:
    """The masks of an output that is sampled at random."""
    draw = random.Random(seed)
    constraint = compiled.start(limit)
    for _ in range(limit):
        if constraint.finished:
            return
        yield np.asarray(constraint.masks()[0]).tobytes()
        constraint.advance([draw.choice(allowed(constraint))])


def everything() -> list[list[bytes]]:
    """The results of a new compiler and of outputs at several limits."""
    tokenizer = byte_level()
    compiler = LocalCompiler(tokenizer, tokenizer.vocab_size)
    found = []
    for name in HARD:
        compiled = compiler.compile(FORMS[name].params)
        found.append([repr((compiled.path, compiled.headroom)).encode()])
        found += [list(masks(compiled, limit, limit)) for limit in (compiled.min_tokens + 5, 40, 80)]
    return found


def clock(step: float) -> Callable[[], float]:
    ticks = count()
    return lambda: next(ticks) * step


def test_neither_a_racing_nor_a_crawling_clock_changes_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = everything()
    for step in (1_000.0, 1e-9):
        with monkeypatch.context() as patched:
            for name in CLOCKS:
                patched.setattr(time, name, clock(step))
            seen = everything()
        assert seen == usual


@pytest.mark.parametrize("name", FORMS)
def test_a_state_does_not_depend_on_whether_its_mask_was_requested(tiny_compiler: LocalCompiler, name: str) -> None:
    compiled = tiny_compiler.compile(FORMS[name].params)
    draw = random.Random(5)
    asked, replayed = compiled.start(compiled.min_tokens + 25), compiled.start(compiled.min_tokens + 25)
    for _ in range(compiled.min_tokens + 25):
        if asked.finished:
            break
        token = draw.choice(allowed(asked))
        asked.advance([token])
        replayed.advance([token])
    assert bytes(asked.masks()[0]) == bytes(replayed.masks()[0])
    assert asked.shortened == replayed.shortened


def careless(compiled: CompiledGrammar, limit: int) -> GrammarConstraint:
    """Takes no token to lengthen a path, so it looks too late."""
    constraint = replace(compiled, headroom=0).start(limit)
    assert isinstance(constraint, GrammarConstraint)
    return constraint


def left(constraint: GrammarConstraint) -> int:
    constraint.prepare()  # a path is updated with the mask
    return len(constraint._path)


def late_answer(compiled: CompiledGrammar, draw: random.Random) -> tuple[str, int]:
    """Generates an output until its path ends, even past its limit. Returns it and the number of those tokens."""
    vocabulary, limit = compiled.vocabulary, compiled.min_tokens + 25
    brackets = {token for token, data in enumerate(vocabulary.tokens) if data[:1] in (b"{", b"[", b"(")}
    constraint, text, late = careless(compiled, limit), b"", 0
    for drawn in range(2_000):
        if constraint.finished or (drawn >= limit and not left(constraint)):
            break
        ids, before = allowed(constraint), left(constraint)
        overrun = constraint.shortened and before > limit - drawn
        late += overrun
        proofs = [constraint._proof(token) for token in ids if token not in vocabulary.end_ids]
        assert not overrun or len({len(proof) for proof in proofs if proof is not None}) <= 1
        token = draw.choice([each for each in ids if each in brackets] or ids)
        constraint.advance([token])
        assert not overrun or constraint.finished or left(constraint) < before
        text += b"" if token in vocabulary.end_ids else vocabulary.tokens[token]
    return text.decode(), late


@pytest.mark.parametrize("name", ["wide", "person", "tree", "lark"])
def test_an_output_near_its_limit_without_a_path_closes_as_soon_as_it_can(
    tiny_compiler: LocalCompiler, name: str
) -> None:
    compiled = tiny_compiler.compile(FORMS[name].params)
    answers = [late_answer(compiled, random.Random(seed)) for seed in range(8)]
    assert all(FORMS[name].holds(text) for text, _ in answers)
    assert sum(late for _, late in answers) > 0
