"""The parameters of every kernel, and the record of a step.

    kernel(args, step, begin, end, scratch)

``args`` is the call's own record of 8-byte fields, ``begin … end`` its share of the units, ``scratch`` is memory of the
worker. ``step`` is one record for all calls of a step: its counts are numbers of units, its pointers lead to the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

from twofold.backends.cpu.kernels.ir import I64, PTR, Kernel, Value

KERNEL_PARAMETERS = [("args", PTR), ("step", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)]


class StepFields(IntEnum):
    """Fields of the step's record: counts first, then pointers to int32 arrays, then sizes.

    TABLE_STRIDE is from a sequence's block table to the next, GROUP_STRIDE from a KV group's tables to the next
    group's, both in int32 values. After these fields follow the counts of each list of attention's items and merges.
    """

    ONE = 0
    ROWS = 1
    LOGIT_ROWS = 3
    HIDDEN_ROWS = 5
    TOKENS = 8
    POSITIONS = 9
    ROW_SEQUENCE = 10
    TABLES = 11
    LOGIT_LIST = 13
    HIDDEN_LIST = 15
    TABLE_STRIDE = 16
    GROUP_STRIDE = 17
    SIZE = 18


class KernelArguments:
    """A kernel's own record, read by field name."""

    def __init__(self, k: Kernel, fields: Sequence[str], pointers: frozenset[str]) -> None:
        args = k.args[0]
        self._values = {n: k.field(PTR if n in pointers else I64, args, i) for i, n in enumerate(fields)}

    def __getitem__(self, name: str) -> Value:
        return self._values[name]


@contextmanager
def kernel(
    name: str, fields: Sequence[str], pointers: frozenset[str]
) -> Iterator[tuple[Kernel, KernelArguments, Iterator[Value]]]:
    """A kernel, its arguments by field name, and the loop over its units."""
    k = Kernel(name, KERNEL_PARAMETERS)
    yield k, KernelArguments(k, fields, pointers), k.range(k.args[2], k.args[3])
    k.ret()


def step_pointer(k: Kernel, field: StepFields) -> Value:
    return k.field(PTR, k.args[1], field)


def step_count(k: Kernel, field: StepFields) -> Value:
    return k.field(I64, k.args[1], field)
