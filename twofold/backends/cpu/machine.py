"""What this machine can do at most, measured: bytes read and multiply-adds computed in a second.

The probe kernels spend their time on what real kernels do, and on nothing else, so no real kernel can be faster. They
run on all threads at once and hold no interpreter lock. Each takes the number of turns of its loop, and stores its
sums, so that the compiler cannot remove the work. The best of several runs counts, because other programs can only slow
a probe down.

Reading is measured for several sizes of memory: a model that fits into a cache is not limited by the memory behind it.
Results are kept as JSON in the cache folder for a week. A later measurement replaces a result only where it is better.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Final

from twofold.backends.cpu.kernels.ir import F32X16, I8X64, I32, I32X16, I64, PTR, Kernel, Type, Value, Var
from twofold.backends.cpu.kernels.isa import Isa, TileUnit
from twofold.backends.cpu.kernels.jit import Compiler, as_function
from twofold.backends.cpu.kernels.layout import CHUNK, PANEL
from twofold.backends.cpu.kernels.tiles import ACTS, CODES, DOTS, DOTS_BYTES, TILE_ROWS, tile_shapes
from twofold.backends.cpu.memory import LINE, aligned_zeros
from twofold.core.limits import MachineLimits, ReadSpeed, best_of, probe_size
from twofold.host.machine import read_cpu, read_memory
from twofold.host.paths import CacheFolders, write_whole

QUICK_RUNS: Final = 3
"""Takes about 0.3 s."""
FULL_SIZES: Final = (32 << 20, 128 << 20, 512 << 20)
FULL_RUNS: Final = 10
"""Takes about a second."""
LONGEST_AGE: Final = timedelta(days=7)
MEMORY_SHARE: Final = 4
"""A probe takes at most this fraction, 1/4, of the free memory."""
MIN_RUN_S: Final = 0.004
"""Shorter runs would measure the start of threads."""

Probe = Callable[[int, int, int], None]

PROBE_PARAMETERS: Final = [("turns", I64), ("data", PTR), ("out", PTR)]
READ_BYTES: Final = 512
"""Bytes that a turn of ``read_kernel`` reads."""
PROBE_BYTES: Final = 4096
"""Bytes that ``int8_kernel`` and ``float_kernel`` need at ``data``, and every probe at ``out``."""
CODE_LINES: Final = 8


def accumulators(isa: Isa) -> int:
    """Independent sums of a probe: enough to hide an instruction's latency, few enough to stay in registers."""
    return isa.registers // 2


def int8_macs(isa: Isa) -> int:
    """Multiply-adds of a turn of ``int8_kernel``: four in each of 16 lanes, or those of four products of tiles."""
    return 4 * TILE_ROWS * PANEL * CHUNK if isa.tile else 64 * accumulators(isa)


def float_macs(isa: Isa) -> int:
    """Multiply-adds of a turn of ``float_kernel``."""
    return 16 * accumulators(isa)


def read_kernel(isa: Isa) -> Kernel:
    """Reads ``turns`` · READ_BYTES bytes from ``data`` on, once and in order, 64 bytes at a time."""
    k = Kernel("probe_read", PROBE_PARAMETERS)
    turns, data, out = k.args
    sums = [k.var(I32X16, 0) for _ in range(min(READ_BYTES // LINE, accumulators(isa)))]
    for turn in k.range(0, turns):
        at = data + turn * READ_BYTES
        for line in range(READ_BYTES // LINE):
            total = sums[line % len(sums)]
            total.set(total.get() + k.load(I32X16, at + line * LINE))
    return _stored(k, sums, out)


def int8_kernel(isa: Isa) -> Kernel:
    """Adds products of unsigned and signed bytes as the linear kernels do, from codes in the first-level cache.

    The codes differ from turn to turn, or a compiler could reuse the products of earlier turns. A tile unit multiplies
    groups of 32 as for linear layers, half of what it could: a product of 64 values would take the same time.
    """
    if isa.tile is not None:
        return _tile_kernel(isa.tile)
    k = Kernel("probe_int8", PROBE_PARAMETERS)
    turns, data, out = k.args
    sums = [k.var(I32X16, index) for index in range(accumulators(isa))]
    acts = k.load(I32, data)
    for turn in k.range(0, turns):
        at = data + (turn & (CODE_LINES - 1)) * LINE
        for index, total in enumerate(sums):
            total.set(isa.dot4(k, total.get(), k.load(I8X64, at + index * LINE), acts, 4))
    return _stored(k, sums, out)


def _tile_kernel(unit: TileUnit) -> Kernel:
    """Four sums of tiles, each of another pair of acts and codes."""
    k = Kernel("probe_int8", PROBE_PARAMETERS)
    turns, data, out = k.args
    unit.configure(k, tile_shapes(CHUNK))
    for index in range(2):
        unit.load(k, ACTS + index, data + index * LINE, CHUNK)
        unit.load(k, CODES + index, data + index * LINE, LINE)
    pairs = list(product(range(2), repeat=2))
    for index in range(len(pairs)):
        unit.zero(k, DOTS + index)
    for _turn in k.range(0, turns):
        for index, (acts, codes) in enumerate(pairs):
            unit.multiply(k, DOTS + index, ACTS + acts, CODES + codes)
    for index in range(len(pairs)):
        unit.store(k, DOTS + index, out + index * DOTS_BYTES, LINE)
    unit.release(k)
    k.ret()
    return k


def float_kernel(isa: Isa) -> Kernel:
    """Adds float32 products, fused."""
    return _float_sums("probe_float", isa, F32X16, lambda k, total, factor: k.fma(factor, factor, total))


def pair_kernel(isa: Isa) -> Kernel:
    """Adds products of pairs of bfloat16 numbers; ``isa`` must have ``dot2``. A turn makes twice ``float_macs``."""
    dot2 = isa.dot2
    assert dot2 is not None
    return _float_sums("probe_bf16", isa, I32X16, lambda k, total, factor: dot2(k, total, factor, factor))


def _float_sums(name: str, isa: Isa, kind: Type, add: Callable[[Kernel, Value, Value], Value]) -> Kernel:
    """``add`` makes a sum of a sum and of a factor of type ``kind``, which is read from ``data``."""
    k = Kernel(name, PROBE_PARAMETERS)
    turns, data, out = k.args
    sums = [k.var(F32X16, float(index)) for index in range(accumulators(isa))]
    factor = k.load(kind, data)
    for _turn in k.range(0, turns):
        for total in sums:
            total.set(add(k, total.get(), factor))
    return _stored(k, sums, out)


def _stored(k: Kernel, sums: Sequence[Var], out: Value) -> Kernel:
    """Ends a probe: stores its sums."""
    for index, total in enumerate(sums):
        k.store(total.get(), out + index * LINE)
    k.ret()
    return k


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """Measures this machine with one instruction set and number of threads.

    ``working_set`` is the number of bytes that a model reads in a step. Results are kept in the folder ``cache``;
    None: the cache folder.
    """

    compiler: Compiler
    threads: int
    working_set: int = 0
    cache: Path | None = None

    def limits(self) -> MachineLimits:
        """This week's results if they include the read speed of the working set; otherwise measured now, in 0.3 s."""
        known = self.known()
        return known if known is not None and known.measured_at(self.working_set) else self.again()

    def again(self, sizes: Sequence[int] = (), runs: int = QUICK_RUNS) -> MachineLimits:
        """Measured now at ``sizes``, or at the working set alone; the best of that and of this week's results."""
        limits = self.now(sizes or (probe_size(self.working_set),), runs)
        known = self.known()
        limits = limits if known is None else best_of(known, limits)
        with contextlib.suppress(OSError):  # without a writable folder nothing is kept
            write_whole(self._path, json.dumps(asdict(limits), indent=1).encode())
        return limits

    def best(self) -> MachineLimits:
        """Measured now, in about a second; the best of that and of this week's results."""
        return self.again(self._sizes, FULL_RUNS)

    def now(self, sizes: Sequence[int] = (), runs: int = FULL_RUNS) -> MachineLimits:
        """Measured now at ``sizes``, or at ``FULL_SIZES`` and the working set."""
        compiler, threads, isa = self.compiler, self.threads, self.compiler.target.isa
        return MachineLimits(
            cpu=read_cpu().name,
            isa=isa.name,
            threads=threads,
            reads=tuple(_read_speed(compiler, threads, size, runs) for size in _affordable(sizes or self._sizes)),
            int8_macs_per_s=_peak(compiler, int8_kernel(isa), int8_macs(isa), threads, runs),
            float_macs_per_s=_peak(compiler, float_kernel(isa), float_macs(isa), threads, runs),
            bf16_macs_per_s=_peak(compiler, pair_kernel(isa), 2 * float_macs(isa), threads, runs) if isa.dot2 else None,
            measured=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def known(self) -> MachineLimits | None:
        """This week's results for this processor, or None."""
        try:
            fields = json.loads(self._path.read_text("utf-8"))
            reads = tuple(ReadSpeed(int(read["size"]), float(read["bytes_per_s"])) for read in fields.pop("reads"))
            limits = MachineLimits(reads=reads, **fields)
            fresh = timedelta(0) <= limits.age < LONGEST_AGE
        except (OSError, ValueError, TypeError, KeyError):
            return None
        expected = (read_cpu().name, self.compiler.target.isa.name, self.threads)
        return limits if (limits.cpu, limits.isa, limits.threads) == expected and fresh and limits.reads else None

    @property
    def _path(self) -> Path:
        folder = self.cache or CacheFolders.of().root
        return folder / f"machine-{self.compiler.target.isa.name}-{self.threads}.json"

    @property
    def _sizes(self) -> tuple[int, ...]:
        own = (probe_size(self.working_set),) if self.working_set else ()
        return tuple(sorted({*FULL_SIZES, *own}))


def _affordable(sizes: Sequence[int]) -> list[int]:
    most = read_memory().available // MEMORY_SHARE
    return [size for size in sizes if size <= most] or [min(sizes)]


def _read_speed(compiler: Compiler, threads: int, size: int, runs: int) -> ReadSpeed:
    run = as_function(compiler.address(read_kernel(compiler.target.isa)), 3)
    start, owner = aligned_zeros(size + threads * PROBE_BYTES)
    owner.fill(1)  # the system maps all untouched pages to one page of zeros
    turns = size // threads // READ_BYTES
    share = turns * READ_BYTES
    sums = start + size
    calls = [(turns, start + i * share, sums + i * PROBE_BYTES) for i in range(threads)]
    return ReadSpeed(size, threads * share / _best(run, calls, runs))


def _peak(compiler: Compiler, kernel: Kernel, macs: int, threads: int, runs: int) -> float:
    """Multiply-adds a second of a kernel that computes ``macs`` of them a turn."""
    run = as_function(compiler.address(kernel), 3)
    area = 2 * PROBE_BYTES
    start, owner = aligned_zeros(threads * area)
    owner.fill(1)
    areas = [(start + i * area, start + i * area + PROBE_BYTES) for i in range(threads)]  # its data, then its sums
    turns = 1_000
    # Even the fastest run must be long enough: a slower one may have spent its time waiting for a processor.
    while (seconds := _best(run, [(turns, *addresses) for addresses in areas], runs)) < MIN_RUN_S:
        turns = max(2 * turns, int(turns * 1.2 * MIN_RUN_S / max(seconds, 1e-6)))
    return threads * turns * macs / seconds


def _best(run: Probe, calls: Sequence[tuple[int, int, int]], runs: int) -> float:
    """Seconds of the fastest of several runs, all calls at once."""
    return min(_together(run, calls) for _ in range(runs))


def _together(run: Probe, calls: Sequence[tuple[int, int, int]]) -> float:
    others = [threading.Thread(target=run, args=call) for call in calls[1:]]
    began = time.perf_counter()
    for thread in others:
        thread.start()
    run(*calls[0])
    for thread in others:
        thread.join()
    return time.perf_counter() - began
