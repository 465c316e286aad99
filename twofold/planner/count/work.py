"""The work of a step or a phase: a list of operators whose sums are its totals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from twofold.core.values import Arithmetic


@dataclass(frozen=True, slots=True)
class Operator:
    """What all calls of one kind of operator did, on one device.

    calls               over all layers
    flops               of matrix products and attention; a multiply-add is two. Of experts: what a mean device does
    weight_bytes        streamed from memory, once a step; of experts: those that are expected to be picked
    kv_read             bytes of cached keys and values read: each position that a sequence's rows see, once a step
    kv_written          bytes of keys and values written
    activation_bytes    inputs read and outputs written, as if no two operators were fused; embedding rows looked up
    all_reduce_bytes    size of the messages that all devices sum up, over all calls
    arithmetic          in which numbers ``flops`` are made
    """

    name: str
    arithmetic: Arithmetic
    calls: int = 0
    flops: int = 0
    weight_bytes: float = 0
    kv_read: int = 0
    kv_written: int = 0
    activation_bytes: int = 0
    all_reduce_bytes: int = 0

    @property
    def memory_bytes(self) -> float:
        """Weights, keys and values: what must come from memory whatever is fused."""
        return self.weight_bytes + self.kv_read + self.kv_written

    def __add__(self, other: Operator) -> Operator:
        assert (self.name, self.arithmetic) == (other.name, other.arithmetic)
        return Operator(
            self.name,
            self.arithmetic,
            self.calls + other.calls,
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.kv_read + other.kv_read,
            self.kv_written + other.kv_written,
            self.activation_bytes + other.activation_bytes,
            self.all_reduce_bytes + other.all_reduce_bytes,
        )

    def times(self, count: int) -> Operator:
        """So many of it."""
        return Operator(
            self.name,
            self.arithmetic,
            self.calls * count,
            self.flops * count,
            self.weight_bytes * count,
            self.kv_read * count,
            self.kv_written * count,
            self.activation_bytes * count,
            self.all_reduce_bytes * count,
        )


@dataclass(frozen=True)
class Work:
    """Operators in the order of their first call, one for each name and arithmetic."""

    operators: tuple[Operator, ...]

    @classmethod
    def of(cls, operators: Iterable[Operator]) -> Work:
        """Joins operators of one name."""
        joined: dict[tuple[str, Arithmetic], Operator] = {}
        for each in operators:
            key = (each.name, each.arithmetic)
            joined[key] = joined[key] + each if key in joined else each
        return cls(tuple(joined.values()))

    def __add__(self, other: Work) -> Work:
        return Work.of((*self.operators, *other.operators))

    def named(self, name: str) -> Operator:
        """The operator of that name. KeyError where there is none; the sum's first arithmetic where several differ."""
        found = [each for each in self.operators if each.name == name]
        if not found:
            raise KeyError(name)
        first, *rest = found
        for each in rest:
            first = first + replace(each, arithmetic=first.arithmetic)
        return first

    @cached_property
    def flops(self) -> int:
        return sum(each.flops for each in self.operators)

    @cached_property
    def weight_bytes(self) -> float:
        return sum(each.weight_bytes for each in self.operators)

    @cached_property
    def kv_read(self) -> int:
        return sum(each.kv_read for each in self.operators)

    @cached_property
    def kv_written(self) -> int:
        return sum(each.kv_written for each in self.operators)

    @cached_property
    def activation_bytes(self) -> int:
        return sum(each.activation_bytes for each in self.operators)

    @cached_property
    def all_reduce_bytes(self) -> int:
        return sum(each.all_reduce_bytes for each in self.operators)

    @cached_property
    def all_reduces(self) -> int:
        """How many times the devices sum something up."""
        return sum(each.calls for each in self.operators if each.all_reduce_bytes)

    @property
    def memory_bytes(self) -> float:
        """Weights, keys and values."""
        return self.weight_bytes + self.kv_read + self.kv_written

    @property
    def intensity(self) -> float:
        """FLOPs for each byte of weights, keys and values."""
        return self.flops / self.memory_bytes

    def flops_by_arithmetic(self) -> dict[Arithmetic, int]:
        """FLOPs by the numbers that they are made in."""
        sums: dict[Arithmetic, int] = {}
        for each in self.operators:
            if each.flops:
                sums[each.arithmetic] = sums.get(each.arithmetic, 0) + each.flops
        return sums
