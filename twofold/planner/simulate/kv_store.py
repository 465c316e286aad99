"""A KV store on disk (``engine.kv.store``) in simulations: its disk on the virtual clock, and when loading pays.

    read     bytes · (1/disk + 1/digest), one read after another; a load's seconds include its wait for others
    write    at once: nothing waits for it

Whether a prefix is loaded or computed is decided as in the engine, by ``engine.scheduler.loading``: from the rate of
earlier loads, and from what the cost model predicts for computing it. Each replica has a store of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from twofold.core.errors import ParameterError
from twofold.core.kv_layout import KVLayout
from twofold.core.model import ModelSpec, read_positions, visible
from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.segments import SEGMENT_TOKENS, SegmentIndex, StoreKeys, header_bytes
from twofold.engine.kv.store import KVStore, ReadJob, ReadResult, StoreJob, StoreResult, WriteJob, WriteResult
from twofold.engine.scheduler.step_time import StepShape
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.request import DIGEST
from twofold.planner.predict.steps import StepSize


@dataclass(frozen=True, slots=True)
class SimulatedStore:
    """``budget``: bytes of the store; ``block_bytes``: of a block of each KV group, on all devices together;
    ``byte_s``: seconds to read and verify a byte."""

    budget: int
    block_bytes: tuple[int, ...]
    byte_s: float

    def segment_bytes(self, block_size: int) -> int:
        """Bytes of a segment's file with all of its blocks."""
        return header_bytes(len(self.block_bytes)) + SEGMENT_TOKENS // block_size * sum(self.block_bytes)


def simulated_store(
    shape: ModelSpec, machine: Machine, budget: int, setup: Setting = PLAIN, *, block_size: int
) -> SimulatedStore:
    """A store of ``budget`` bytes on the machine's disk. Raises ParameterError if it cannot hold a segment, or if
    segments are no whole blocks."""
    if SEGMENT_TOKENS % block_size:
        raise ParameterError(
            f"A KV store holds segments of {SEGMENT_TOKENS} tokens, which {block_size} does not divide.",
            param="block-size",
            hint="Use 16.",
        )
    if any(setup.state_bytes(layer.attention) for _, layer in shape.runs):
        raise ParameterError(
            f"{shape.name} has recurrent states, which a KV store does not keep.", param="kv-store-bytes"
        )
    layout = KVLayout(shape, setup.kv, block_size, setup.tp)
    sizes = tuple(setup.tp * size for size in layout.window_bytes(1 << 62).values())
    store = SimulatedStore(budget, sizes, 1 / machine.disk + 1 / DIGEST)
    if budget < store.segment_bytes(block_size):
        raise ParameterError(
            f"A KV store of {budget:,} bytes does not hold the {store.segment_bytes(block_size):,} bytes of "
            f"{SEGMENT_TOKENS} tokens of {shape.name}.",
            param="kv-store-bytes",
            hint="Raise --kv-store-bytes, for example to 100GiB.",
        )
    return store


class SimulatedDisk:
    """Runs the jobs of a store on the virtual clock."""

    def __init__(self, byte_s: float) -> None:
        self._byte_s = byte_s
        self._free_s = 0.0
        self._results: list[tuple[float, int, StoreResult]] = []
        self._serial = count()

    @property
    def next_s(self) -> float:
        """When the next job ends; infinite if none is under way."""
        return self._results[0][0] if self._results else math.inf

    def submit(self, jobs: Iterable[StoreJob], block_bytes: Sequence[int], now: float) -> None:
        """Begins the engine's jobs; ``block_bytes`` are those of a block of each group."""
        for job in jobs:
            if isinstance(job, ReadJob):
                groups = [zip(part.blocks, block_bytes, strict=True) for part in job.segments]
                nbytes = sum(len(blocks) * size for group in groups for blocks, size in group)
                self.read(job.number, len(job.segments), nbytes, now)
            elif isinstance(job, WriteJob):
                self.write(job.number, len(job.segments), now)

    def read(self, number: int, segments: int, nbytes: int, now: float) -> None:
        """Begins to read segments."""
        self._free_s = max(self._free_s, now) + nbytes * self._byte_s
        self._end(self._free_s, ReadResult(number, segments, nbytes, self._free_s - now))

    def write(self, number: int, segments: int, now: float) -> None:
        """Writes segments."""
        self._end(now, WriteResult(number, segments))

    def take(self, now: float) -> list[StoreResult]:
        """The results up to ``now``, in order."""
        found = []
        while self.next_s <= now:
            found.append(heappop(self._results)[2])
        return found

    def _end(self, at_s: float, result: StoreResult) -> None:
        heappush(self._results, (at_s, next(self._serial), result))


class PredictedTimes:
    """The cost model's steps as ``engine.scheduler.loading`` asks for them: rows of one prompt alone."""

    def __init__(self, seconds: Callable[[StepSize], float], windows: tuple[int | None, ...]) -> None:
        self._seconds, self._windows = seconds, windows

    def predict(self, shape: StepShape) -> float:
        """Seconds of a step with the rows of one prompt."""
        rows, start = shape.rows, max(0, shape.read - shape.rows)
        attended, read = (
            tuple(of(start, rows, window) for window in self._windows) for of in (visible, read_positions)
        )
        return self._seconds(StepSize(rows, 0, 1, attended, read, ((1, SequenceRows(rows, start)),)))


def engine_store(lever: SimulatedStore, manager: BlockManager) -> KVStore:
    """The engine's store, empty."""
    return KVStore(manager, StoreKeys(bytes(32), bytes(32)), SegmentIndex(lever.budget), lever.block_bytes)
