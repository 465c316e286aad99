"""Grammars in processes of their own: their masks are the same, and none affects another."""

from __future__ import annotations

import fcntl
import gc
import random
import resource
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.engine.grammar.conftest import LocalCompiler
from tests.engine.grammar.walks import FORMS, allowed
from twofold.core.errors import ParameterError
from twofold.core.params import StructuredOutputsParams
from twofold.core.step import TokenConstraint
from twofold.engine.grammar import compile as compile_module
from twofold.engine.grammar import hosted
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.form import OutputGrammar
from twofold.engine.grammar.wire import Advanced, Compile, Drop, FromHost, Masks, Pipe

P = StructuredOutputsParams
AMBIGUOUS = 'start: e\ne: e e | "a" | "b" e "x" | ""\n'
FAILING_HOST = """
import socket, sys
from twofold.engine.grammar import host

def matched(*_: object) -> None:
    raise MemoryError

host.matched = matched
host.Host(host.Pipe(socket.socket(fileno=int(sys.argv[1]))), None).run()
"""


SEARCHES = """
import os, socket
from twofold.core.errors import ParameterError
from twofold.engine.grammar import host

def spin():
    while True:
        pass

def refuse():
    raise ParameterError("no", param="p", hint="h")

made = host.Host(host.Pipe(socket.socketpair()[0]), None)
assert made._search(60.0, lambda: (1, 2)) == (1, 2)
assert made._search(60.0, lambda: None) is None
assert made._search(0.05, spin) is None
assert made._search(60.0, os.abort) is None
assert made._search(60.0, lambda: 1 / 0) is None
try:
    made._search(60.0, refuse)
except ParameterError as error:
    assert (str(error), error.param, error.hint) == ("no", "p", "h")
print("alive")
"""


def test_a_search_that_exceeds_its_time_or_fails_ends_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", SEARCHES], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "alive\n"


@pytest.mark.parametrize("name", FORMS)
def test_masks_are_those_of_this_process(compiler: GrammarCompiler, local: LocalCompiler, name: str) -> None:
    compiled, inside = compiler.submit(FORMS[name].params).result(), local.compile(FORMS[name].params)
    assert compiled.min_tokens == inside.min_tokens
    limit, draw = compiled.min_tokens + 8, random.Random(3)
    one, other = compiled.start(limit), inside.start(limit)
    for _ in range(limit):
        mask = one.masks()[0]
        assert mask is not None
        assert bytes(mask) == bytes(other.masks()[0])
        token = draw.choice(allowed(one))
        one.advance([token])
        other.advance([token])
        if token in inside.vocabulary.end_ids or other.finished:
            one.masks()
            assert one.ready
            assert one.finished
            assert one.shortened == other.shortened
            return


def follow(constraint: TokenConstraint, tokens: int, seed: int) -> int:
    """The number of random tokens that were taken before the output ended."""
    draw = random.Random(seed)
    for taken in range(tokens):
        mask = constraint.masks()[0]
        if constraint.finished:
            return taken
        ids = np.flatnonzero(np.unpackbits(np.asarray(mask).view(np.uint8), bitorder="little")).tolist()
        constraint.advance([draw.choice(ids[1:] or ids)])
    return tokens


def follow_many(grammar: OutputGrammar) -> None:
    for seed in range(50):
        follow(grammar.start(40), 40, seed)


def test_a_form_that_exceeds_its_limits_affects_no_other(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is ended by its limit of processor time; other outputs go on, and so does the next of any form."""
    harmless = compiler.submit(P(regex="[ab]{400}")).result()
    beside = harmless.start(500)
    follow(beside, 3, 0)
    monkeypatch.setattr(compiler, "_step_s", 0.01)
    bomb = compiler.submit(P(grammar=AMBIGUOUS)).result()
    with pytest.raises(ParameterError, match=r"grammar is too complex") as caught:
        follow_many(bomb)
    assert caught.value.param == "structured_outputs.grammar"
    assert caught.value.hint
    assert follow(beside, 30, 1) == 30
    assert follow(bomb.start(400), 2, 2) == 2


def test_dropped_completions_are_forgotten_and_idle_hosts_closed(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle hosts beyond IDLE_HOSTS are closed, and started again when they are needed."""
    monkeypatch.setattr(compile_module, "IDLE_HOSTS", 2)
    grammars = [compiler.submit(P(regex=f"{letter}+x")).result() for letter in "abcde"]
    kept = grammars[4].start(20)
    kept.prepare()
    assert [host.idle for host in compiler._hosts.values()].count(True) <= 2
    first = grammars[0].start(20)
    assert allowed(first)
    del first
    gc.collect()
    assert [host.idle for host in compiler._hosts.values()].count(True) >= 1
    assert not compiler._hosts[grammars[4].key].idle  # type: ignore[attr-defined]
    assert allowed(kept)


@pytest.mark.parametrize("seconds", [0.0, 2 * hosted.PATIENCE_S])
def test_waits_for_a_host_get_shorter_after_slow_masks(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Only processor time counts, not elapsed time: a busy machine delays the replies of cheap forms, too."""
    constraint = compiler.submit(P(regex="[ab]{90}")).result().start(99)
    constraint.prepare()
    host = constraint._host  # type: ignore[attr-defined]
    waited: list[float | None] = []
    for _ in range(12):
        with monkeypatch.context() as patched:
            patched.setattr(hosted.GrammarHost, "read", lambda _, limit: waited.append(limit))
            assert not constraint.wait()
        host._take(Masks(-1, words=[b""], narrowed=[False], seconds=seconds))
    limits = [limit for limit in waited if limit]
    assert limits == pytest.approx([hosted.PATIENCE_S * (0.5**mask if seconds else 1) for mask in range(12)])
    assert follow(constraint, 20, 1) == 20


def test_waits_for_a_host_recover_after_any_number_of_slow_masks(compiler: GrammarCompiler) -> None:
    constraint = compiler.submit(P(regex="[ab]{91}")).result().start(99)
    constraint.prepare()
    host = constraint._host  # type: ignore[attr-defined]
    for masks, seconds in ((2000, 2 * hosted.PATIENCE_S), (100, 0.0)):
        for _ in range(masks):
            host._take(Masks(-1, words=[b""], narrowed=[False], seconds=seconds))
    assert host._patience == hosted.PATIENCE_S


def sampled(compiler: GrammarCompiler, limit: int, tokens: list[int], drafts: int = 0) -> int:
    """The masks counted as narrowed while the tokens of a JSON text are sampled, some steps with drafts."""
    before = compiler.narrowed
    grammar = compiler.submit(P(json={"type": "object", "properties": {"a": {"type": "string"}}})).result()
    constraint = grammar.start(limit)
    for place in range(0, len(tokens), 1 + drafts):
        step = tokens[place : place + 1 + drafts]
        constraint.prepare(step[:drafts])
        masks = constraint.masks()
        constraint.advance(step[: len(masks)])
        for token in step[len(masks) :]:
            constraint.masks()
            constraint.advance([token])
    return compiler.narrowed - before


@pytest.mark.parametrize("drafts", [0, 3])
def test_masks_that_the_limit_narrows_are_counted(compiler: GrammarCompiler, local: LocalCompiler, drafts: int) -> None:
    tokens = local.vocabulary.cut(b'{"a": "' + b"hello you" * 4)
    assert sampled(compiler, 500, tokens, drafts) == 0
    near = sampled(compiler, len(tokens) + 3, tokens, drafts)
    assert 0 < near < len(tokens)
    assert near == sampled(compiler, len(tokens) + 3, tokens)


def test_masks_of_drafts_that_were_not_sampled_are_not_counted(compiler: GrammarCompiler) -> None:
    grammar, before = compiler.submit(P(regex="[ab]{3,9}")).result(), compiler.narrowed
    constraint = grammar.start(3)
    constraint.prepare(allowed(constraint)[:1] * 2)
    constraint.masks()
    assert compiler.narrowed == before
    constraint.advance(allowed(constraint)[:1])
    assert compiler.narrowed - before <= 1


def test_no_mask_is_made_before_it_is_requested(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tokens of the form's other outputs would wait for it, one after the other."""
    messages: list[FromHost] = []
    take = hosted.GrammarHost._take

    def record(host: hosted.GrammarHost, message: FromHost) -> None:
        messages.append(message)
        take(host, message)

    monkeypatch.setattr(hosted.GrammarHost, "_take", record)
    grammar = compiler.submit(P(regex="[ab]{80}")).result()
    answers = [grammar.start(99) for _ in range(4)]
    for answer in answers:
        answer.prepare()
    tokens = [allowed(answer)[0] for answer in answers]
    messages.clear()
    for answer, token in zip(answers, tokens, strict=True):
        answer.advance([token])
        while answer._inbox.awaited:  # type: ignore[attr-defined]
            assert not answer.finished
    assert [type(message) for message in messages] == [Advanced] * 4
    assert [bool(allowed(answer)) for answer in answers] == [True] * 4
    assert [type(message) for message in messages] == [Advanced] * 4 + [Masks] * 4


def test_a_host_that_fails_to_compile_ends() -> None:
    """The engine waits for a reply, or for the end of the process."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", FAILING_HOST, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
    pipe = Pipe(ours)
    pipe.send(Compile(P(regex="a"), 1.0, 1.0))
    try:
        assert pipe.wait(60), "the host neither replies nor ends"
        with pytest.raises(EOFError):
            pipe.receive()
    finally:
        pipe.close()
        process.kill()
        process.wait()


def test_pipes_work_with_more_files_than_select_takes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("the limit of open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    try:
        one, other = socket.socketpair()
        with one, socket.socket(fileno=fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, 1100)) as high, other:
            Pipe(one).send(Drop(3))
            pipe = Pipe(high)
            assert pipe.wait(60)
            assert pipe.receive() == Drop(3)
            assert pipe.receive(block=False) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


LITERALS = ("a", "b", "[a-z]", "[^x]", ".", r"\w", r"\d", "é", "ab", "(?i:abc)")


def some_regex(draw: random.Random, depth: int = 0) -> str:
    kind = draw.random()
    if depth > 4 or kind < 0.3:
        return draw.choice(LITERALS)
    if kind < 0.5:
        return f"({some_regex(draw, depth + 1)}){draw.choice(['*', '+', '?', '{0,50}', '{0,999}', '{2}', '{100}'])}"
    if kind < 0.75:
        return some_regex(draw, depth + 1) + some_regex(draw, depth + 1)
    return f"({some_regex(draw, depth + 1)}|{some_regex(draw, depth + 1)})"


def some_schema(draw: random.Random, depth: int = 0) -> dict[str, object]:
    kind = draw.random()
    if depth > 2 or kind < 0.3:
        plain: list[dict[str, object]] = [
            {},
            {"type": "string", "minLength": draw.randrange(30), "maxLength": draw.randrange(30, 3_000)},
            {"type": "string", "pattern": some_regex(draw)},
            {"type": "integer", "minimum": -draw.randrange(10**6), "maximum": draw.randrange(10**9)},
            {"enum": [draw.randrange(999) for _ in range(300)]},
            {"type": "string", "format": "uri"},
            {"type": "number", "multipleOf": 0.5},
            {"$ref": "#"},
        ]
        return draw.choice(plain)
    if kind < 0.5:
        return {"type": "array", "items": some_schema(draw, depth + 1), "minItems": draw.choice([0, 20])}
    if kind < 0.8:
        parts = {f"p{index}": some_schema(draw, depth + 1) for index in range(draw.choice([1, 3, 12]))}
        return {"type": "object", "properties": parts, "required": [name for name in parts if draw.random() < 0.5]}
    return {draw.choice(["anyOf", "oneOf", "allOf"]): [some_schema(draw, depth + 1) for _ in range(2)]}


def some_grammar(draw: random.Random) -> str:
    rules = ["start", *(f"r{index}" for index in range(draw.choice([1, 2, 4, 10])))]
    parts = [*rules, *(f"/{some_regex(draw)}/" for _ in range(3)), '"a"', '"b"', '"zq"', '""']

    def branch() -> str:
        return " ".join(draw.choice(parts) + draw.choice(["", "", "*", "?"]) for _ in range(draw.choice([1, 2, 5])))

    return "".join(f"{rule}: {' | '.join(branch() for _ in range(draw.choice([1, 2, 4])))}\n" for rule in rules)


def some_form(draw: random.Random) -> P:
    kind = draw.randrange(3)
    return (
        P(regex=some_regex(draw) + some_regex(draw))
        if kind == 0
        else (P(json=some_schema(draw)) if kind == 1 else P(grammar=some_grammar(draw)))
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_forms_are_compiled_or_refused(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Forty forms a seed, each with little processor time: a form ends in an answer or in one clear error, and the
    last one is served like the first."""
    draw = random.Random(seed)
    monkeypatch.setattr(compiler, "_seconds", 0.05)
    ends = {"answered": 0, "refused": 0}
    for future in [compiler.submit(some_form(draw), str(number % 5)) for number in range(40)]:
        try:
            grammar = future.result(60)
            follow(grammar.start(max(12, grammar.min_tokens)), 6, seed)
            ends["answered"] += 1
        except ParameterError as error:
            ends["refused"] += bool(error.hint) and len(str(error)) < 300
    assert sum(ends.values()) == 40
    assert min(ends.values()) > 0
    assert compiler.submit(P(regex=f"{seed}|b")).result().min_tokens == 1
