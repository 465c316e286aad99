"""Memory of the machine: total, available and limit. All in bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from twofold.host.cgroup import memory_limit, memory_used


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this machine; ``limit`` is that of a cgroup (container), or None."""

    total: int
    available: int
    limit: int | None

    @property
    def usable(self) -> int:
        """Memory that may be allocated in total: that of the machine or of the container."""
        return self.total if self.limit is None else min(self.total, self.limit)


def read_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Memory:
    """The current memory of this machine; a container's limit lowers what is available."""
    fields = _fields(proc / "meminfo")
    total = fields.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = fields.get("MemAvailable", total)
    limit = memory_limit(proc, cgroup)
    if limit is None:
        return Memory(total, available, None)
    return Memory(total, min(available, max(0, limit - memory_used(proc, cgroup))), limit)


def return_freed_memory() -> None:
    """Gives memory that was freed back to the system, where the C library can (glibc's malloc_trim)."""
    import ctypes  # noqa: PLC0415 - start-up time

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _fields(path: Path) -> dict[str, int]:
    """The ``Name:  123 kB`` lines of a /proc file, in bytes; empty if it does not exist."""
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
