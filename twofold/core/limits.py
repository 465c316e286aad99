"""What a machine can do at most: bytes it reads and multiply-adds it makes in a second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

SIZE_STEP: Final = 16 << 20
LARGEST_SIZE: Final = 512 << 20
"""Beyond it nothing is in a cache."""


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    """Bytes a second, reading ``size`` bytes in order again and again."""

    size: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Ceilings of ``threads`` threads of a processor under one instruction set. ``reads`` ascend in size.

    ``bf16_macs_per_s`` is None where bfloat16 numbers are multiplied as float32.
    """

    cpu: str
    isa: str
    threads: int
    reads: tuple[ReadSpeed, ...]
    int8_macs_per_s: float
    float_macs_per_s: float
    measured: str
    bf16_macs_per_s: float | None = None

    def read_speed(self, working_set: int) -> float:
        """Bytes a second for a working set: the best measured of sizes that are no smaller, for less is no slower."""
        fitting = [read.bytes_per_s for read in self.reads if read.size >= working_set]
        return max(fitting, default=self.reads[-1].bytes_per_s)

    def measured_at(self, working_set: int) -> bool:
        """Whether a size near the working set was measured: between it and the next size a cache may end."""
        size = probe_size(working_set)
        return any(read.size == size for read in self.reads)

    @property
    def age(self) -> timedelta:
        return datetime.now(UTC) - datetime.fromisoformat(self.measured)


def probe_size(working_set: int) -> int:
    """At which size reading is measured for a model's weights: theirs in whole probes, up to the largest probe."""
    return min(-(-max(1, working_set) // SIZE_STEP) * SIZE_STEP, LARGEST_SIZE)


def best_of(known: MachineLimits, now: MachineLimits) -> MachineLimits:
    """The higher of each ceiling, as old as the older: two measurements of one machine."""
    speeds: dict[int, float] = {}
    for read in (*known.reads, *now.reads):
        speeds[read.size] = max(read.bytes_per_s, speeds.get(read.size, 0.0))
    return replace(
        known,
        reads=tuple(ReadSpeed(size, speeds[size]) for size in sorted(speeds)),
        int8_macs_per_s=max(known.int8_macs_per_s, now.int8_macs_per_s),
        float_macs_per_s=max(known.float_macs_per_s, now.float_macs_per_s),
        bf16_macs_per_s=max(filter(None, (known.bf16_macs_per_s, now.bf16_macs_per_s)), default=None),
    )
