"""What the compiler made of the kernels: no calls, and vectors stay in registers but for a measured few."""

from __future__ import annotations

import platform
from functools import cache

import pytest

from twofold.backends.cpu.kernels.inspect import build, inspect
from twofold.backends.cpu.kernels.isa import TABLES
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler
from twofold.core.errors import ParameterError

INNER_LOOPS = {
    ("avx512", "cascadelake"): {"Q4_K": 12, "Q6_K": 30, "BF16": 0},
    ("avx512", "znver4"): {"Q4_K": 8, "Q6_K": 40, "BF16": 0},
    ("avx2", "x86-64-v3"): {"Q4_K": 70, "Q6_K": 89, "BF16": 0},
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


def test_text_assembly_and_histogram() -> None:
    portable = TABLES[-1]
    result = inspect(build("embed", "Q4_K", portable), Compiler(CodegenTarget.of(portable)))
    assert "define void @embed_Q4_K" in result.ir
    assert "embed_Q4_K:" in result.assembly
    assert "whole kernel:" in result.report()


@pytest.mark.parametrize(
    ("kind", "name", "hint"), [("liner", "Q4_K", "linear"), ("linear", "Q4_L", "Q4_"), ("argmx", None, "argmax")]
)
def test_errors_for_unknown_names_suggest_a_close_match(kind: str, name: str | None, hint: str) -> None:
    with pytest.raises(ParameterError) as caught:
        build(kind, name, TABLES[-1])
    assert hint in (caught.value.hint or "")
