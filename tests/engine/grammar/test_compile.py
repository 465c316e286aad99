"""Compiling grammars: refusals, limits, turns of callers, and the cache."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.grammar.conftest import LocalCompiler, byte_level
from tests.engine.grammar.walks import FORMS, allowed
from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import bytelevel_metadata
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.params import StructuredOutputsParams
from twofold.engine.grammar import compile as compile_module
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.emptiness import has_no_output
from twofold.engine.grammar.hosted import ForkServer, GrammarHost
from twofold.engine.grammar.source import GrammarSource
from twofold.engine.grammar.wire import Compile, ToHost

P = StructuredOutputsParams
NESTED = 5_000


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    """With the budget that a server has."""
    tokenizer = byte_level()
    made = GrammarCompiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size)
    made.submit(P(json_object=True)).result()
    yield made
    made.close()


def chain(length: int) -> str:
    rules = "\n".join(f"r{index}: r{index + 1}" for index in range(length))
    return rules.replace("r0:", "start:") + f'\nr{length}: "a"'


def references(length: int) -> dict[str, object]:
    parts = {f"a{index}": {"items": {"$ref": f"#/$defs/a{index + 1}"}} for index in range(length)}
    return {"$defs": {**parts, f"a{length}": {"type": "string"}}, "$ref": "#/$defs/a0"}


DOUBLED = {
    f"a{index}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/a{index + 1}"}] * 2, "minItems": 2}
    for index in range(30)
}

IMPOSSIBLE = {
    "unknown type": (P(json={"type": "strin"}), "Invalid type"),
    "nothing is valid": (P(json={"type": "string", "minLength": 3, "maxLength": 2}), "Unsatisfiable"),
    "not JSON": (P(json="{"), "is not JSON"),
    "no object": (P(json="[]"), "is not a JSON schema"),
    "an object of Python": (P(json={"type": object()}), "is not JSON"),
    "false": (P(json="false"), "no output satisfies"),
    "reference to itself": (P(json={"$ref": "#"}), "no output"),
    "endless": (
        P(json={"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}),
        "no complete output",
    ),
    "reference to the network": (P(json={"$ref": "http://127.0.0.1:9/schema"}), "does not fetch"),
    "reference to a file": (P(json={"$ref": "file:///etc/passwd"}), "does not fetch"),
    "deep JSON": (P(json='{"items":' * NESTED + "{}" + "}" * NESTED), "nested too deeply"),
    "chain of references": (P(json=references(4_000)), "too deep or too large"),
    "chain of rules": (P(grammar=chain(6_000)), "too deep or too large"),
    "many properties": (P(json={"properties": {f"p{i}": {"type": "string"} for i in range(8_000)}}), "takes more than"),
    "too long": (P(regex="a" * 300_000), "300000 bytes"),
    "look-ahead": (P(regex="(?=a)b"), "look-around"),
    "look-ahead in a schema": (P(json={"items": {"pattern": "(?=a)b"}}), r"look-around.*'\(\?=a\)b'"),
    "values of two branches": (
        P(json={"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        "oneOf.* not supported.$",
    ),
    "one of two schemas": (
        P(grammar='start: a b\na: %json {"type": "null"}\nb: %json {"type": "int"}'),
        """in the schema '{"type": "int"}'""",
    ),
    "back-reference": (P(regex=r"(a)\1"), "backreferences"),
    "unbalanced": (P(regex="(a"), "unclosed group"),
    "empty set": (P(regex=r"[^\s\S]"), "no output"),
    "a surrogate": (P(regex="\ud800"), "surrogate"),
    "unknown rule": (P(grammar="start: other"), "other"),
    "left to itself": (P(grammar='start: "a" start'), "no complete output"),
    "left to itself in a group": (
        P(grammar='start: ("a" | "b") (start | "c" start)+ /x/ // end'),
        "no complete output",
    ),
    "rules that need each other": (P(grammar='root ::= "a" b\nb ::= "c" root | b "d"'), "no complete output"),
    "items that never end": (
        P(json={"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/a"}),
        "no complete output",
    ),
    "every branch needs itself": (
        P(
            json={
                "type": "object",
                "properties": {"x": {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]}},
                "required": ["x"],
            }
        ),
        "no complete output",
    ),
    "no grammar": (P(grammar="hello world"), "cannot be compiled"),
    "GBNF without root": (P(grammar='rule ::= "a"'), "'root'"),
    "GBNF with a stray sign": (P(grammar='root ::= "a" %'), "'%' in line 1"),
}


@pytest.mark.parametrize(("params", "why"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_forms_are_refused_in_a_sentence(compiler: GrammarCompiler, params: P, why: str) -> None:
    """The kernel ends hosts that exceed their processor time, so no time is measured here."""
    with pytest.raises(ParameterError, match=why) as caught:
        compiler.submit(params).result()
    assert caught.value.param.startswith("structured_outputs.")
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_grammar_is_proven_empty_exactly_if_no_rule_ends(draw: random.Random) -> None:
    """Against the words of at most so many derivation levels as there are rules: an output needs no more."""
    names = ["start", "b", "c", "d"]
    rules = {
        name: [draw.choices([*names, '"x"'], k=draw.randint(1, 3)) for _ in range(draw.randint(1, 2))] for name in names
    }
    optional = {name: draw.choice(["", "?", "*", "+"]) for name in names}

    def ends(name: str, levels: int) -> bool:
        if name == '"x"' or optional.get(name) in {"?", "*"}:
            return True
        return levels > 0 and body_ends(name, levels)

    def body_ends(name: str, levels: int) -> bool:
        return any(all(ends(part, levels - 1) for part in each) for each in rules[name])

    def spell(each: list[str]) -> str:
        parts = [part + optional.get(part, "") for part in each]
        return f"({' '.join(parts)})" if draw.random() < 0.3 else " ".join(parts)

    lines = [f"{name}: {' | '.join(map(spell, bodies))} // {name}" for name, bodies in rules.items()]
    text = "\n".join([*lines, 'A: "a" | /b|c/'])
    assert has_no_output(GrammarSource("grammar", "", text)) == (not body_ends("start", len(names)))


OPEN_ENDED = {
    "exponential": P(json={"$defs": {**DOUBLED, "a30": {"type": "string"}}, "$ref": "#/$defs/a0"}),
    "long answers": P(json={"type": "string", "minLength": 100_000}),
}


@pytest.mark.parametrize("params", OPEN_ENDED.values(), ids=OPEN_ENDED)
@pytest.mark.parametrize("seconds", [2.0, 0.1])
def test_a_grammar_without_a_known_end_is_enforced_token_by_token(params: P, seconds: float) -> None:
    """Whether its search ends by its count or by its processor time, which leaves its host as it is."""
    tokenizer = byte_level()
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size, seconds=seconds)
    try:
        grammar = compiler.submit(params).result()
        assert (grammar.ends, grammar.min_tokens) == (False, 0)
        (host,) = compiler._hosts.values()
        for _ in range(2):
            constraint = grammar.start(30)
            for _ in range(30):
                assert not constraint.finished
                token = allowed(constraint)[0]
                assert token not in tokenizer.eos_ids
                constraint.advance([token])
            assert not constraint.finished
            assert not constraint.shortened
        assert compiler.narrowed == 0
        assert host.error is None
        assert list(compiler._hosts.values()) == [host]
        host.close()  # started again, it does not search again
        assert allowed(grammar.start(30))
    finally:
        compiler.close()


@pytest.mark.parametrize(
    "params",
    [
        P(grammar='start: "a" start?'),
        P(grammar='start: "a" start | "b"'),
        P(grammar='start: "a" [start]'),
        P(grammar='start: "a" (start)* /(start)/'),
        P(grammar='start: "a" other{0,2}\nother: "b" other | "c"'),
        P(grammar='root ::= "(" root ")" | "x"'),
        P(json={"type": "object", "properties": {"x": {"$ref": "#"}}}),
        P(
            json={
                "type": "object",
                "properties": {"x": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                "required": ["x"],
            }
        ),
        P(json={"type": "array", "items": {"$ref": "#"}}),
    ],
)
def test_recursive_grammars_that_can_end_have_an_end(compiler: GrammarCompiler, params: P) -> None:
    assert compiler.submit(params).result().ends


@pytest.mark.parametrize(
    "params",
    [
        P(regex="(x{1,5000}){1,5000}"),
        P(regex="(a+)+b"),
        P(json={"enum": [f"value {index}" for index in range(4_000)]}),
        P(json="true"),
        P(json={}),
    ],
    ids=["repetitions", "ambiguous", "long enumeration", "true", "any"],
)
def test_costly_looking_forms_that_are_harmless_compile(tiny_compiler: LocalCompiler, params: P) -> None:
    assert tiny_compiler.compile(params).min_tokens > 0


def test_a_crash_does_not_affect_the_next_grammar(compiler: GrammarCompiler) -> None:
    for _ in range(2):
        with pytest.raises(ParameterError):
            compiler.submit(P(grammar=chain(6_000))).result()
        assert compiler.submit(P(regex="a|b")).result().min_tokens == 1


def test_equal_forms_are_compiled_once(compiler: GrammarCompiler) -> None:
    first = compiler.submit(P(json={"type": "integer"})).result()
    assert compiler.submit(P(json='{"type": "integer"}')).result() is first
    assert compiler.submit(P(json={"type": "number"})).result() is not first


def test_the_least_recently_used_grammar_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "CACHED_GRAMMARS", 2)
    tokenizer = byte_level()
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size, seconds=2.0)
    first, second, again, _, once_more = (compiler.submit(P(regex=regex)).result() for regex in "abaca")
    second_again = compiler.submit(P(regex="b")).result()
    compiler.close()
    assert first is again
    assert first is once_more
    assert second is not second_again


class Slow(GrammarHost):
    """Compiles nothing before ``go`` is set."""

    go = threading.Event()
    begun: ClassVar[list[str]] = []

    def send(self, message: ToHost) -> None:
        if isinstance(message, Compile):
            self.begun.append(message.params.regex or "")
        super().send(message)

    def read_until(self, arrived: Callable[[], bool]) -> None:
        assert self.go.wait(30)
        super().read_until(arrived)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarCompiler]:
    monkeypatch.setattr(compile_module, "GrammarHost", Slow)
    Slow.go.clear()
    Slow.begun.clear()
    tokenizer = byte_level()
    made = GrammarCompiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size, seconds=2.0)
    yield made
    Slow.go.set()
    made.close()


def test_submitting_never_waits_and_a_flood_is_refused(monkeypatch: pytest.MonkeyPatch, slow: GrammarCompiler) -> None:
    monkeypatch.setattr(compile_module, "MAX_WAITING", 5)
    futures = [slow.submit(P(regex="a" * length)) for length in range(1, 7)]
    with pytest.raises(ResourceError, match="5 grammars are already waiting"):
        slow.submit(P(regex="b")).result()
    Slow.go.set()
    assert [future.result().min_tokens > 0 for future in futures] == [True] * 6
    assert slow.submit(P(regex="b")).result()


def test_submitting_does_not_wait_for_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, start = threading.Event(), threading.Event(), ForkServer._start

    def slow_start(server: ForkServer) -> socket.socket:
        begun.set()
        assert go.wait(30)
        return start(server)

    monkeypatch.setattr(ForkServer, "_start", slow_start)
    tokenizer = byte_level()
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size)
    with ThreadPoolExecutor(1) as pool:
        try:
            first = compiler.submit(P(regex="a"), "one")
            assert begun.wait(30)
            second = pool.submit(compiler.submit, P(regex="b"), "two").result(timeout=25)
        finally:
            go.set()
    assert (first.result().min_tokens, second.result().min_tokens) == (1, 1)
    compiler.close()


def test_a_caller_waits_for_one_grammar_of_others_not_for_all(
    monkeypatch: pytest.MonkeyPatch, slow: GrammarCompiler
) -> None:
    """One worker is always free for a second caller, and a full queue refuses the last entry of the first."""
    monkeypatch.setattr(compile_module, "MAX_WAITING", 5)
    bombs = [slow.submit(P(regex="a" * length), "greedy") for length in range(1, 7)]
    polite = slow.submit(P(regex="b"), "polite")
    third = slow.submit(P(regex="c"), "third")
    assert isinstance(bombs[-1].exception(timeout=0), ResourceError)
    assert polite.running()
    Slow.go.set()
    assert [future.result().min_tokens for future in (polite, third, *bombs[:4])] == [1, 1, 1, 2, 3, 4]
    assert Slow.begun.index("c") < Slow.begun.index("aaa")


def test_a_model_without_an_end_token_cannot_be_constrained() -> None:
    tokenizer = tokenizer_of(bytelevel_metadata())
    compiler = GrammarCompiler(tokenizer, (), tokenizer.vocab_size)
    with pytest.raises(ParameterError, match="end-of-sequence"):
        compiler.submit(FORMS["choice"].params).result()
    compiler.close()
