"""Memory of models, planned or loaded, and how models share a budget.

If all models fit into the budget, the memory beside their weights is divided equally among them. If these parts are too
small, each model may take the whole budget, and models are unloaded for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twofold.core.model import ModelSpec
from twofold.engine.config import EngineConfig, EngineOptions, no_room_for_weights, resolve

MIN_ROOM: Final = 512 << 20
"""Minimum bytes beside the weights of a model that shares the budget."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of a model: weights, KV cache, and host slots of preempted sequences; and its context in tokens."""

    weights: int
    kv_cache: int
    host_slots: int
    context: int

    @property
    def bytes(self) -> int:
        return self.weights + self.kv_cache + self.host_slots


def plan_of(config: EngineConfig, spec: ModelSpec, weights: int) -> MemoryPlan:
    """Memory of a model that runs with ``config``; ``weights`` are its bytes, with those of its draft model."""
    layout = config.options.kv_layout(spec, config.draft)
    groups = list(zip(spec.kv_groups(config.context), config.kv_groups, strict=True))
    cache = sum(layout.block_bytes(group) * size.blocks for group, size in groups)
    slots = sum(layout.block_bytes(group) * size.host_slots for group, size in groups)
    return MemoryPlan(weights, cache, slots, config.context)


def plan(
    options: EngineOptions, spec: ModelSpec, weights: int, room: int, chunk: int, draft: ModelSpec | None = None
) -> MemoryPlan:
    """Memory of a model that may take ``room`` bytes; ``weights`` are its bytes, with those of its ``draft`` model, and
    ``chunk`` the positions that attention reads at a time. Raises ResourceError if they, or one sequence's KV cache
    beside them, do not fit."""
    if weights > room:
        raise no_room_for_weights(weights, room, "Raise --memory-budget, or serve a smaller model.")
    return plan_of(resolve(options, spec, room, chunk, draft, weights=weights), spec, weights)


def room_for(own: int, others: Sequence[int], budget: int) -> int:
    """Bytes that a model with ``own`` bytes of weights may take beside models with ``others`` bytes each."""
    beside = (budget - own - sum(others)) // (1 + len(others))
    return own + beside if beside >= MIN_ROOM else budget
