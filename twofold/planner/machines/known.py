"""The table of hardware by name, from the makers' data.

Peaks of accelerators are those of dense matrices: peaks with sparsity are halved. Peaks of processors are cores · base
clock · FLOPs a cycle, with two fused multiply-adds a cycle on each value of the vector units. The memory of a processor
is the most that one socket takes, or the most that the machine is sold with.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from twofold.core.errors import ParameterError, closest_match
from twofold.core.values import Arithmetic
from twofold.planner.machines.machine import Cited, Kind, Machine

MAKERS: Final = frozenset({"nvidia", "amd", "google", "intel", "apple", "aws", "geforce"})
GIB: Final = 1 << 30
G: Final = 1e9
T: Final = 1e12

A100: Final = "NVIDIA A100 Tensor Core GPU data sheet (2021)"
H100: Final = "NVIDIA H100 Tensor Core GPU data sheet (2023)"
H200: Final = "NVIDIA H200 Tensor Core GPU data sheet (2024)"
B200: Final = "NVIDIA Blackwell data sheet, HGX B200 (2024)"
L40S: Final = "NVIDIA L40S data sheet (2023)"
L4: Final = "NVIDIA L4 Tensor Core GPU data sheet (2023)"
ADA: Final = "NVIDIA Ada GPU architecture whitepaper, appendix A (2022)"
GA102: Final = "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix A (2021)"
A10G: Final = "NVIDIA A10G data sheet (2021)"
MI300X: Final = "AMD Instinct MI300X data sheet (2023)"
TPU4: Final = "Jouppi et al., TPU v4, ISCA 2023, table 4"
BLOCKS: Final = "Amazon EC2 Capacity Blocks for ML, prices of 2024-12"
EC2: Final = "Amazon EC2 on-demand, us-east-1, 2025"
PCIE_4: Final = Cited(32 * G, "PCI Express 4.0, 16 lanes of 16 GT/s")
PCIE_5: Final = Cited(64 * G, "PCI Express 5.0, 16 lanes of 32 GT/s")
SUMMED: Final = "; products summed up in float32"

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

Peaks = Mapping[Arithmetic, float]
A100_PEAKS: Final[Peaks] = {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312, "int8": 624}
SXM_PEAKS: Final[Peaks] = {"fp32": 67, "tf32": 494.5, "bf16": 989, "fp16": 989, "fp8": 1979, "int8": 1979}
PCIE_PEAKS: Final[Peaks] = {"fp32": 51, "tf32": 378, "bf16": 756.5, "fp16": 756.5, "fp8": 1513, "int8": 1513}
B200_PEAKS: Final[Peaks] = {"bf16": 2250, "fp16": 2250, "fp8": 4500, "int8": 4500, "fp4": 9000}
L40S_PEAKS: Final[Peaks] = {"fp32": 91.6, "tf32": 183, "bf16": 362.05, "fp16": 362.05, "fp8": 733, "int8": 733}
L4_PEAKS: Final[Peaks] = {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242.5, "int8": 242.5}
A10G_PEAKS: Final[Peaks] = {"fp32": 35, "tf32": 35, "bf16": 70, "fp16": 70, "int8": 140}
ADA_PEAKS: Final[Peaks] = {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3, "int8": 660.6}
GA102_PEAKS: Final[Peaks] = {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71, "int8": 284}
MI300X_PEAKS: Final[Peaks] = {
    "fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9, "int8": 2614.9,
}  # fmt: skip
"""10¹² operations a second, by arithmetic."""


def _cited(values: Peaks, source: str, scale: float = T) -> dict[Arithmetic, Cited]:
    return {name: Cited(value * scale, source) for name, value in values.items()}


def _nvlink(gb_s: float, sheet: str) -> Cited:
    return Cited(gb_s * G, f"{sheet}; half of what it gives for both directions")


def _gpu(
    name: str,
    sheet: str,
    gib: float,
    gb_s: float,
    watts: float,
    peaks: Peaks,
    note: str = "",
    *,
    link: Cited = PCIE_4,
    host_link: Cited = PCIE_4,
    memory: Cited | None = None,
    price: Cited | None = None,
    names: tuple[str, ...] = (),
) -> Machine:
    """A GPU by its data sheet; ``note`` is added to the source of its peaks."""
    return Machine(
        name,
        "gpu",
        memory=memory or Cited(gib * GIB, sheet),
        bandwidth=Cited(gb_s * G, sheet),
        peaks=_cited(peaks, sheet + note),
        link=link,
        host_link=host_link,
        watts=Cited(watts, sheet),
        price=price,
        other_names=names,
    )


def _host(
    name: str,
    sheet: str,
    gib: float,
    gb_s: float,
    peaks: Mapping[Arithmetic, Cited],
    watts: float | None = None,
    names: tuple[str, ...] = (),
    kind: Kind = "cpu",
) -> Machine:
    """A processor, or a chip whose GPU shares the memory of its processor."""
    drawn = None if watts is None else Cited(watts, sheet)
    memory, bandwidth = Cited(gib * GIB, sheet), Cited(gb_s * G, sheet)
    return Machine(name, kind, memory=memory, bandwidth=bandwidth, peaks=peaks, watts=drawn, other_names=names)


MACHINES: Final = (
    _gpu("a100-40", A100, 40, 1555, 400, A100_PEAKS, link=_nvlink(300, A100),
         price=Cited(1.844, BLOCKS + ", p4d.24xlarge / 8"), names=("a100-40gb", "a100-sxm4-40gb")),
    _gpu("a100-80", A100, 80, 2039, 400, A100_PEAKS, link=_nvlink(300, A100),
         names=("a100", "a100-80gb", "a100-sxm4-80gb", "a100-sxm")),
    _gpu("h100", H100, 80, 3350, 700, SXM_PEAKS, link=_nvlink(450, H100), host_link=PCIE_5,
         price=Cited(4.916, BLOCKS + ", p5.48xlarge / 8"),
         names=("h100-sxm", "h100-80gb", "h100-sxm5-80gb", "h100-80gb-hbm3")),
    _gpu("h100-pcie", H100, 80, 2000, 350, PCIE_PEAKS, link=_nvlink(300, H100), host_link=PCIE_5),
    _gpu("h200", H200, 141, 4800, 700, SXM_PEAKS, link=_nvlink(450, H200), host_link=PCIE_5,
         price=Cited(5.408, BLOCKS + ", p5e.48xlarge / 8"), names=("h200-sxm", "h200-141gb")),
    _gpu("b200", B200, 180, 7700, 1000, B200_PEAKS, link=_nvlink(900, B200), host_link=PCIE_5,
         names=("b200-sxm", "b200-180gb")),
    _gpu("l40s", L40S, 48, 864, 350, L40S_PEAKS, price=Cited(1.861, EC2 + ", g6e.xlarge"),
         memory=Cited(46_068 << 20, "github.com/ai-dynamo/aiconfigurator, systems/l40s.yaml: what error correction "
                      "leaves of 48 GB")),
    _gpu("l4", L4, 24, 300, 72, L4_PEAKS, price=Cited(0.8048, EC2 + ", g6.xlarge"),
         memory=Cited(23_034 << 20, "nvidia-smi: what error correction leaves of 24 GB")),
    _gpu("a10g", A10G, 24, 600, 300, A10G_PEAKS, price=Cited(1.006, EC2 + ", g5.xlarge"),
         memory=Cited(23_028 << 20, "nvidia-smi: what error correction leaves of 24 GB")),
    _gpu("rtx-4090", ADA, 24, 1008, 450, ADA_PEAKS, SUMMED, names=("4090", "rtx4090")),
    _gpu("rtx-3090", GA102, 24, 936, 350, GA102_PEAKS, SUMMED, link=_nvlink(56.25, GA102), names=("3090", "rtx3090")),
    _gpu("mi300x", MI300X, 192, 5300, 750, MI300X_PEAKS, host_link=PCIE_5,
         link=Cited(448 * G, MI300X + ", 7 links of 128 GB/s for both directions")),
    Machine("tpu-v4", "tpu", memory=Cited(32 * GIB, TPU4), bandwidth=Cited(1200 * G, TPU4),
            peaks=_cited({"bf16": 275, "int8": 275}, TPU4), link=Cited(300 * G, TPU4 + ", 6 links of 50 GB/s"),
            watts=Cited(192, TPU4), price=Cited(3.22, "Google Cloud TPU pricing, us-central2, on demand, 2024"),
            other_names=("tpuv4", "tpu4")),
    _host("epyc-9654", EPYC_9654, 6144, 460.8, watts=360, names=("genoa",),
          peaks=_cited({"fp32": 32, "bf16": 64, "int8": 128}, f"{EPYC_9654}; {ZEN4}", 96 * 2.4 * G)),
    _host("epyc-9754", EPYC_9754, 6144, 460.8, watts=360, names=("bergamo",),
          peaks=_cited({"fp32": 32, "bf16": 64, "int8": 128}, f"{EPYC_9754}; {ZEN4}", 128 * 2.25 * G)),
    _host("xeon-8480", XEON, 4096, 307.2, watts=350, names=("xeon-8480+", "sapphire-rapids"),
          peaks=_cited({"fp32": 64}, f"{XEON}; {AVX512}", 56 * 2.0 * G)
          | _cited({"bf16": 1024, "int8": 2048}, f"{XEON}; {AMX}", 56 * 2.0 * G)),
    _host("graviton-4", GRAVITON, 768, 537.6, names=("graviton4",),
          peaks=_cited({"fp32": 32, "fp16": 64}, f"{GRAVITON}; {NEOVERSE}", 96 * 2.8 * G)),
    # Apple publishes no higher peak for half precision.
    _host("m2-ultra", M2_ULTRA, 192, 800, {"fp32": Cited(27.2 * T, M2_ULTRA)}, names=("m2ultra",), kind="gpu"),
    _host("m4-max", M4_MAX, 128, 546, {"fp32": Cited(18.4 * T, "huggingface.co/hardware/apple-m4-max")},
          names=("m4max",), kind="gpu"),
)  # fmt: skip


@lru_cache(maxsize=1)
def known_machines() -> Mapping[str, Machine]:
    """Every machine of the table, by name."""
    return {each.name: each for each in MACHINES}


def find_machine(name: str) -> Machine:
    """The machine of that name in any case, with or without its maker: ``h100``, ``NVIDIA A100-80GB``.

    Raises ParameterError with the closest name.
    """
    machines = known_machines()
    wanted = _plain(name)
    names = {_plain(each): machine for machine in machines.values() for each in (machine.name, *machine.other_names)}
    if wanted in names:
        return names[wanted]
    close = closest_match(wanted, names)
    raise ParameterError(
        f"No machine {name!r:.60} is in the table of known hardware.",
        param="hardware",
        hint=(f"The nearest is {names[close].name!r}. " if close else "")
        + f"Known: {', '.join(sorted(machines))}; commands also know 'this', the local machine.",
    )


def _plain(name: str) -> str:
    words = name.strip().lower().replace("_", "-").replace(" ", "-").split("-")
    return "-".join(word for word in words if word not in MAKERS)
