"""Settings of a simulated engine (limits of a step, blocks, token budget), and the predicted seconds of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from twofold.core.errors import ParameterError, ResourceError
from twofold.core.kv_layout import KVLayout
from twofold.core.model import ModelSpec
from twofold.core.step_basis import StepBasis
from twofold.engine.kv.manager import GroupSize
from twofold.engine.scheduler.step_time import StepShape
from twofold.planner.count.memory import ReplicaMemory, kv_bytes_per_token
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants, constants_for
from twofold.planner.predict.steps import StepPredictor, StepSize
from twofold.planner.simulate.kv_store import SimulatedStore
from twofold.planner.simulate.layerwise import LayerKV

DEFAULT_SEQUENCES: Final = 256
DEFAULT_ROWS: Final = 2048
SIMULATED: Final = StepBasis(32, (4e-3, 3e-4, 8e-5, 1e-4, 4e-7, 1e-6))
"""The basis of engines on machines that are described: predicted steps correct the weights at once."""
WINDOW_SHARE: Final = 0.5
"""Maximum share of the KV memory for all layers with windows, as in the engine."""


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """Settings of one replica.

    sequences, rows   maximum in a step
    groups            KV blocks, the widest group first
    context           maximum tokens of a prompt with its completion
    prefix_caching    whether prompts reuse cached prefixes
    tpot_target_s     target of the live budget; None: prompts get all rows that decoding leaves
    itl_limit_s       maximum seconds between two tokens with the live budget; None: its default
    step_samples      measured steps from which the live budget starts
    layer_kv          computes prompts without blocks layer by layer; None: they wait
    kv_store          keeps prefixes on the disk; None: without
    attention_chunk   positions that attention reads at a time, which a window's blocks are kept for
    step_basis        of the step-time model of its live budget
    """

    groups: tuple[GroupSize, ...]
    sequences: int = DEFAULT_SEQUENCES
    rows: int = DEFAULT_ROWS
    block_size: int = 16
    context: int = 1 << 20
    prefix_caching: bool = True
    tpot_target_s: float | None = None
    itl_limit_s: float | None = None
    step_samples: tuple[tuple[StepShape, float], ...] = ()
    layer_kv: LayerKV | None = None
    kv_store: SimulatedStore | None = None
    attention_chunk: int = 1
    step_basis: StepBasis = SIMULATED

    def __post_init__(self) -> None:
        for name in ("sequences", "rows", "block_size", "context"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1, not {getattr(self, name)}.", param=name)
        if self.sequences > self.rows:
            raise ParameterError(
                f"{self.sequences} concurrent sequences exceed the {self.rows} tokens of a step.",
                param="max_num_seqs",
                hint="Lower --max-num-seqs, or raise --max-num-batched-tokens.",
            )
        if self.layer_kv is not None and self.tpot_target_s is not None:
            raise ParameterError(
                "Layer-wise keys and values have a TPOT target of their own.",
                param="tpot-target-ms",
                hint="Give --layer-kv-tpot-ms in place of --tpot-target-ms.",
            )

        if self.kv_store is not None and not self.prefix_caching:
            raise ParameterError(
                "A KV store extends the prefix cache, which is off.",
                param="kv-store-bytes",
                hint="Remove --kv-store-bytes, or --no-enable-prefix-caching.",
            )
        if self.kv_store is not None and self.layer_kv is not None:
            raise ParameterError(
                "Layer-wise keys and values are not simulated together with a KV store.",
                param="layer-kv",
                hint="Remove --layer-kv or --kv-store-bytes.",
            )

    @property
    def blocks(self) -> int:
        """Blocks of the widest group."""
        return self.groups[0].blocks


def groups_for(
    shape: ModelSpec,
    machine: Machine,
    setup: Setting = PLAIN,
    *,
    sequences: int = DEFAULT_SEQUENCES,
    rows: int = DEFAULT_ROWS,
    block_size: int = 16,
    share: float = 0.9,
    memory: float | None = None,
    draft: ModelSpec | None = None,
) -> tuple[GroupSize, ...]:
    """The KV blocks that fit beside weights and activations in ``share`` of a device's memory, or in ``memory`` bytes.

    Blocks of the widest group have the keys and values of ``draft`` too, a draft model on the same devices. Layers with
    windows get at most the blocks that ``sequences`` sequences can use, the other layers the rest.
    Raises ResourceError if the weights leave no room.
    """
    room = ReplicaMemory(shape, machine.memory, setup, rows, sequences, draft, share).room()
    pool = room.kv if memory is None else memory
    pool -= sequences * sum(count * setup.state_bytes(layer.attention) for count, layer in shape.runs)
    sizes = KVLayout(shape, setup.kv, block_size, setup.tp).window_bytes(1 << 62)
    if draft is not None:
        sizes[next(iter(sizes))] += block_size * kv_bytes_per_token(draft, setup)
    found = _share_out(sizes, pool, sequences=sequences, rows=rows, block_size=block_size)
    if found[0].blocks < 1:
        raise ResourceError(
            f"{shape.name} takes {room.weights / 1e9:.1f} GB on each device and {room.activations / 1e9:.1f} GB for "
            f"activations, which leaves none of {machine.name}'s {room.memory / 1e9:.0f} GB for the KV cache.",
            hint="Use more devices (--tp), smaller weights (--weights int4), or a machine with more memory.",
        )
    return found


def _share_out(
    sizes: Mapping[int | None, int], pool: float, *, sequences: int, rows: int, block_size: int
) -> tuple[GroupSize, ...]:
    """Blocks of each group; ``sizes`` are bytes of a block by the group's window, the widest group first."""
    widest, *windows = sizes
    narrow = []
    for window in windows:
        assert window is not None, "only the widest group may be without a window"
        needed = sequences * (-(-(window + rows) // block_size) + 2)
        affordable = int(pool * WINDOW_SHARE / len(windows)) // sizes[window]
        narrow.append(GroupSize(window, max(0, min(needed, affordable))))
    left = pool - sum(each.blocks * sizes[each.window] for each in narrow)
    return (GroupSize(widest, max(0, int(left // sizes[widest]))), *narrow)


StepSeconds: TypeAlias = Callable[[StepSize], float]


class PredictedSteps:
    """Seconds of a model's steps on ``setup.tp`` devices together.

    ``windows``: windows of its layers, None for layers without; ``first_s``: seconds of a request before its steps.
    """

    def __init__(
        self, shape: ModelSpec, machine: Machine, constants: Constants | None = None, setup: Setting = PLAIN
    ) -> None:
        self._steps, self._by = StepPredictor.of(shape, machine, setup), constants or constants_for(machine, shape)
        self.windows = tuple(self._steps.cost.windows)
        self.first_s = float(self._by.t_first)

    def __call__(self, size: StepSize) -> float:
        """Seconds of a step."""
        return self._steps.summed(size).seconds(self._by)
