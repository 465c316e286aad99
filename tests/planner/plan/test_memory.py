"""The memory of a device, line by line, and what fits: the public claims about it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.core.errors import ParameterError
from twofold.core.values import FP8, INT4
from twofold.planner.count.memory import BLOCK, ReplicaMemory, activation_bytes
from twofold.planner.count.setting import Setting
from twofold.planner.machines.known import find_machine
from twofold.planner.plan.document import fit_result_document
from twofold.planner.plan.fitting import Question, fit, ways
from twofold.planner.plan.report import fit_lines
from twofold.planner.shapes.known import find_shape


def question(model: str = "llama-3-70b", machine: str = "h100", **others: Any) -> Question:
    asked: dict[str, Any] = {"context": 128_000, "concurrency": 2} | others
    return Question(shape=find_shape(model), machine=find_machine(machine), **asked)


def test_80_gb_leave_no_room_for_two_128k_requests_of_llama_3_70b() -> None:
    """The claim is wrong twice: 16-bit weights alone are 141 GB, and two caches are 83.9 GB."""
    found = fit(question())
    assert found.room.weights == pytest.approx(141.1e9, rel=1e-3)
    assert found.room.weights > found.room.memory
    assert found.needed == pytest.approx(83.9e9, rel=1e-3)
    assert not found.fits
    assert found.sequences == 0
    assert found.longest == 0
    assert found.missing == found.needed - found.room.kv


def test_not_even_4_bit_weights_make_it_true() -> None:
    found = fit(question(weights=INT4))
    assert found.room.kv > 0
    assert found.sequences == 0
    assert fit(question(weights=INT4, kv=FP8)).sequences == 1


def test_two_h100_hold_it_with_fp8_everywhere() -> None:
    fitting = [each for each in ways(question()) if each.fits]
    assert min(each.question.tp for each in fitting) == 2
    first = fitting[0]
    assert (first.weights, first.question.kv.name) == ("fp8", "fp8")


def test_llama_3_8b_on_an_a100_leaves_55_gib_for_its_cache() -> None:
    """vLLM's log: 55.1 GiB, with 0.9 of 80 GB."""
    found = fit(question("llama-3-8b", "a100-80", context=8192, concurrency=1))
    assert found.room.kv / 2**30 == pytest.approx(55.1, rel=0.04)


def test_lines_are_the_whole_memory() -> None:
    for each in ways(question()):
        if each.room.kv >= 0:
            assert sum(size for _, size in each.room.lines()) == each.room.memory


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["llama-3-8b", "gemma-3-4b", "deepseek-v3", "mixtral-8x7b"]), st.integers(1, 64))
def test_longest_and_sequences_are_each_others_inverse(model: str, sequences: int) -> None:
    memory = ReplicaMemory(find_shape(model), find_machine("mi300x").memory, Setting(tp=8), 2048, 256)
    longest = memory.longest(sequences, 1 << 20)
    if longest:
        assert memory.sequences(longest) >= sequences
    if longest < 1 << 20:
        assert memory.sequences(longest + BLOCK) < sequences


def test_activations_grow_with_rows_and_hold_the_logits() -> None:
    shape = find_shape("llama-3-8b")
    one = activation_bytes(shape, Setting(), 1, 0)
    assert activation_bytes(shape, Setting(), 100, 0) == 100 * one
    assert one == 2 * (2 * 4096 + 2 * 14336)
    assert activation_bytes(shape, Setting(), 1, 3) - one == 3 * 4 * 128_256


def test_devices_that_cannot_share_the_heads_are_refused() -> None:
    with pytest.raises(ParameterError, match="heads"):
        fit(question(tp=3))
    assert {each.question.tp for each in ways(question("smollm2-135m", context=100))} == {1}


@pytest.mark.parametrize("wrong", [{"context": 0}, {"concurrency": 0}, {"tp": 0}, {"share": 0.0}, {"share": 1.5}])
def test_impossible_questions(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        question(**wrong)


def test_lines_and_document_have_the_bytes() -> None:
    asked = question()
    text = "\n".join(fit_lines(fit(asked), list(ways(asked))))
    assert "141.1 GB" in text
    assert "83.9 GB" in text
    assert "does not fit: 148.0 GB too large" in text
    assert "supports contexts of up to 8,192 tokens" in text
    found = fit_result_document(fit(asked))
    assert found["fits"] is False
    assert found["needed_kv_bytes"] == 83_886_080_000
