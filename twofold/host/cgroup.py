"""What a Linux control group (a container) allows this process, versions 1 and 2.

Files: https://docs.kernel.org/admin-guide/cgroup-v2.html. A limit counts on every level above the process too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Version 1 writes "no limit" as the largest page-aligned 63-bit number.
_UNLIMITED: Final = 1 << 60


def memory_limit(proc: Path, cgroup: Path) -> int | None:
    """Bytes of memory that the process may use; None without a limit."""
    limits = [limit for limit, _ in _memory_levels(proc, cgroup)]
    return min(limits, default=None)


def memory_used(proc: Path, cgroup: Path) -> int:
    """Bytes that the limited group already uses, without the file pages that it can drop; 0 without a limit."""
    return min(_memory_levels(proc, cgroup), default=(0, 0))[1]


def cpu_quota(proc: Path, cgroup: Path) -> float | None:
    """CPU time that the process may use, in cores; None without a limit."""
    quotas = [quota for folder in _folders(proc, cgroup, "cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _memory_levels(proc: Path, cgroup: Path) -> list[tuple[int, int]]:
    """(limit, used) of each level that has a limit."""
    levels = []
    for folder in _folders(proc, cgroup, "memory"):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
            levels.append((limit, max(0, used - _droppable(folder))))
    return levels


def _droppable(folder: Path) -> int:
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file" and value.isdigit():
            return int(value)
    return 0


def _quota(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _folders(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """The group's folder and those above it, of version 2 and of the controller's version 1 tree."""
    for line in (_read(proc / "self" / "cgroup") or "").splitlines():
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
        text = (_read(path) or "").strip()
        if text.isdigit():
            return int(text)
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii", errors="replace")
    except OSError:
        return None
