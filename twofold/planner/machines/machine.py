"""What a machine can do at most, every figure with where it is from.

A ``Cited`` number cannot be made without a source, and ``Machine`` takes no others: what nobody published is absent.
Speeds are bytes and FLOPs a second, a multiply-add being two FLOPs; peaks are those of dense matrices. Memory counts
as makers mean it: the GB of a GPU's data sheet are 2³⁰ bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from twofold.core.errors import ParameterError
from twofold.core.values import Arithmetic

Kind = Literal["gpu", "tpu", "cpu"]
AllReduce = Literal["nccl", "custom"]

INSTEAD: Final[Mapping[Arithmetic, tuple[Arithmetic, ...]]] = {
    "fp4": ("fp8", "bf16", "fp16", "fp32"),
    "fp8": ("bf16", "fp16", "fp32"),
    "int8": ("bf16", "fp16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32",),
    "fp32": (),
}
"""In which numbers a machine multiplies values that it has no units for: the next wider ones that it has."""


class Cited(float):
    """A number and the document that says so."""

    __slots__ = ("source",)

    source: str

    def __new__(cls, value: float, source: str) -> Self:
        if not source.strip():
            raise ValueError(f"{value} comes without a source")
        cited = super().__new__(cls, value)
        cited.source = source
        return cited

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.source


@dataclass(frozen=True, slots=True)
class Machine:
    """One device: a GPU, a TPU chip, or a processor with its memory.

    memory        bytes
    bandwidth     of that memory
    peaks         FLOPs a second by arithmetic
    link          to the other devices of a server, all links together, in one direction
    host_link     to the host's memory, in one direction
    all_reduce_s  the time of summing up almost nothing over all devices, by the library that does it
    watts         at most
    price         dollars an hour
    """

    name: str
    kind: Kind
    memory: Cited
    bandwidth: Cited
    peaks: Mapping[Arithmetic, Cited]
    link: Cited | None = None
    host_link: Cited | None = None
    all_reduce_s: Mapping[AllReduce, Cited] = field(default_factory=dict)
    watts: Cited | None = None
    price: Cited | None = None
    other_names: tuple[str, ...] = ()

    def computes_in(self, arithmetic: Arithmetic) -> Arithmetic:
        """The numbers that products of that kind are really made in here: wider ones where there are no units."""
        for each in (arithmetic, *INSTEAD[arithmetic]):
            if each in self.peaks:
                return each
        close = ", ".join(self.peaks)
        raise ParameterError(
            f"No peak of {self.name} is known for {arithmetic}.", param="hardware", hint=f"Known: {close}."
        )

    def peak(self, arithmetic: Arithmetic) -> float:
        """FLOPs a second of dense matrices in that arithmetic, or in what stands in for it."""
        return self.peaks[self.computes_in(arithmetic)]

    def ridge(self, arithmetic: Arithmetic = "bf16") -> float:
        """FLOPs a byte from which work is bound by arithmetic (Williams et al. 2009)."""
        return self.peak(arithmetic) / self.bandwidth

    def cited(self) -> dict[str, Cited]:
        """Every figure by its name, as ``peaks.bf16``."""
        single = ("memory", "bandwidth", "link", "host_link", "watts", "price")
        found = {name: getattr(self, name) for name in single if getattr(self, name) is not None}
        found |= {f"peaks.{name}": value for name, value in self.peaks.items()}
        return found | {f"all_reduce_s.{name}": value for name, value in self.all_reduce_s.items()}
