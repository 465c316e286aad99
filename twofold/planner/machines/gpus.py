"""Accelerators, from their makers' data sheets. Peaks with sparsity are halved: weights here are dense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from twofold.core.values import Arithmetic
from twofold.planner.machines.machine import Cited, Machine

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
PCIE4: Final = "PCI Express 4.0, 16 lanes of 16 GT/s"
PCIE5: Final = "PCI Express 5.0, 16 lanes of 32 GT/s"
AIC: Final = "github.com/ai-dynamo/aiconfigurator, systems/l40s.yaml"
BLOCKS: Final = "Amazon EC2 Capacity Blocks for ML, prices of 2024-12"
EC2: Final = "Amazon EC2 on-demand, us-east-1, 2025"
VIDUR: Final = "github.com/microsoft/vidur, all_reduce of H100 DGX, 8 devices, 10 KiB"

NVLINK_NOTE: Final = "; half of what it gives for both directions"


def accelerators() -> Iterator[Machine]:
    """GPUs and TPUs."""
    yield from _a100s()
    yield from _hoppers()
    yield _b200()
    yield from _small()
    yield from _consumer()
    yield from _others()


def _peaks(source: str, **tera: float) -> Mapping[Arithmetic, Cited]:
    """Peaks in 10¹² operations a second."""
    return {name: Cited(value * T, source) for name, value in tera.items()}  # type: ignore[misc]


def _a100s() -> Iterator[Machine]:
    peaks = _peaks(A100, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624)
    for size, bandwidth, price, names in (
        (40, 1555, Cited(1.844, BLOCKS + ", p4d.24xlarge / 8"), ("a100-40gb", "a100-sxm4-40gb")),
        (80, 2039, None, ("a100", "a100-80gb", "a100-sxm4-80gb", "a100-sxm")),
    ):
        yield Machine(
            f"a100-{size}",
            "gpu",
            memory=Cited(size * GIB, A100),
            bandwidth=Cited(bandwidth * G, A100),
            peaks=peaks,
            link=Cited(300 * G, A100 + NVLINK_NOTE),
            host_link=Cited(32 * G, PCIE4),
            watts=Cited(400, A100),
            price=price,
            other_names=names,
        )


def _hoppers() -> Iterator[Machine]:
    sxm = {"fp32": 67, "tf32": 494.5, "bf16": 989, "fp16": 989, "fp8": 1979, "int8": 1979}
    yield Machine(
        "h100",
        "gpu",
        memory=Cited(80 * GIB, H100),
        bandwidth=Cited(3350 * G, H100),
        peaks=_peaks(H100, **sxm),
        link=Cited(450 * G, H100 + NVLINK_NOTE),
        host_link=Cited(64 * G, PCIE5),
        all_reduce_s={"nccl": Cited(23e-6, VIDUR)},
        watts=Cited(700, H100),
        price=Cited(4.916, BLOCKS + ", p5.48xlarge / 8"),
        other_names=("h100-sxm", "h100-80gb", "h100-sxm5-80gb", "h100-80gb-hbm3"),
    )
    yield Machine(
        "h100-pcie",
        "gpu",
        memory=Cited(80 * GIB, H100),
        bandwidth=Cited(2000 * G, H100),
        peaks=_peaks(H100, fp32=51, tf32=378, bf16=756.5, fp16=756.5, fp8=1513, int8=1513),
        link=Cited(300 * G, H100 + NVLINK_NOTE),
        host_link=Cited(64 * G, PCIE5),
        watts=Cited(350, H100),
    )
    yield Machine(
        "h200",
        "gpu",
        memory=Cited(141 * GIB, H200),
        bandwidth=Cited(4800 * G, H200),
        peaks=_peaks(H200, **sxm),
        link=Cited(450 * G, H200 + NVLINK_NOTE),
        host_link=Cited(64 * G, PCIE5),
        watts=Cited(700, H200),
        price=Cited(5.408, BLOCKS + ", p5e.48xlarge / 8"),
        other_names=("h200-sxm", "h200-141gb"),
    )


def _b200() -> Machine:
    return Machine(
        "b200",
        "gpu",
        memory=Cited(180 * GIB, B200),
        bandwidth=Cited(7700 * G, B200),
        peaks=_peaks(B200, bf16=2250, fp16=2250, fp8=4500, int8=4500, fp4=9000),
        link=Cited(900 * G, B200 + NVLINK_NOTE),
        host_link=Cited(64 * G, PCIE5),
        watts=Cited(1000, B200),
        other_names=("b200-sxm", "b200-180gb"),
    )


def _small() -> Iterator[Machine]:
    yield Machine(
        "l40s",
        "gpu",
        memory=Cited(46_068 << 20, AIC + ": what error correction leaves of 48 GB"),
        bandwidth=Cited(864 * G, L40S),
        peaks=_peaks(L40S, fp32=91.6, tf32=183, bf16=362.05, fp16=362.05, fp8=733, int8=733),
        link=Cited(32 * G, PCIE4),
        host_link=Cited(32 * G, PCIE4),
        watts=Cited(350, L40S),
        price=Cited(1.861, EC2 + ", g6e.xlarge"),
    )
    yield Machine(
        "l4",
        "gpu",
        memory=Cited(24 * GIB, L4),
        bandwidth=Cited(300 * G, L4),
        peaks=_peaks(L4, fp32=30.3, tf32=60, bf16=121, fp16=121, fp8=242.5, int8=242.5),
        link=Cited(32 * G, PCIE4),
        host_link=Cited(32 * G, PCIE4),
        watts=Cited(72, L4),
        price=Cited(0.8048, EC2 + ", g6.xlarge"),
    )
    yield Machine(
        "a10g",
        "gpu",
        memory=Cited(24 * GIB, A10G),
        bandwidth=Cited(600 * G, A10G),
        peaks=_peaks(A10G, fp32=35, tf32=35, bf16=70, fp16=70, int8=140),
        link=Cited(32 * G, PCIE4),
        host_link=Cited(32 * G, PCIE4),
        watts=Cited(300, A10G),
        price=Cited(1.006, EC2 + ", g5.xlarge"),
    )


def _consumer() -> Iterator[Machine]:
    summed = "; products summed up in float32"
    yield Machine(
        "rtx-4090",
        "gpu",
        memory=Cited(24 * GIB, ADA),
        bandwidth=Cited(1008 * G, ADA),
        peaks=_peaks(ADA + summed, fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3, int8=660.6),
        link=Cited(32 * G, PCIE4),
        host_link=Cited(32 * G, PCIE4),
        watts=Cited(450, ADA),
        other_names=("4090", "rtx4090"),
    )
    yield Machine(
        "rtx-3090",
        "gpu",
        memory=Cited(24 * GIB, GA102),
        bandwidth=Cited(936 * G, GA102),
        peaks=_peaks(GA102 + summed, fp32=35.6, tf32=35.6, bf16=71, fp16=71, int8=284),
        link=Cited(56.25 * G, GA102 + NVLINK_NOTE),
        host_link=Cited(32 * G, PCIE4),
        watts=Cited(350, GA102),
        other_names=("3090", "rtx3090"),
    )


def _others() -> Iterator[Machine]:
    yield Machine(
        "mi300x",
        "gpu",
        memory=Cited(192 * GIB, MI300X),
        bandwidth=Cited(5300 * G, MI300X),
        peaks=_peaks(MI300X, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9, int8=2614.9),
        link=Cited(448 * G, MI300X + ", 7 links of 128 GB/s for both directions"),
        host_link=Cited(64 * G, PCIE5),
        watts=Cited(750, MI300X),
    )
    yield Machine(
        "tpu-v4",
        "tpu",
        memory=Cited(32 * GIB, TPU4),
        bandwidth=Cited(1200 * G, TPU4),
        peaks=_peaks(TPU4, bf16=275, int8=275),
        link=Cited(300 * G, TPU4 + ", 6 links of 50 GB/s"),
        watts=Cited(192, TPU4),
        price=Cited(3.22, "Google Cloud TPU pricing, us-central2, on demand, 2024"),
        other_names=("tpuv4", "tpu4"),
    )
