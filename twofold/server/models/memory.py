"""How much memory a model takes, before it is loaded and while it is; and how models share a budget.

Models that fit into the budget together get equal parts of what their weights leave. Where that would be too little,
each may take what there is, and models give way to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twofold.core.model import ModelSpec
from twofold.engine.config import EngineConfig, EngineOptions, resolve

MIN_ROOM: Final = 512 << 20
"""Bytes beside its weights below which a model is better loaded alone."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes that a model will take: its weights, its KV cache, and host slots for preempted sequences."""

    weights: int
    kv_cache: int
    host_slots: int

    @property
    def bytes(self) -> int:
        return self.weights + self.kv_cache + self.host_slots


def plan_of(config: EngineConfig, spec: ModelSpec, weights: int) -> MemoryPlan:
    """What a model takes that runs with ``config``."""
    layout = config.kv_layout(spec)
    groups = list(zip(spec.kv_groups(config.context), config.kv_groups, strict=True))
    cache = sum(layout.block_bytes(group) * size.blocks for group, size in groups)
    slots = sum(layout.block_bytes(group) * size.host_slots for group, size in groups)
    return MemoryPlan(weights, cache, slots)


def plan(options: EngineOptions, spec: ModelSpec, weights: int, room: int) -> MemoryPlan:
    """What a model would take that finds ``room`` bytes for its weights and all else.

    Raises ResourceError where the KV cache of one sequence does not fit.
    """
    return plan_of(resolve(options, spec, max(0, room - weights)), spec, weights)


def room_for(own: int, others: Sequence[int], budget: int) -> int:
    """Bytes that a model of ``own`` bytes of weights may plan with, beside other models' weights."""
    beside = (budget - own - sum(others)) // (1 + len(others))
    return own + beside if beside >= MIN_ROOM else budget
