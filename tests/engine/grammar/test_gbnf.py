"""GBNF becomes Lark that means the same."""

from __future__ import annotations

import time

import pytest

from tests.engine.grammar.conftest import LocalCompiler
from twofold.core.errors import ParameterError
from twofold.core.params import StructuredOutputsParams
from twofold.engine.grammar.source import gbnf_to_lark, is_gbnf


@pytest.mark.parametrize(
    ("grammar", "valid", "invalid"),
    [
        (r'root ::= "a\"b\\" [^\]a-z"/&]{2} # end', ['a"b\\AB', 'a"b\\~-'], ['a"b\\A/', 'a"b\\]]', 'a"b\\ab']),
        ('root ::= item ("," item)*\nitem ::= [0-9]+ | "-"?', ["1,22,-", "", ","], ["1;", "a"]),
        ('root ::= (\n  "x"\n  | "y" )+\n', ["x", "yx"], ["", "z"]),
        ("root ::= . . [\\x41-\\x43] [\\u0105ż]", ["??Aą", "ąąCż"], ["??Dą", "\n?Aą"]),
        ("root ::= my-Rule\nmy-Rule ::= [a-c]{1,3}", ["a", "abc"], ["", "abca"]),
        ('root ::= "é\\n\\t" number\nnumber ::= "1" number | "2"', ["é\n\t112"], ["é\n\t11", "é\\n2"]),
    ],
)
def test_texts_of_the_grammar(tiny_compiler: LocalCompiler, grammar: str, valid: list[str], invalid: list[str]) -> None:
    compiled = tiny_compiler.compile(StructuredOutputsParams(grammar=grammar))

    def holds(text: str) -> bool:
        matcher = compiled.matcher.deep_copy()
        tokens = compiled.vocabulary.encode(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert [text for text in valid if not holds(text)] == []
    assert [text for text in invalid if holds(text)] == []


def test_lark_is_not_taken_for_gbnf() -> None:
    assert is_gbnf('root::="a"')
    assert not is_gbnf('start: "a ::= b"')


@pytest.mark.parametrize("grammar", ['root ::= "a', "root ::= [a", '"a" root ::= b', "root ::= a\nroot ::= b", "::="])
def test_malformed_grammars_are_refused(grammar: str) -> None:
    with pytest.raises(ParameterError, match="GBNF"):
        gbnf_to_lark(grammar)


def test_long_chains_take_linear_time() -> None:
    rules = [f"r{index} ::= r{index + 1}" for index in range(9_000)]
    start = time.thread_time()
    gbnf_to_lark("\n".join(["root ::= r0", *rules, 'r9000 ::= "a"']))
    assert time.thread_time() - start < 2
