"""The compiled code of a kernel: an instruction histogram, and the innermost loops with their spills and calls.

``twofold kernels`` prints it. Spills are recognised in x86 assembly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from twofold.backends.cpu.kernels.embed import embed_kernel
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.kernels.layout import FLOAT_FORMATS, PACKINGS, pack_kernel
from twofold.backends.cpu.kernels.linear import linear_kernel
from twofold.backends.cpu.kernels.logits import LOGIT_KERNELS
from twofold.core.errors import ParameterError, did_you_mean

LABEL: Final = re.compile(r"^(\.?L\w+):")
INSTRUCTION: Final = re.compile(r"^\t([a-z][a-z0-9.]*)(?:\t|$)")
VECTOR_ON_STACK: Final = re.compile(r"\(%rsp.*%[xyz]mm|%[xyz]mm.*\(%rsp")
CALLS: Final = frozenset({"call", "callq", "bl", "blr"})


@dataclass(frozen=True, slots=True)
class Block:
    """The instructions between a label and the next.

    vector_spills   instructions that read or write a vector on the stack, in a buffer of the kernel too
    calls           calls of other functions
    loops           whether an instruction jumps back to the label: an innermost loop
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
    """A kernel's LLVM text, its assembly, and the blocks of the assembly."""

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


FORMAT_KERNELS: Final[Mapping[str, Callable[[Isa, str], Kernel]]] = {
    "linear": linear_kernel,
    "pack": lambda _isa, name: pack_kernel(name),
    "embed": embed_kernel,
}


def build(kind: str, name: str | None, isa: Isa) -> Kernel:
    """The kernel ``kind``, for the format ``name`` if it needs one. Raises ParameterError for unknown names."""
    if kind in LOGIT_KERNELS:
        return LOGIT_KERNELS[kind][0]()
    _check(kind, "kernel", (*FORMAT_KERNELS, *LOGIT_KERNELS))
    formats = (*PACKINGS, *FLOAT_FORMATS)
    if name is None:
        hint = f"One of: {', '.join(formats)}."
        raise ParameterError(f"The kernel {kind} needs a tensor format.", param="format", hint=hint)
    _check(name, "format", formats)
    return FORMAT_KERNELS[kind](isa, name)


def _check(name: str, param: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ParameterError(f"There is no {param} named {name!r}.", param=param, hint=did_you_mean(name, known))
