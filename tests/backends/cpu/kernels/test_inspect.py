"""What the compiler made of the kernels: no calls, and vectors stay in registers but for a measured few."""

from __future__ import annotations

import platform
from functools import cache

import pytest

from twofold.backends.cpu.kernels.inspect import build, inspect, main
from twofold.backends.cpu.kernels.isa import TABLES
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler

INNER_LOOPS = {
    ("avx512", "cascadelake"): {"Q4_K": 12, "Q6_K": 56, "BF16": 0},
    ("avx512", "znver4"): {"Q4_K": 8, "Q6_K": 62, "BF16": 0},
    ("avx2", "x86-64-v3"): {"Q4_K": 70, "Q6_K": 88, "BF16": 0},
}
"""Most vectors on the stack in any innermost loop of a linear kernel, by instruction table and processor.

The largest tiles, of five to eight hundred instructions, are faster with these few on the stack than smaller tiles are
with none. LLVM allocates registers differently for each processor, so these are named ones: code is generated for them
on any x86 machine, and never run.
"""


@cache
def compiler(isa: str, cpu: str) -> Compiler:
    """Generates code for a named processor, whatever runs the test."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("LLVM generates code for x86 on x86 only")
    return Compiler(CodegenTarget(next(table for table in TABLES if table.name == isa), cpu, ""))


@pytest.mark.parametrize(
    ("isa", "cpu", "name"), [(*target, name) for target, budget in INNER_LOOPS.items() for name in budget]
)
def test_linear_kernels_keep_to_registers(isa: str, cpu: str, name: str) -> None:
    compiled = compiler(isa, cpu)
    result = inspect(build("linear", name, compiled.target.isa), compiled)
    assert result.whole.calls == 0
    assert result.inner_loops
    assert max(loop.vector_spills for loop in result.inner_loops) <= INNER_LOOPS[isa, cpu][name]


@pytest.mark.parametrize("kind", ["argmax", "log_sum_exp", "group_maxima", "at_least", "weight_sums", "weights"])
@pytest.mark.parametrize(("isa", "cpu"), INNER_LOOPS)
def test_logits_kernels_call_nothing(isa: str, cpu: str, kind: str) -> None:
    compiled = compiler(isa, cpu)
    assert inspect(build(kind, None, compiled.target.isa), compiled).whole.calls == 0


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
