"""Processor and memory: this machine's, and made-up ones as /proc and cgroup files."""

import os
from pathlib import Path

import pytest

from twofold.host import machine
from twofold.host.machine import read_cpu, read_memory

GIB = 1 << 30


def make(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    """A made-up /proc and /sys/fs/cgroup."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root / "proc", root / "cgroup"


def cpuinfo(cores: int, threads_each: int) -> str:
    blocks = [
        f"processor\t: {core * threads_each + thread}\nmodel name\t: Some CPU\nflags\t\t: fpu avx2\n"
        f"physical id\t: 0\ncore id\t\t: {core}\n"
        for core in range(cores)
        for thread in range(threads_each)
    ]
    return "\n".join(blocks)


MEMINFO = f"MemTotal: {8 * GIB // 1024} kB\nMemAvailable: {6 * GIB // 1024} kB\nHugePages_Total: 0\n"


def test_this_machine() -> None:
    found = read_cpu()
    assert found.name
    assert found.machine
    assert 1 <= found.usable_cores <= found.usable <= found.threads
    assert found.cores <= found.threads
    assert found.usable <= len(os.sched_getaffinity(0))
    memory = read_memory()
    assert 0 < memory.available <= memory.total
    assert memory.usable <= memory.total


def test_cores_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_affinity", lambda: set(range(8)))
    found = read_cpu(*make(tmp_path, {"proc/cpuinfo": cpuinfo(4, 2)}))
    assert (found.name, found.features) == ("Some CPU", frozenset({"fpu", "avx2"}))
    assert (found.cores, found.threads, found.usable, found.usable_cores) == (4, 8, 8, 4)


def test_affinity_limits_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_affinity", lambda: {0, 1, 2})
    found = read_cpu(*make(tmp_path, {"proc/cpuinfo": cpuinfo(4, 2)}))
    assert (found.usable, found.usable_cores) == (3, 2)


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/cpu.max": "250000 100000"}, 3),
        ({"proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/cpu.max": "max 100000", "cgroup/a/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "max 100000"}, 8),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n",
                "cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "200000",
                "cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        ({"proc/self/cgroup": "3:cpu:/x\n", "cgroup/cpu/x/cpu.cfs_quota_us": "-1"}, 8),
        ({"proc/self/cgroup": "garbage\n0:\n", "cgroup/cpu.max": "x y z"}, 8),
    ],
)
def test_a_quota_limits_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], usable: int
) -> None:
    monkeypatch.setattr(machine, "_affinity", lambda: set(range(8)))
    found = read_cpu(*make(tmp_path, {"proc/cpuinfo": cpuinfo(4, 2), **files}))
    assert found.usable == usable
    assert found.usable_cores == min(4, usable)


def test_a_machine_without_proc(tmp_path: Path) -> None:
    found = read_cpu(tmp_path, tmp_path)
    assert found.threads == (os.cpu_count() or 1)
    assert found.features == frozenset()
    assert read_memory(tmp_path, tmp_path).total > 0


def test_memory_without_a_limit(tmp_path: Path) -> None:
    memory = read_memory(*make(tmp_path, {"proc/meminfo": MEMINFO}))
    assert (memory.total, memory.available, memory.limit, memory.usable) == (8 * GIB, 6 * GIB, None, 8 * GIB)


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/box\n",
        "cgroup/box/memory.max": str(2 * GIB),
        "cgroup/box/memory.current": str(GIB),
        "cgroup/box/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
    }
    memory = read_memory(*make(tmp_path, files))
    assert (memory.limit, memory.usable, memory.available) == (2 * GIB, 2 * GIB, 3 * GIB // 2)


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_no_limit_as_both_versions_write_it(tmp_path: Path, limit: str) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/box\n0::/box\n",
        "cgroup/memory/box/memory.limit_in_bytes": limit,
        "cgroup/box/memory.max": limit,
    }
    assert read_memory(*make(tmp_path, files)).limit is None
