"""The measured rows of dense models, served whole by tensor-parallel devices, and what is predicted for them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from twofold.cost.count.setting import Setting
from twofold.cost.hardware.known import find_machine
from twofold.cost.predict.constants import Constants
from twofold.cost.predict.demand import Demand
from twofold.cost.predict.request import ENTRY_STEPS, Case, Prediction, Predictor
from twofold.cost.shapes.known import find_shape
from twofold.cost.shapes.values import BF16, FP8

MODELS = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
}


@dataclass(frozen=True, slots=True)
class Served:
    """One measured row, and the demands of its steps."""

    key: str
    predictor: Predictor
    case: Case
    batch: int
    decode: Demand
    prefill: Demand
    ttft: float
    tpot: float

    def predicted_tpot(self, by: Constants, *, interference: bool = True) -> float:
        """As ``Predictor`` does, from demands that were counted once."""
        seconds = self.decode.seconds(by)
        if interference:
            seconds += (self.batch - 1) / self.case.output * self.prefill.seconds(by)
        return seconds

    def predicted_ttft(self, by: Constants, burst: float) -> float:
        """As ``Predictor`` does."""
        prompt, step, batch = self.prefill.seconds(by), self.decode.seconds(by), self.batch
        entry = ENTRY_STEPS * step if batch > 1 else 0.0
        ttft = by.t_first + entry + prompt * (1 + burst * (batch - 1) / 2)
        waiting = (self.case.concurrency - batch) / batch
        return ttft + waiting * (ttft + (self.case.output - 1) * self.predicted_tpot(by))

    def prediction(self, by: Constants, burst: float) -> Prediction:
        """All of it, from the start."""
        return replace(self.predictor, constants=by).predict(replace(self.case, burst=burst))


@lru_cache(maxsize=1)
def served_rows(folder: Path) -> tuple[Served, ...]:
    """Dense, aggregated, tensor-parallel rows; what is multiplied in fp8 keeps keys and values in fp8 too."""
    with (folder / "gpu" / "served_ttft_tpot_hopper.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mode"] == "agg" and row["model_path"] in MODELS]
    return tuple(_served(row) for row in rows)


def _served(row: Mapping[str, str]) -> Served:
    shape, how = find_shape(MODELS[row["model_path"]]), Setting(tp=int(row["tp_size"]), kv=BF16)
    if row["gemm_quant_mode"]:
        shape, how = shape.stored_as(FP8), Setting(tp=how.tp, kv=FP8)
    case = Case(prompt=int(row["isl"]), output=int(row["osl"]), concurrency=int(row["batch_size"]))
    predictor = Predictor(shape, find_machine(row["system"].split("_")[0]), Constants(), how)
    batch = predictor.batch(case)
    (prefill,) = predictor.prefill(case)
    ttft, tpot = (float(row[f"silicon_{name}_ms"]) / 1e3 for name in ("ttft", "tpot"))
    return Served(row["id"], predictor, case, batch, predictor.decode(case, batch), prefill, ttft, tpot)
