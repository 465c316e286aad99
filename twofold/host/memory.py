"""How much memory there is, how much of it is free, and how much this process takes. All in bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from twofold.host.cgroup import memory_limit, memory_used


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this machine; ``limit`` is what a cgroup (container) allows, None where nothing does."""

    total: int
    available: int
    limit: int | None

    @property
    def usable(self) -> int:
        """What may be allocated in all: the machine's memory, or the container's share."""
        return self.total if self.limit is None else min(self.total, self.limit)


def read_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Memory:
    """What this machine has now; a container's limit lowers what is available."""
    fields = _fields(proc / "meminfo")
    total = fields.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = fields.get("MemAvailable", total)
    limit = memory_limit(proc, cgroup)
    if limit is None:
        return Memory(total, available, None)
    return Memory(total, min(available, max(0, limit - memory_used(proc, cgroup))), limit)


def return_freed_memory() -> None:
    """Gives memory that was freed back to the system, where the C library can (glibc's malloc_trim)."""
    import ctypes  # noqa: PLC0415 - few need it

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _fields(path: Path) -> dict[str, int]:
    """The ``Name:  123 kB`` lines of a /proc file, in bytes; empty where there is no such file."""
    try:
        lines = path.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found
