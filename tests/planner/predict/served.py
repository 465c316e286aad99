"""Measured rows of models served by tensor- and expert-parallel devices, and what is predicted for them.

The files are ``aiconfigurator``'s records of closed-loop load tests (``gpu/served_ttft_tpot_*.csv``). Faults of the
Hopper file are corrected here:

    repeats       rows with the same model and times under several names: the first counts
    labels        "tp 16, moe_tp 4, moe_ep 4" is tp 4, ep 4: the product was taken twice
    cached        17 rows of Llama-3.1-8B-FP8 whose prompts the server had seen: TTFT of 4,096 tokens as of 1,024
    queued        gpt-oss with 512 requests open, of which the server let far fewer in

Left out besides: attention by data parallelism, more than 8 devices, models and machines that are in no table.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal
from zlib import crc32

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.values import BF16, FP8, FP8_BLOCK, NVFP4
from twofold.planner.count.setting import Setting
from twofold.planner.machines.known import known_machines
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.request import Case, Prediction, Predictor, first_token_s
from twofold.planner.predict.steps import Demand
from twofold.planner.shapes.known import find_shape

Generation = Literal["hopper", "blackwell"]

MODELS = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "moonshotai/Kimi-K2.5": "kimi-k2",
}
CACHED = "nvidia/Llama-3.1-8B-Instruct-FP8"
MAX_DEVICES = 8
QUEUED = 512
AS_PUBLISHED = {"gpt-oss-120b": ("fp4", ""), "kimi-k2": ("int4",)}
"""By model the precisions that mean the formats of its publisher."""

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Served:
    """One measured row, and the demands of its steps."""

    key: str
    generation: Generation
    server: str
    precision: str
    predictor: Predictor
    case: Case
    batch: int
    decode: Demand
    prefill: Demand
    ttft: float
    tpot: float

    @property
    def experts(self) -> bool:
        return self.predictor.shape.has_experts

    def predicted_tpot(self, by: Constants, *, interference: bool = True) -> float:
        """As ``Predictor`` does, from demands that were counted once."""
        seconds = self.decode.seconds(by)
        if interference:
            seconds += (self.batch - 1) / self.case.output * self.prefill.seconds(by)
        return seconds

    def predicted_ttft(self, by: Constants) -> float:
        """As ``Predictor`` does."""
        prompt, step, batch = self.prefill.seconds(by), self.decode.seconds(by), self.batch
        ttft = first_token_s(by, prompt, step, batch)
        waiting = (self.case.concurrency - batch) / batch
        return ttft + waiting * (ttft + (self.case.output - 1) * self.predicted_tpot(by))

    def prediction(self, by: Constants) -> Prediction:
        """All of it, from the start."""
        return replace(self.predictor, constants=by).predict(self.case)


@lru_cache(maxsize=1)
def served_rows(folder: Path) -> tuple[Served, ...]:
    """All rows that can be predicted, corrected as the module says."""
    found: list[Served] = []
    for generation in ("hopper", "blackwell"):
        with (folder / "gpu" / f"served_ttft_tpot_{generation}.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["mode"] == "agg"]
        found += filter(None, (_served(row, generation) for row in _once(rows)))
    return tuple(found)


def dense_hopper(folder: Path) -> tuple[Served, ...]:
    """Those that the constants of dense models were fitted on."""
    return tuple(row for row in served_rows(folder) if not row.experts and row.generation == "hopper")


def _once(rows: Iterable[Row]) -> Iterator[Row]:
    seen: set[tuple[str, float, float]] = set()
    for row in rows:
        model = MODELS.get(row["model_path"])
        if model is None or row["model_path"] == CACHED:
            continue
        same = model, round(float(row["silicon_ttft_ms"]), 6), round(float(row["silicon_tpot_ms"]), 6)
        if same not in seen:
            seen.add(same)
            yield row


def _served(row: Row, generation: Generation) -> Served | None:
    tp, ep = _devices(row)
    concurrency = _number(row["batch_size"])
    machine = known_machines().get(row["system"].split("_")[0])
    if machine is None or not 1 <= tp <= MAX_DEVICES or _number(row["attention_dp_size"]) > 1:
        return None
    shape = find_shape(MODELS[row["model_path"]])
    if shape.name == "gpt-oss-120b" and generation == "hopper" and concurrency >= QUEUED:
        return None
    shape, setup = _stored(shape, row, tp, ep)
    case = Case(prompt=int(row["isl"]), output=int(row["osl"]), concurrency=concurrency)
    predictor = Predictor(shape, machine, Constants(), setup)
    try:
        batch = predictor.batch(case)
    except ParameterError:  # its label gives it less memory than it takes
        return None
    (prefill,) = predictor.prefill(case)
    ttft, tpot = (float(row[f"silicon_{name}_ms"]) / 1e3 for name in ("ttft", "tpot"))
    return Served(
        row["id"],
        generation,
        row["backend"],
        row["precision"] or "bf16",
        predictor,
        case,
        batch,
        predictor.decode(case, batch),
        prefill,
        ttft,
        tpot,
    )


def _devices(row: Row) -> tuple[int, int]:
    """tp and ep, the product taken once."""
    tp, ep, cut = (_number(row[name]) for name in ("tp_size", "moe_ep_size", "moe_tp_size"))
    if ep > 1 and cut == ep and tp == ep * cut:
        tp = ep
    return tp, ep if 1 < ep <= tp and tp % ep == 0 else 1


def _stored(shape: ModelSpec, row: Row, tp: int, ep: int) -> tuple[ModelSpec, Setting]:
    """What is multiplied in 8 or 4 bits keeps keys and values in fp8 too."""
    ep = ep if shape.has_experts else 1
    form = {"fp8": FP8, "fp8_block": FP8_BLOCK, "nvfp4": NVFP4}.get(row["gemm_quant_mode"])
    if form is None or row["precision"] in AS_PUBLISHED.get(shape.name, ()):
        return shape, Setting(tp=tp, ep=ep, kv=BF16)
    return shape.stored_as(form), Setting(tp=tp, ep=ep, kv=FP8)


def _number(text: str) -> int:
    return int(float(text)) if text else 0


def half(key: str) -> bool:
    """Which half of the data a row belongs to, by the hash of its name: the same on every machine."""
    return bool(crc32(key.encode()) & 1)
