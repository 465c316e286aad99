"""What the compiler made of the kernels: no calls, and vectors stay in registers but for a measured few."""

from __future__ import annotations

import pytest

from tests.kernels.harness import Machine
from twofold.kernels.inspect import build, inspect, main

INNER_LOOPS = {
    "avx512": {"Q4_K": 14, "Q6_K": 48, "BF16": 0},
    "avx2": {"Q4_K": 70, "Q6_K": 88, "BF16": 0},
}
"""Most vectors on the stack in any innermost loop of a linear kernel.

The largest tiles, of five to eight hundred instructions, are faster with these few on the stack than smaller tiles are
with none. AVX-512 code is tuned for the processor at hand, so its budget leaves room.
"""


def vector_machine(machines: list[Machine], name: str) -> Machine:
    machine = next((m for m in machines if m.isa.name == name), None)
    if machine is None:
        pytest.skip(f"this processor has no {name}")
    return machine


@pytest.mark.parametrize(("isa", "name"), [(isa, name) for isa, budget in INNER_LOOPS.items() for name in budget])
def test_linear_kernels_keep_to_registers(machines: list[Machine], isa: str, name: str) -> None:
    machine = vector_machine(machines, isa)
    result = inspect(build("linear", name, machine.isa), machine.compiler)
    assert result.whole.calls == 0
    assert result.inner_loops
    assert max(loop.vector_spills for loop in result.inner_loops) <= INNER_LOOPS[isa][name]


@pytest.mark.parametrize("kind", ["argmax", "log_sum_exp", "group_maxima", "at_least", "weight_sums", "weights"])
@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_logits_kernels_call_nothing(machines: list[Machine], isa: str, kind: str) -> None:
    machine = vector_machine(machines, isa)
    assert inspect(build(kind, None, machine.isa), machine.compiler).whole.calls == 0


def test_the_command_prints_text_assembly_and_histogram(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "Q4_K", "--isa", "portable", "--ir", "--asm"]) == 0
    printed = capsys.readouterr().out
    assert "define void @embed_Q4_K" in printed
    assert "embed_Q4_K:" in printed
    assert "whole kernel:" in printed


@pytest.mark.parametrize(
    ("arguments", "hint"), [(["liner", "Q4_K"], "linear"), (["linear", "Q4_L"], "Q4_"), (["argmx"], "argmax")]
)
def test_unknown_names_are_told_the_nearest(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert hint in capsys.readouterr().err
