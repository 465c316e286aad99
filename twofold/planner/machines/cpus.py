"""Processors, from their makers' data. Peaks are cores · base clock · FLOPs a cycle: what every core can hold.

FLOPs a cycle and core: two fused multiply-adds on each value of the vector units. Memory is the most that one socket
takes, or what the machine is sold with at most; who has less should say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from twofold.core.values import Arithmetic
from twofold.planner.machines.machine import Cited, Machine

GIB: Final = 1 << 30
G: Final = 1e9
T: Final = 1e12

EPYC_9654: Final = "AMD EPYC 9654 product page: 96 cores, 2.4 GHz, 12 channels of DDR5-4800"
EPYC_9754: Final = "AMD EPYC 9754 product page: 128 cores, 2.25 GHz, 12 channels of DDR5-4800"
ZEN4: Final = "AMD, Software Optimization Guide for Zen 4: two 256-bit multiply-add units; BF16 and VNNI"
XEON: Final = "Intel Xeon Platinum 8480+ product page: 56 cores, 2.0 GHz, 8 channels of DDR5-4800"
AMX: Final = "Intel 64 and IA-32 Optimization Reference Manual, AMX: 2,048 INT8 or 1,024 BF16 operations a cycle"
AVX512: Final = "Intel 64 and IA-32 Optimization Reference Manual: two 512-bit multiply-add units"
GRAVITON: Final = "Amazon EC2 R8g announcement (2024): 96 Neoverse V2 cores, 12 channels of DDR5-5600"
NEOVERSE: Final = "Arm Neoverse V2 Software Optimization Guide: four 128-bit vector units, at 2.8 GHz"
M2_ULTRA: Final = "Apple newsroom, M2 Ultra (2023): 192 GB, 800 GB/s, 27.2 TFLOPS with 76 GPU cores"
M4_MAX: Final = "Apple newsroom, M4 Max (2024): 128 GB, 546 GB/s, 40 GPU cores"


def processors() -> Iterator[Machine]:
    """CPUs, and chips whose CPU and GPU share their memory."""
    for name, source, cores, clock, names in (
        ("epyc-9654", EPYC_9654, 96, 2.4, ("genoa",)),
        ("epyc-9754", EPYC_9754, 128, 2.25, ("bergamo",)),
    ):
        yield Machine(
            name,
            "cpu",
            memory=Cited(6144 * GIB, source),
            bandwidth=Cited(460.8 * G, source),
            peaks=_by_cycle(f"{source}; {ZEN4}", cores, clock, fp32=32, bf16=64, int8=128),
            watts=Cited(360, source),
            other_names=names,
        )
    yield Machine(
        "xeon-8480",
        "cpu",
        memory=Cited(4096 * GIB, XEON),
        bandwidth=Cited(307.2 * G, XEON),
        peaks={
            **_by_cycle(f"{XEON}; {AVX512}", 56, 2.0, fp32=64),
            **_by_cycle(f"{XEON}; {AMX}", 56, 2.0, bf16=1024, int8=2048),
        },
        watts=Cited(350, XEON),
        other_names=("xeon-8480+", "sapphire-rapids"),
    )
    yield Machine(
        "graviton-4",
        "cpu",
        memory=Cited(768 * GIB, GRAVITON),
        bandwidth=Cited(537.6 * G, GRAVITON),
        peaks=_by_cycle(f"{GRAVITON}; {NEOVERSE}", 96, 2.8, fp32=32, fp16=64),
        other_names=("graviton4",),
    )
    yield _apple("m2-ultra", M2_ULTRA, 192, 800, Cited(27.2 * T, M2_ULTRA))
    yield _apple("m4-max", M4_MAX, 128, 546, Cited(18.4 * T, "huggingface.co/hardware/apple-m4-max"))


def _by_cycle(source: str, cores: int, clock_ghz: float, **flops: int) -> Mapping[Arithmetic, Cited]:
    return {name: Cited(cores * clock_ghz * G * each, source) for name, each in flops.items()}  # type: ignore[misc]


def _apple(name: str, source: str, memory: int, bandwidth: float, fp32: Cited) -> Machine:
    """The GPU computes; half-precision has no higher peak that Apple publishes."""
    return Machine(
        name,
        "gpu",
        memory=Cited(memory * GIB, source),
        bandwidth=Cited(bandwidth * G, source),
        peaks={"fp32": fp32},
        other_names=(name.replace("-", ""),),
    )
