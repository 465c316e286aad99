"""The processor and the memory of this machine, and the part of both that a container allows (Linux control groups).

Control groups, versions 1 and 2: https://docs.kernel.org/admin-guide/cgroup-v2.html. The limits of all levels above the
process's own group apply, too.
"""

from __future__ import annotations

import errno
import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
# Version 1 writes "no limit" as the largest page-aligned 63-bit number.
_UNLIMITED: Final = 1 << 60
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA = 158, 0x1023, 18
"""A system call of Linux on x86-64, its request for a permission, and the part of the processor's state."""


@dataclass(frozen=True, slots=True)
class CPU:
    """A processor. ``features`` are the operating system's names (``avx2``, ``avx512_vnni``, ``asimddp``).

    ``cores`` are physical, ``threads`` logical. ``usable`` threads may run at once under this process's affinity and
    CPU quota; they lie on ``usable_cores`` physical cores.
    """

    name: str
    machine: str
    features: frozenset[str]
    cores: int
    threads: int
    usable: int
    usable_cores: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this machine in bytes; ``limit`` is the limit of a control group (container), or None."""

    total: int
    available: int
    limit: int | None

    @property
    def usable(self) -> int:
        """The total memory that may be allocated: all of the machine's, or the container's limit."""
        return self.total if self.limit is None else min(self.total, self.limit)


def others_busy_s(proc: Path = PROC) -> float:
    """Processor seconds that were not available to this process since the system started: those of other programs and
    of other guests of a virtual machine. 0 where the system does not tell (proc_stat(5))."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, (proc / "stat").read_text().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - time.process_time()


def read_cpu(proc: Path = PROC, cgroup: Path = CGROUP) -> CPU:
    """The processor of this machine, as reported by the operating system."""
    records = list(_records(proc / "cpuinfo"))
    first = records[0] if records else {}
    cores: dict[int, tuple[str, str]] = {}
    for index, record in enumerate(records):
        number = record.get("processor", "")
        # Some machines (ARM, small virtual ones) do not list cores: then each thread counts as one.
        core = record.get("physical id", ""), record.get("core id") or f"thread {index}"
        cores[int(number) if number.isdigit() else index] = core
    allowed = _affinity()
    threads = len(cores) or os.cpu_count() or 1
    core_count = len(set(cores.values())) or threads
    quotas = [quota for folder in _folders(proc, cgroup, "cpu") if (quota := _quota(folder)) is not None]
    most = max(1, math.ceil(min(quotas))) if quotas else threads
    usable = max(1, min(len(allowed) or threads, most))
    return CPU(
        name=first.get("model name") or platform.processor() or platform.machine() or "unknown",
        machine=platform.machine(),
        features=frozenset((first.get("flags") or first.get("Features") or "").split()),
        cores=core_count,
        threads=threads,
        usable=usable,
        usable_cores=min(len({cores[number] for number in allowed & cores.keys()}) or core_count, usable),
    )


def read_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> Memory:
    """The current memory of this machine; a container's limit lowers ``available``."""
    fields = _fields(proc / "meminfo")
    total = fields.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = fields.get("MemAvailable", total)
    levels = _memory_levels(proc, cgroup)
    if not levels:
        return Memory(total, available, None)
    limit, used = min(levels)
    return Memory(total, min(available, max(0, limit - used)), limit)


def request_tiles() -> str | None:
    """Asks the system to let this process and its threads use tile registers (AMX). Returns why not, or None.

    Linux saves 8 KiB more for each thread that uses them: https://docs.kernel.org/arch/x86/xstate.html
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"{platform.system()} on {platform.machine()} has no such permission"
    import ctypes  # noqa: PLC0415 - start-up time

    request = (SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA)
    if ctypes.CDLL(None, use_errno=True).syscall(*map(ctypes.c_long, request)) == 0:
        return None
    code = ctypes.get_errno()
    return "the signal stack of a thread is too small" if code == errno.ENOSPC else os.strerror(code)


def return_freed_memory() -> None:
    """Gives freed memory back to the system, if the C library can (glibc's malloc_trim)."""
    import ctypes  # noqa: PLC0415 - start-up time

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _affinity() -> set[int]:
    """The logical processors that this process may run on; empty if unknown."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return set()


def _records(path: Path) -> Iterator[dict[str, str]]:
    """The blocks of /proc/cpuinfo that describe a processor."""
    for block in _read(path).split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        record = {name.strip(): value.strip() for name, _, value in pairs}
        if "processor" in record:
            yield record


def _fields(path: Path) -> dict[str, int]:
    """The ``Name:  123 kB`` lines of a /proc file, in bytes; empty if it does not exist."""
    found: dict[str, int] = {}
    for line in _read(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _memory_levels(proc: Path, cgroup: Path) -> list[tuple[int, int]]:
    """(limit, used) of each level that has a limit; file pages that the group can drop do not count as used."""
    levels = []
    for folder in _folders(proc, cgroup, "memory"):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
            levels.append((limit, max(0, used - _droppable(folder))))
    return levels


def _droppable(folder: Path) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file" and value.isdigit():
            return int(value)
    return 0


def _quota(folder: Path) -> float | None:
    """CPU time that a group may use, in cores; None without a limit."""
    words = _read(folder / "cpu.max").split()
    if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _folders(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """The group's folder and those above it, of version 2 and of the controller's version 1 tree."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            root = cgroup
        elif controller in names.split(","):
            root = cgroup / names if (cgroup / names).is_dir() else cgroup / controller
        else:
            continue
        group = root / path.lstrip("/")
        yield group
        yield from (parent for parent in group.parents if parent == root or root in parent.parents)


def _number(*paths: Path) -> int | None:
    """The number in the first of the files that holds one."""
    for path in paths:
        text = _read(path).strip()
        if text.isdigit():
            return int(text)
    return None


def _read(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
