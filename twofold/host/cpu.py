"""The processor, its features, and the cores that this process may use."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twofold.host.cgroup import cpu_quota


@dataclass(frozen=True, slots=True)
class CPU:
    """A processor. ``features`` are the operating system's names (``avx2``, ``avx512_vnni``, ``asimddp``).

    ``cores`` are physical, ``threads`` logical; ``usable`` is how many threads can run at once under this process's
    affinity and CPU quota, and ``usable_cores`` on how many physical cores they lie.
    """

    name: str
    machine: str
    features: frozenset[str]
    cores: int
    threads: int
    usable: int
    usable_cores: int


@dataclass(frozen=True, slots=True)
class _Thread:
    number: int
    core: tuple[str, str]


def read_cpu(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> CPU:
    """The processor of this machine, as reported by the operating system."""
    records = list(_records(proc / "cpuinfo"))
    first = records[0] if records else {}
    threads = [_thread(record, index) for index, record in enumerate(records)]
    allowed = _affinity()
    count = len(threads) or os.cpu_count() or 1
    cores = len({thread.core for thread in threads}) or count
    mine = {thread.core for thread in threads if thread.number in allowed}
    quota = cpu_quota(proc, cgroup)
    most = count if quota is None else max(1, math.ceil(quota))
    usable = max(1, min(len(allowed) or count, most))
    return CPU(
        name=first.get("model name") or platform.processor() or platform.machine() or "unknown",
        machine=platform.machine(),
        features=frozenset((first.get("flags") or first.get("Features") or "").split()),
        cores=cores,
        threads=count,
        usable=usable,
        usable_cores=min(len(mine) or cores, usable),
    )


def _affinity() -> set[int]:
    """The logical processors this process may run on; empty if unknown."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return set()


def _thread(record: dict[str, str], index: int) -> _Thread:
    number = record.get("processor", "")
    # Some machines (ARM, small virtual ones) do not list cores: then each thread counts as one.
    core = (record.get("physical id", ""), record.get("core id") or f"thread {index}")
    return _Thread(int(number) if number.isdigit() else index, core)


def _records(path: Path) -> Iterator[dict[str, str]]:
    """The blocks of /proc/cpuinfo that describe a processor."""
    try:
        blocks = path.read_text("utf-8", errors="replace").split("\n\n")
    except OSError:
        return
    for block in blocks:
        pairs = (line.partition(":") for line in block.splitlines())
        record = {name.strip(): value.strip() for name, _, value in pairs}
        if "processor" in record:
            yield record
