"""What a kernel became: ``python -m twofold.backends.cpu.kernels.inspect linear Q4_K --isa avx512 [--ir] [--asm]``.

Prints the instruction histogram and the innermost loops with their spills and calls; with ``--ir`` the LLVM text first,
with ``--asm`` the assembly. Spills are recognised in x86 assembly.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from twofold.backends.cpu.kernels import logits
from twofold.backends.cpu.kernels.embed import FLOAT_FORMATS, embed_kernel
from twofold.backends.cpu.kernels.float_linear import FloatFormat, FloatLinearKernel, float_pack_kernel
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.isa import Isa, choose
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features
from twofold.backends.cpu.kernels.layout import PACKINGS
from twofold.backends.cpu.kernels.linear import LinearKernel
from twofold.backends.cpu.kernels.pack import pack_kernel
from twofold.core.errors import ParameterError, TwofoldError, did_you_mean

LABEL: Final = re.compile(r"^(\.?L\w+):")
INSTRUCTION: Final = re.compile(r"^\t([a-z][a-z0-9.]*)(?:\t|$)")
VECTOR_ON_STACK: Final = re.compile(r"\(%rsp.*%[xyz]mm|%[xyz]mm.*\(%rsp")
CALLS: Final = frozenset({"call", "callq", "bl", "blr"})


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions between a label and the next.

    vector_spills   those that read or write a vector on the stack; kernels that keep a buffer there have them too
    calls           calls of other functions
    loops           whether one of them jumps back to the label: an innermost loop
    """

    label: str
    histogram: Counter[str]
    vector_spills: int
    loops: bool

    @property
    def calls(self) -> int:
        return sum(self.histogram[name] for name in CALLS)

    def __str__(self) -> str:
        return f"{self.histogram.total()} instructions, {self.vector_spills} vector spills, {self.calls} calls"


@dataclass(frozen=True, slots=True)
class Inspection:
    """A kernel's text, its assembly, and the blocks of that."""

    ir: str
    assembly: str
    blocks: tuple[Block, ...]

    @property
    def whole(self) -> Block:
        """All blocks as one."""
        histogram = sum((block.histogram for block in self.blocks), Counter[str]())
        return Block("", histogram, sum(block.vector_spills for block in self.blocks), loops=False)

    @property
    def inner_loops(self) -> list[Block]:
        return [block for block in self.blocks if block.loops]

    def report(self) -> str:
        """The histogram, most frequent first; the innermost loops, largest first; the totals."""
        ordered = sorted(self.whole.histogram.items(), key=lambda item: (-item[1], item[0]))
        loops = sorted(self.inner_loops, key=lambda block: -block.histogram.total())
        lines = [f"{count:8}  {name}" for name, count in ordered]
        return "\n".join([*lines, *(f"{block.label}: {block}" for block in loops), f"whole kernel: {self.whole}"])


def inspect(kernel: Kernel, compiler: Compiler) -> Inspection:
    """Compiles ``kernel`` to assembly and counts what is in it."""
    assembly = compiler.assembly(kernel)
    return Inspection(kernel.text(), assembly, tuple(_blocks(assembly)))


def _blocks(assembly: str) -> Iterator[Block]:
    label, lines = "entry", list[str]()
    for line in assembly.splitlines():
        match = LABEL.match(line)
        if match:
            yield _block(label, lines)
            label, lines = match[1], []
        elif INSTRUCTION.match(line):
            lines.append(line)
    yield _block(label, lines)


def _block(label: str, lines: list[str]) -> Block:
    names = [match[1] for line in lines if (match := INSTRUCTION.match(line))]
    spills = sum(VECTOR_ON_STACK.search(line) is not None for line in lines)
    return Block(label, Counter(names), spills, any(line.split()[-1] == label for line in lines))


def build(kind: str, name: str | None, isa: Isa) -> Kernel:
    """The kernel called ``kind``, for the format ``name`` where it has formats. ParameterError for unknown names."""
    plain = PLAIN_KERNELS.get(kind)
    if plain is not None:
        return plain()
    makers = _formats_of(_known(kind, "kernel", FORMAT_KERNELS), isa)
    if name is None:
        raise ParameterError(
            f"The kernel {kind} needs a tensor format.", param="format", hint=f"One of: {', '.join(makers)}."
        )
    return makers[_known(name, "format", makers)]()


PLAIN_KERNELS: Final[Mapping[str, Callable[[], Kernel]]] = {
    "argmax": logits.argmax_kernel,
    "log_sum_exp": logits.log_sum_exp_kernel,
    "group_maxima": logits.group_maxima_kernel,
    "at_least": logits.at_least_kernel,
    "weight_sums": logits.weight_sums_kernel,
    "weights": logits.weights_kernel,
}
FORMAT_KERNELS: Final = ("linear", "pack", "embed")


def _formats_of(kind: str, isa: Isa) -> Mapping[str, Callable[[], Kernel]]:
    if kind == "embed":
        return {name: partial(embed_kernel, isa, name) for name in (*PACKINGS, *FLOAT_FORMATS)}
    if kind == "pack":
        return {n: partial(pack_kernel, p) for n, p in PACKINGS.items()} | {
            n: partial(float_pack_kernel, n) for n in FLOAT_FORMATS
        }
    return {n: partial(_linear, isa, n) for n in PACKINGS} | {n: partial(_float_linear, isa, n) for n in FLOAT_FORMATS}


def _linear(isa: Isa, name: str) -> Kernel:
    return LinearKernel(isa, PACKINGS[name]).generate()


def _float_linear(isa: Isa, name: FloatFormat) -> Kernel:
    return FloatLinearKernel(isa, name).generate()


def _known(name: str, param: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    if name in known:
        return name
    names = [*known, *PLAIN_KERNELS] if param == "kernel" else [*known]
    raise ParameterError(f"There is no {param} named {name!r}.", param=param, hint=did_you_mean(name, names))


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m twofold.backends.cpu.kernels.inspect", description="Shows what a kernel became."
    )
    parser.add_argument("kernel", help=f"{', '.join((*FORMAT_KERNELS, *PLAIN_KERNELS))}")
    parser.add_argument("format", nargs="?", help="a tensor format, for kernels that have one: Q4_K")
    parser.add_argument("--isa", help="avx512, avx2 or portable; default: the best available")
    parser.add_argument("--ir", action="store_true", help="print the LLVM text")
    parser.add_argument("--asm", action="store_true", help="print the assembly")
    options = parser.parse_args(arguments)
    try:
        isa = choose(host_features(), options.isa)
        result = inspect(build(options.kernel, options.format, isa), Compiler(CodegenTarget.of(isa)))
    except TwofoldError as error:
        print(f"{error} {error.hint or ''}".rstrip(), file=sys.stderr)
        return error.exit_code
    shown = [result.ir] * options.ir + [result.assembly] * options.asm + [result.report()]
    print("\n".join(shown))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
