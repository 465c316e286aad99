"""Measured times of single operators, from Vidur's profiles."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from tests.planner.predict.gemm import Gemm

PROFILES = {"a100-80": "vidur_a100_llama2_7b_mlp.csv", "h100": "vidur_h100_llama2_70b_mlp.csv"}


@lru_cache(maxsize=2)
def gemms(folder: Path, machine: str) -> dict[Gemm, float]:
    """Seconds of the four matrices of a layer, at every number of rows and devices: the median of each profile."""
    times: dict[Gemm, list[float]] = {}
    with (folder / "gpu" / PROFILES[machine]).open(newline="") as file:
        for row in csv.DictReader(file):
            for name, gemm in _products({key: int(row[key]) for key in SIZES}):
                times.setdefault(gemm, []).append(float(row[f"time_stats.{name}.median"]) / 1e3)
    return {gemm: fmean(found) for gemm, found in times.items()}


SIZES = ("num_tokens", "num_tensor_parallel_workers", "n_embd", "n_expanded_embd", "n_head", "n_kv_head")


def _products(size: dict[str, int]) -> Iterator[tuple[str, Gemm]]:
    rows, devices, hidden, ffn, heads, kv_heads = (size[name] for name in SIZES)
    head_dim = hidden // heads
    yield "attn_pre_proj", Gemm(rows, (heads + 2 * kv_heads) * head_dim // devices, hidden)
    yield "attn_post_proj", Gemm(rows, hidden, hidden // devices)
    yield "mlp_up_proj", Gemm(rows, 2 * ffn // devices, hidden)
    yield "mlp_down_proj", Gemm(rows, hidden, ffn // devices)


def all_reduces(folder: Path) -> list[tuple[int, int, float]]:
    """(devices, bytes, seconds) of NCCL's all-reduce inside one H100 server."""
    with (folder / "gpu" / "vidur_h100_dgx_all_reduce.csv").open(newline="") as file:
        return [
            (int(row["num_workers"]), int(row["size"]), float(row["time_stats.all_reduce.median"]) / 1e3)
            for row in csv.DictReader(file)
        ]
