"""All outputs that are sampled under a constraint have the form, at any limit."""

from __future__ import annotations

import random

import pytest

from tests.engine.grammar.conftest import LocalCompiler
from tests.engine.grammar.walks import FORMS, LONG_NAMES, Form, walk
from twofold.core.params import StructuredOutputsParams

each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def check_walks(compiler: LocalCompiler, form: Form, *, walks: int, generous: int) -> None:
    compiled = compiler.compile(form.params)
    least = compiled.min_tokens
    for index, limit in enumerate((least, least + 2, least + 13, generous)):
        for seed in range(walks):
            answer = walk(compiled, limit, random.Random(100 * index + seed), structural=(0.9, 0.0, 0.5)[seed % 3])
            assert form.holds(answer.text), (limit, seed, answer)
            assert len(answer.tokens) <= limit


@each_form
def test_outputs_are_valid_at_any_limit(tiny_compiler: LocalCompiler, form: Form) -> None:
    check_walks(tiny_compiler, form, walks=3, generous=90)


@pytest.mark.model
@each_form
def test_outputs_of_the_real_vocabulary_are_valid(model_compiler: LocalCompiler, form: Form) -> None:
    check_walks(model_compiler, form, walks=2, generous=70)


def test_generous_limits_rule_nothing_out(tiny_compiler: LocalCompiler) -> None:
    compiled = tiny_compiler.compile(FORMS["choice"].params)
    answers = [walk(compiled, 400, random.Random(seed)) for seed in range(20)]
    assert all(answer.ended and not answer.shortened for answer in answers)


def test_every_choice_is_reached(tiny_compiler: LocalCompiler) -> None:
    choice = ["red", "green", "reddish", "gr", *LONG_NAMES]
    compiled = tiny_compiler.compile(StructuredOutputsParams(choice=choice))
    assert {walk(compiled, 400, random.Random(seed)).text for seed in range(120)} == set(choice)


def test_choices_too_long_for_the_limit_are_ruled_out(tiny_compiler: LocalCompiler) -> None:
    compiled = tiny_compiler.compile(StructuredOutputsParams(choice=["no", "yes", "perhaps some other day"]))
    answers = [walk(compiled, 4, random.Random(seed)) for seed in range(30)]
    assert {answer.text for answer in answers} == {"no", "yes"}
    assert all(answer.shortened for answer in answers)


def test_an_optional_part_that_no_longer_fits_is_not_opened(tiny_compiler: LocalCompiler) -> None:
    compiled = tiny_compiler.compile(FORMS["wide"].params)
    texts = {walk(compiled, 40, random.Random(seed)).text for seed in range(20)}
    assert texts == {"null"}
