"""The machine and the work of a step as a live view gets them, for a roofline with each step as a point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twofold.planner.predict.steps import StepPredictor


def step_limits(steps: StepPredictor | None) -> Mapping[str, Any]:
    """Bytes and FLOPs a second of the ``machine``, and bytes and FLOPs of the ``work``; null if it was not measured."""
    if steps is None:
        return {"machine": None, "work": None}
    cost = steps.cost
    machine = {
        "bytes_per_s": steps.bandwidth,
        "flops_per_s": cost.row_flops / steps.row_s,
        "attention_flops_per_s": steps.attention_peak,
    }
    work = {
        "weight_bytes": cost.weight_bytes(1, logits=False),
        "head_bytes": cost.head_bytes,
        "row_flops": cost.row_flops,
        "logit_flops": cost.logit_row_flops,
        "pair_flops": sum(each.position_flops for each in cost.windows.values()),
        "kv_bytes": sum(each.token_bytes for each in cost.windows.values()),
        "windows": cost.windows.get(None) is None or len(cost.windows) > 1,
    }
    return {"machine": machine, "work": work}
