"""What this machine can do at most, measured: bytes it reads and multiply-adds it makes in a second.

Probes run on all threads at once, in machine code without the interpreter's lock; the best of several runs counts,
because whatever else runs can only slow a probe down. Reading is measured for several sizes of memory, for a model that
fits into a cache is not bound by what lies behind it. Results are kept as JSON in the cache folder for a week; what is
measured again in that time counts only where it is better, for the same reason.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from twofold.backends.cpu.kernels import probe
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.jit import Compiler, as_function
from twofold.backends.cpu.memory import aligned_zeros
from twofold.core.limits import MachineLimits, ReadSpeed, best_of, probe_size
from twofold.host.cpu import read_cpu
from twofold.host.memory import read_memory
from twofold.host.paths import CacheFolders, write_whole

QUICK_RUNS: Final = 3
"""Takes about 0.3 s."""
FULL_SIZES: Final = (32 << 20, 128 << 20, 512 << 20)
FULL_RUNS: Final = 10
"""Takes about a second."""
LONGEST_AGE: Final = timedelta(days=7)
MEMORY_SHARE: Final = 4
"""A probe takes at most 1/4 of the memory that is free."""
MIN_RUN_S: Final = 0.004
"""Shorter runs would measure the start of threads."""

Probe = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """Measures this machine with one instruction set and number of threads.

    ``working_set`` is how many bytes a model reads. ``cache`` is the folder of results; None: the cache folder.
    """

    compiler: Compiler
    threads: int
    working_set: int = 0
    cache: Path | None = None

    def limits(self) -> MachineLimits:
        """Results of this week with the read speed of the working set; otherwise measured now, in 0.3 s.

        A model that fits into the last cache is read faster than a larger one.
        """
        known = self.known()
        return known if known is not None and known.measured_at(self.working_set) else self.again()

    def again(self, sizes: Sequence[int] = (), runs: int = QUICK_RUNS) -> MachineLimits:
        """Measured now at ``sizes``, or at the working set alone; the best of that and of this week's results."""
        limits = self.now(sizes or (probe_size(self.working_set),), runs)
        known = self.known()
        limits = limits if known is None else best_of(known, limits)
        with contextlib.suppress(OSError):  # a folder that cannot be written keeps nothing
            write_whole(self._path, json.dumps(asdict(limits), indent=1).encode())
        return limits

    def best(self) -> MachineLimits:
        """Measured now, in about a second; the best of that and of this week's results."""
        return self.again(self._sizes, FULL_RUNS)

    def now(self, sizes: Sequence[int] = (), runs: int = FULL_RUNS) -> MachineLimits:
        """Measured now at ``sizes``, or at those of a full probe."""
        compiler, threads, isa = self.compiler, self.threads, self.compiler.target.isa
        return MachineLimits(
            cpu=read_cpu().name,
            isa=isa.name,
            threads=threads,
            reads=tuple(_read_speed(compiler, threads, size, runs) for size in _affordable(sizes or self._sizes)),
            int8_macs_per_s=_peak(compiler, probe.int8_kernel(isa), probe.int8_macs(isa), threads, runs),
            float_macs_per_s=_peak(compiler, probe.float_kernel(isa), probe.float_macs(isa), threads, runs),
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
    run = as_function(compiler.address(probe.read_kernel(compiler.target.isa)), 3)
    start, owner = aligned_zeros(size + threads * probe.PROBE_BYTES)
    owner.fill(1)  # untouched pages would all be one page of zeros
    turns = size // threads // probe.READ_BYTES
    share = turns * probe.READ_BYTES
    sums = start + size
    calls = [(turns, start + i * share, sums + i * probe.PROBE_BYTES) for i in range(threads)]
    return ReadSpeed(size, threads * share / _best(run, calls, runs))


def _peak(compiler: Compiler, kernel: Kernel, macs: int, threads: int, runs: int) -> float:
    """Multiply-adds a second of a kernel that makes ``macs`` a turn."""
    run = as_function(compiler.address(kernel), 3)
    area = 2 * probe.PROBE_BYTES
    start, owner = aligned_zeros(threads * area)
    owner.fill(1)
    turns = 1_000
    # The run that counts is itself long enough: a shorter one may only have seemed so while it waited for a processor.
    while (seconds := _best(run, _calls(turns, start, area, threads), runs)) < MIN_RUN_S:
        turns = max(2 * turns, int(turns * 1.2 * MIN_RUN_S / max(seconds, 1e-6)))
    return threads * turns * macs / seconds


def _calls(turns: int, start: int, area: int, threads: int) -> list[tuple[int, int, int]]:
    """Arguments for each thread: its own data, and beside it room for its sums."""
    return [(turns, start + i * area, start + i * area + probe.PROBE_BYTES) for i in range(threads)]


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
