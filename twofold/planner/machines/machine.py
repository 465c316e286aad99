"""Limits of a machine, each figure with its source, and this machine as it was measured.

A ``Cited`` number has a source, and ``Machine`` takes no others: a figure that was not published is absent. Speeds are
bytes and FLOPs a second, a multiply-add being two FLOPs; peaks are those of dense matrices. The GB of a GPU's data
sheet are 2³⁰ bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

from twofold.core.errors import ParameterError
from twofold.core.kv_layout import INTEGER_TYPES, KV_FORMATS, KVType
from twofold.core.limits import MachineLimits
from twofold.core.model import ModelSpec
from twofold.core.values import FP32, Arithmetic
from twofold.host.machine import read_memory
from twofold.planner.count.memory import streamed_bytes
from twofold.planner.count.setting import Setting

Kind = Literal["gpu", "tpu", "cpu"]

INSTEAD: Final[Mapping[Arithmetic, tuple[Arithmetic, ...]]] = {
    "fp4": ("fp8", "bf16", "fp16", "fp32"),
    "fp8": ("bf16", "fp16", "fp32"),
    "int8": ("bf16", "fp16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32",),
    "fp32": (),
}
"""Formats in which a machine without units for one multiplies it, the next wider first."""


class Cited(float):
    """A number with the document that it is from."""

    __slots__ = ("source",)

    source: str

    def __new__(cls, value: float, source: str) -> Self:
        if not source.strip():
            raise ValueError(f"{value} has no source")
        cited = super().__new__(cls, value)
        cited.source = source
        return cited

    def document(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {"value": float(self), "source": self.source}

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.source


THIS_MACHINE: Final = "this machine"
DISK: Final = Cited(1.2e9, "assumed: direct reads of a virtual machine's disk, measured 2026-11-22")


@dataclass(frozen=True, slots=True)
class Machine:
    """One device: a GPU, a TPU chip, or a processor with its memory.

    memory      bytes
    bandwidth   of that memory
    peaks       FLOPs a second by arithmetic
    link        to the other devices of a server, all links together, in one direction
    host_link   to the host's memory, in one direction
    disk        bytes a second read from its host's disk
    watts       peak
    price       dollars an hour
    """

    name: str
    kind: Kind
    memory: Cited
    bandwidth: Cited
    peaks: Mapping[Arithmetic, Cited]
    link: Cited | None = None
    host_link: Cited | None = None
    watts: Cited | None = None
    price: Cited | None = None
    other_names: tuple[str, ...] = ()
    disk: Cited = DISK

    def with_disk(self, gbs: float | None) -> Machine:
        """The machine with a disk that reads so many GB/s; unchanged without a number."""
        if gbs is None:
            return self
        if not gbs > 0:
            raise ParameterError(f"A disk reads more than {gbs:g} GB/s.", param="disk-gbs")
        return replace(self, disk=Cited(gbs * 1e9, "given by --disk-gbs"))

    def computes_in(self, arithmetic: Arithmetic) -> Arithmetic:
        """The format that such products are computed in here: a wider one where there are no units for it."""
        for each in (arithmetic, *INSTEAD[arithmetic]):
            if each in self.peaks:
                return each
        close = ", ".join(self.peaks)
        raise ParameterError(
            f"No peak of {self.name} is known for {arithmetic}.", param="hardware", hint=f"Known: {close}."
        )

    def peak(self, arithmetic: Arithmetic) -> float:
        """FLOPs a second of dense matrices in that arithmetic, or in the wider one used instead."""
        return self.peaks[self.computes_in(arithmetic)]

    def ridge(self, arithmetic: Arithmetic = "bf16") -> float:
        """FLOPs a byte above which arithmetic is the limit (Williams et al. 2009)."""
        return self.peak(arithmetic) / self.bandwidth


def engine_setting(dtype: KVType = "bf16") -> Setting:
    """The engine on a CPU, with keys and values in that type. Pairs of 16-bit integers are multiplied as fast as those
    of bfloat16."""
    pairs = dtype in {"bf16", *INTEGER_TYPES}
    return Setting(kv=KV_FORMATS[dtype], activations=FP32, attention="bf16" if pairs else "fp32")


def measured_machine(
    memory_bytes: int, bandwidth: float, peaks: Mapping[Arithmetic, float], cpu: str, source: str
) -> Machine:
    """The machine of this process, by figures that were measured."""
    return Machine(
        THIS_MACHINE,
        "cpu",
        memory=Cited(memory_bytes, "the operating system"),
        bandwidth=Cited(bandwidth, source),
        peaks={name: Cited(value, source) for name, value in peaks.items()},
        other_names=(cpu,),
    )


def local_machine(limits: MachineLimits, memory_bytes: int, working_set: int) -> Machine:
    """The machine that ``limits`` were measured on, reading a working set of that size (a model's weights).

    The peak for ``int8`` is that of integer codes, that for ``bf16`` (if the processor has one) of attention, and that
    for ``fp32`` of everything else.
    """
    peaks: dict[Arithmetic, float] = {"fp32": 2 * limits.float_macs_per_s, "int8": 2 * limits.int8_macs_per_s}
    if limits.bf16_macs_per_s is not None:
        peaks["bf16"] = 2 * limits.bf16_macs_per_s
    source = f"measured {limits.measured} with {limits.threads} threads ({limits.isa})"
    return measured_machine(memory_bytes, limits.read_speed(working_set), peaks, limits.cpu, source)


def machine_of(shape: ModelSpec, limits: MachineLimits) -> Machine:
    """This machine, reading that model's weights."""
    return local_machine(limits, read_memory().usable, streamed_bytes(shape, engine_setting()))
