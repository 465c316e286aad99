"""``twofold kernels``: a kernel's compiled code."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from twofold.backends.cpu.kernels.inspect import build, inspect
from twofold.backends.cpu.kernels.isa import choose
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features
from twofold.cli.console import print_lines
from twofold.cli.options import FLAG


def kernels(
    kernel: Annotated[str, Parameter(help="Kernel name, e.g. linear, pack, argmax.")],
    format: Annotated[str | None, Parameter(help="Tensor format, e.g. Q4_K, for kernels that take one.")] = None,
    /,
    *,
    isa: Annotated[str | None, Parameter(help="avx512, avx2 or portable. Default: the best available.")] = None,
    ir: Annotated[bool, FLAG, Parameter(help="Print the LLVM IR.")] = False,
    asm: Annotated[bool, FLAG, Parameter(help="Print the assembly.")] = False,
) -> int:
    """Show a kernel's compiled code, and count its instructions."""
    table = choose(host_features(), isa)
    result = inspect(build(kernel, format, table), Compiler(CodegenTarget.of(table)))
    print_lines([*[result.ir] * ir, *[result.assembly] * asm, result.report()])
    return 0
