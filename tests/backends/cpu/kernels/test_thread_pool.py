"""The pool of threads: every unit once, in order where order is asked for, and no thread left behind."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.cpu.kernels.harness import Machine
from twofold.backends.cpu.kernels.ir import I64, Kernel
from twofold.backends.cpu.kernels.signature import KERNEL_PARAMETERS, KernelArguments, StepFields
from twofold.backends.cpu.kernels.thread_pool import LINE, Control, KernelCall, Program, ThreadPool, WorkerRecord

Ints = NDArray[np.int64]
WORKERS = [1, 2, 3, 4]
SCRATCH = 1000
MakeTeam = Callable[[int], ThreadPool]


@pytest.fixture
def pool_of(machine: Machine) -> Iterator[MakeTeam]:
    """Makes teams that end with the test."""
    made: list[ThreadPool] = []

    def make(workers: int) -> ThreadPool:
        made.append(ThreadPool(machine.compiler, workers, SCRATCH))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def run_beside(pool: ThreadPool, program: Program, meanwhile: Callable[[], None] | None) -> None:
    """Runs a program; where ``meanwhile`` is given, the caller joins after it."""
    if meanwhile is None:
        pool.run(program)
        return
    pool.begin(program)
    try:
        meanwhile()
    finally:
        pool.finish()


def count_kernel() -> Kernel:
    """counts[unit] += 1, atomically."""
    k = Kernel("count_kernel", KERNEL_PARAMETERS)
    a = KernelArguments(k, ("counts",), frozenset({"counts"}))
    for unit in k.range(k.args[2], k.args[3]):
        k.fetch_add(a["counts"] + unit * 8, 1)
    k.ret()
    return k


def stencil_kernel() -> Kernel:
    """target[i] = 3 · source[i] + source[(i + 1) mod n], wrapping: wrong if any of source is not yet there."""
    k = Kernel("stencil_kernel", KERNEL_PARAMETERS)
    a = KernelArguments(k, ("source", "target", "n"), frozenset({"source", "target"}))
    for unit in k.range(k.args[2], k.args[3]):
        here = k.load(I64, a["source"] + unit * 8)
        there = k.load(I64, a["source"] + (unit + 1) % a["n"] * 8)
        k.store(here * 3 + there, a["target"] + unit * 8)
    k.ret()
    return k


def claim_kernel() -> Kernel:
    """begins[unit], ends[unit], scratches[unit] = those of the claim that did the unit."""
    k = Kernel("claim_kernel", KERNEL_PARAMETERS)
    names = ("begins", "ends", "scratches")
    a = KernelArguments(k, names, frozenset(names))
    for unit in k.range(k.args[2], k.args[3]):
        for name, value in zip(names, k.args[2:], strict=True):
            k.store(value, a[name] + unit * 8)
    k.ret()
    return k


def operation(
    machine: Machine,
    make: Callable[[], Kernel],
    *args: Ints | int,
    multiplier: int = 1,
    quantum: int = 1,
    parts: int = 4,
    barrier: bool = True,
) -> KernelCall:
    """A call of the kernel that ``make`` generates under its own name."""
    values = [a if isinstance(a, int) else a.ctypes.data for a in args]
    address = machine.compiler.named(make.__name__, make)
    return KernelCall(address, np.array(values, np.int64), StepFields.ROWS, multiplier, quantum, parts, barrier)


def step_of(rows: int) -> Ints:
    step = np.zeros(StepFields.SIZE, np.int64)
    step[StepFields.ROWS] = rows
    return step


def stencil_chain(machine: Machine, a: Ints, b: Ints, length: int) -> Program:
    """``length`` steps to and fro between two arrays, each needing all of the one before."""
    pairs = [(a, b), (b, a)]
    operations = [operation(machine, stencil_kernel, *pairs[i % 2], len(a)) for i in range(length)]
    return Program.of(operations, step_of(len(a)))


def stencil_chain_in_numpy(a: Ints, length: int) -> Ints:
    for _ in range(length):
        a = a * 3 + np.roll(a, -1)
    return a


@pytest.mark.parametrize("workers", WORKERS)
def test_every_unit_of_every_operation_once(machine: Machine, pool_of: MakeTeam, workers: int) -> None:
    shapes = [(1, 1, 4), (1, 7, 1), (3, 4, 2), (5, 1, 64), (2, 1000, 4)]
    rows = 37
    counts = [np.zeros(rows * multiplier, np.int64) for multiplier, *_ in shapes]
    operations = [
        operation(machine, count_kernel, array, multiplier=m, quantum=q, parts=p, barrier=i % 2 == 0)
        for i, (array, (m, q, p)) in enumerate(zip(counts, shapes, strict=True))
    ]
    step = step_of(rows)
    program, pool = Program.of(operations, step), pool_of(workers)
    for done in range(1, 51):
        pool.run(program)
        for array in counts:
            np.testing.assert_array_equal(array, done)
    step[StepFields.ROWS] = 0
    pool.run(program)
    step[StepFields.ROWS] = 1
    pool.run(program)
    for array, (multiplier, *_) in zip(counts, shapes, strict=True):
        np.testing.assert_array_equal(array[:multiplier], 51)
        np.testing.assert_array_equal(array[multiplier:], 50)


@pytest.mark.parametrize("workers", WORKERS)
def test_barriers_put_operations_in_order(machine: Machine, pool_of: MakeTeam, workers: int) -> None:
    first = np.random.default_rng(1).integers(0, 1000, 501)
    a, b = first.copy(), np.zeros_like(first)
    program, pool, length = stencil_chain(machine, a, b, 40), pool_of(workers), 0
    for _ in range(20):
        pool.run(program)
        length += 40
    np.testing.assert_array_equal(a, stencil_chain_in_numpy(first, length))


@pytest.mark.parametrize(("workers", "programs"), [(1, 3000), (2, 3000), (4, 300)])
def test_many_small_programs_in_a_row(machine: Machine, pool_of: MakeTeam, workers: int, programs: int) -> None:
    counts = np.zeros(5, np.int64)
    program, pool = Program.of([operation(machine, count_kernel, counts)], step_of(5)), pool_of(workers)
    for done in range(1, programs + 1):
        pool.run(program)
        assert (counts == done).all()


@pytest.mark.parametrize("workers", WORKERS)
def test_claims_are_whole_quanta_and_scratch_is_nobody_elses(machine: Machine, pool_of: MakeTeam, workers: int) -> None:
    units, quantum = 103, 6
    begins, ends, scratches = (np.full(units, -1, np.int64) for _ in range(3))
    program = Program.of([operation(machine, claim_kernel, begins, ends, scratches, quantum=quantum)], step_of(units))
    pool_of(workers).run(program)
    own = np.arange(units)
    assert (begins <= own).all()
    assert (own < ends).all()
    assert not (begins % quantum).any()
    assert not (ends[ends < units] % quantum).any()
    areas = np.unique(scratches)
    assert len(areas) <= workers
    assert not (areas % LINE).any()
    assert (np.diff(areas) >= SCRATCH + LINE).all()


def busy(seconds: float) -> Callable[[], None]:
    """Something to do in Python that keeps the interpreter."""

    def work() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return work


@dataclass(frozen=True)
class Counted:
    """A program of operations that count their units, between stencils that need all of what came before."""

    program: Program
    counts: list[Ints]
    stencils: tuple[Ints, Ints]

    @staticmethod
    def of(machine: Machine, rows: int, groups: int) -> Counted:
        """``groups`` times two counted operations, one of them without a barrier, and two stencils."""
        counts = [np.zeros(rows * multiplier, np.int64) for _ in range(groups) for multiplier in (1, 3)]
        a = np.random.default_rng(rows).integers(0, 1000, rows)
        b = np.zeros_like(a)
        operations = []
        for group in range(groups):
            first, second = counts[2 * group : 2 * group + 2]
            operations += [
                operation(machine, count_kernel, first, quantum=1 + group % 3, barrier=False),
                operation(machine, stencil_kernel, a, b, rows),
                operation(machine, count_kernel, second, multiplier=3, parts=1 + group % 5),
                operation(machine, stencil_kernel, b, a, rows),
            ]
        return Counted(Program.of(operations, step_of(rows)), counts, (a, b))

    def check(self, first: Ints, runs: int) -> None:
        assert all((counts == runs).all() for counts in self.counts)
        np.testing.assert_array_equal(self.stencils[0], stencil_chain_in_numpy(first, len(self.counts) * runs))


@pytest.mark.parametrize(("workers", "runs"), [(1, 200), (2, 2000), (3, 120), (4, 120)])
def test_a_late_caller_changes_nothing(machine: Machine, pool_of: MakeTeam, workers: int, runs: int) -> None:
    """Meanwhiles from nothing to more than the whole program, with and without; each unit once, all in order."""
    counted, pool, random = Counted.of(machine, 37, 12), pool_of(workers), np.random.default_rng(workers)
    before, longest = counted.stencils[0].copy(), 0.0
    for _ in range(20):
        began = time.perf_counter()
        pool.run(counted.program)
        longest = max(longest, time.perf_counter() - began)
    for _ in range(runs):
        seconds = random.uniform(0, min(2 * longest, 1e-3)) * (random.random() < 0.9)
        run_beside(pool, counted.program, None if random.random() < 0.1 else busy(seconds))
    counted.check(before, runs + 20)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_program_may_end_before_its_caller_comes(machine: Machine, pool_of: MakeTeam, workers: int) -> None:
    counted, pool = Counted.of(machine, 5, 1), pool_of(workers)
    before = counted.stencils[0].copy()
    seen: list[list[int]] = []

    def wait_for_the_end() -> None:
        ended, patience = len(seen) + (workers > 1), time.perf_counter() + 60
        while min(int(counts.min()) for counts in counted.counts) < ended and time.perf_counter() < patience:
            time.sleep(1e-3)
        seen.append([int(counts.min()) for counts in counted.counts])

    for _ in range(5):
        run_beside(pool, counted.program, wait_for_the_end)
    counted.check(before, 5)
    done = [[run + (workers > 1)] * 2 for run in range(5)]
    assert seen == done


def test_a_caller_that_comes_takes_its_share(machine: Machine, pool_of: MakeTeam) -> None:
    counts, fields = np.zeros(4000, np.int64), [np.zeros(8, np.int64) for _ in range(3)]
    operations = [operation(machine, count_kernel, counts, multiplier=500) for _ in range(200)]
    operations.append(operation(machine, claim_kernel, *fields))
    program, pool, members = Program.of(operations, step_of(8)), pool_of(2), []
    for _ in range(20):
        run_beside(pool, program, lambda: None)
        members.append(len(set(fields[2].tolist())))
    assert 2 in members
    assert (counts == 20 * 200).all()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_meanwhile_raises_leaves_when_the_program_is_done(
    machine: Machine, pool_of: MakeTeam, workers: int
) -> None:
    counted, pool = Counted.of(machine, 37, 12), pool_of(workers)
    before = counted.stencils[0].copy()

    def fail() -> None:
        raise ValueError("no time")

    for runs in range(1, 6):
        with pytest.raises(ValueError, match="no time"):
            run_beside(pool, counted.program, fail)
        assert all((counts == runs).all() for counts in counted.counts)
    pool.run(counted.program)
    counted.check(before, 6)


@pytest.mark.parametrize("workers", [2, 4])
def test_parked_members_begin_before_the_caller_is_busy(machine: Machine, pool_of: MakeTeam, workers: int) -> None:
    """They need the interpreter to wake, which the caller then keeps."""
    counts, seen, work = np.zeros(50, np.int64), [], busy(2e-2)

    def look_afterwards() -> None:
        work()
        seen.append(int(counts.min()))

    program, pool = Program.of([operation(machine, count_kernel, counts)], step_of(50)), pool_of(workers)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        for done in range(1, 4):
            wait_until_parked(pool)
            run_beside(pool, program, look_afterwards)
            assert (counts == done).all()
    finally:
        sys.setswitchinterval(interval)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("meanwhile", [None, lambda: None])
def test_members_that_fell_asleep_at_a_barrier_wake(
    machine: Machine, pool_of: MakeTeam, workers: int, meanwhile: Callable[[], None] | None
) -> None:
    """One claim is nearly all of an operation, so all others have nothing to do for longer than members spin."""
    long = 600_000
    counts, few = np.zeros(long + 3, np.int64), np.zeros(5, np.int64)
    operations = [
        operation(machine, count_kernel, counts, quantum=long, multiplier=long + 3),
        operation(machine, count_kernel, few, multiplier=5),
    ]
    program, pool = Program.of(operations * 3, step_of(1)), pool_of(workers)
    for done in range(1, 5):
        run_beside(pool, program, meanwhile)
        assert (counts == 3 * done).all()
        assert (few == 3 * done).all()


@pytest.mark.parametrize("workers", [2, 4])
def test_parked_members_wake(machine: Machine, pool_of: MakeTeam, workers: int) -> None:
    counts = np.zeros(50, np.int64)
    program, pool = Program.of([operation(machine, count_kernel, counts)], step_of(50)), pool_of(workers)
    for done in range(1, 4):
        wait_until_parked(pool)
        pool.run(program)
        assert (counts == done).all()


def test_members_that_are_just_parking_are_not_missed(machine: Machine, pool_of: MakeTeam) -> None:
    """Pauses around the time that members spin, so that programs come while they give up."""
    counts = np.zeros(50, np.int64)
    program, pool = Program.of([operation(machine, count_kernel, counts)], step_of(50)), pool_of(3)
    for done, pause in enumerate(np.linspace(0, 2.5e-3, 150), 1):
        time.sleep(pause)
        pool.run(program)
        assert (counts == done).all()


@pytest.mark.parametrize("parked", [False, True])
def test_close_ends_the_threads_and_may_be_repeated(machine: Machine, parked: bool) -> None:
    before = set(threading.enumerate())
    pool = ThreadPool(machine.compiler, 4, SCRATCH)
    mine = set(threading.enumerate()) - before
    assert len(mine) == 3
    assert pool.workers == 4
    if parked:
        wait_until_parked(pool)
    pool.close()
    pool.close()
    assert not any(thread.is_alive() for thread in mine)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_a_signal_between_start_and_share_leaves_no_thread_behind(
    machine: Machine, late: bool, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is interrupted while it wakes the others, who then wait for it at the first barrier."""
    counted, pool = Counted.of(machine, 37, 12), ThreadPool(machine.compiler, 3, SCRATCH)
    before = counted.stencils[0].copy()
    wait_until_parked(pool)
    wake = pool._wake_all

    def interrupted() -> None:
        monkeypatch.setattr(pool, "_wake_all", wake)
        pool._wake[0].set()
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_wake_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        (pool.begin if late else pool.run)(counted.program)
    if not closes:
        pool.run(counted.program)
        counted.check(before, 2)
    pool.close()
    assert not any(thread.is_alive() for thread in pool._threads)
    counted.check(before, 1 if closes else 2)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_teams_of_any_size_do_every_unit_once(machine: Machine, pool_of: MakeTeam, workers: int) -> None:
    """Sizes, pauses (so that workers park) and late callers at random."""
    counted, pool, random = Counted.of(machine, 37, 12), pool_of(workers), np.random.default_rng(workers)
    before, sizes = counted.stencils[0].copy(), set()
    for _ in range(400):
        if random.random() < 0.3:
            asked = int(random.integers(1, workers + 1))
            had = pool.size
            pool.resize(asked)
            assert min(asked, had) <= pool.size <= asked
        if random.random() < 0.1:
            time.sleep(random.uniform(0, 3e-3))
        run_beside(pool, counted.program, None if random.random() < 0.3 else busy(random.uniform(0, 3e-4)))
        sizes.add(pool.size)
    counted.check(before, 400)
    assert sizes == set(range(1, workers + 1))


def test_a_team_has_no_more_members_than_its_size(machine: Machine, pool_of: MakeTeam) -> None:
    units = 4000
    fields = [np.zeros(units, np.int64) for _ in range(3)]
    operations = [operation(machine, claim_kernel, *fields, multiplier=units // 8, parts=64)]
    program, pool = Program.of(operations, step_of(8)), pool_of(4)
    for size in (4, 2, 1, 3):
        grow(pool, size, program)
        for _ in range(5):
            pool.run(program)
            assert len(set(fields[2].tolist())) <= size


def test_workers_that_left_sleep_and_are_not_woken(machine: Machine, pool_of: MakeTeam) -> None:
    counts = np.zeros(50, np.int64)
    program, pool = Program.of([operation(machine, count_kernel, counts)], step_of(50)), pool_of(3)
    pool.run(program)
    pool.resize(1)
    end = time.monotonic() + 60
    while not pool._records[:2, WorkerRecord.DISMISSED].all():
        assert time.monotonic() < end, "workers did not leave"
        pool.run(program)
        time.sleep(1e-3)
    assert pool._control[Control.PARKED] == 0
    done = int(counts[0])
    for _ in range(20):
        pool.run(program)
        assert pool._control[Control.STARTED], "the caller waited for a worker that has left"
    assert (counts == done + 20).all()


@pytest.mark.parametrize("size", [1, 2])
def test_a_smaller_team_closes(machine: Machine, size: int) -> None:
    counts = np.zeros(5, np.int64)
    program, pool = (
        Program.of([operation(machine, count_kernel, counts)], step_of(5)),
        ThreadPool(machine.compiler, 3, SCRATCH),
    )
    pool.resize(size)
    for _ in range(3):
        pool.run(program)
    pool.close()
    assert not any(thread.is_alive() for thread in pool._threads)


def test_waits_of_workers_are_counted(machine: Machine, pool_of: MakeTeam) -> None:
    """One claim is nearly all of an operation, so the other worker waits, unless it was still asleep."""
    long = 600_000
    counts = np.zeros(long + 3, np.int64)
    operations = [operation(machine, count_kernel, counts, quantum=long, multiplier=long + 3)]
    program, pool = Program.of(operations, step_of(1)), pool_of(2)
    began = time.perf_counter()
    while not pool.waited:
        assert time.perf_counter() - began < 60, "no wait was counted"
        pool.run(program)
    assert pool.waited <= 2 * (time.perf_counter() - began)


def test_a_closed_team_runs_nothing(machine: Machine, pool_of: MakeTeam) -> None:
    counts = np.zeros(5, np.int64)
    pool = pool_of(2)
    pool.close()
    with pytest.raises(AssertionError, match="closed"):
        pool.run(Program.of([operation(machine, count_kernel, counts)], step_of(5)))
    assert not counts.any()


def test_many_teams_come_and_go(machine: Machine) -> None:
    before = set(threading.enumerate())
    counts = np.zeros(9, np.int64)
    program = Program.of([operation(machine, count_kernel, counts)], step_of(9))
    for done in range(1, 31):
        pool = ThreadPool(machine.compiler, 1 + done % 4, SCRATCH)
        pool.run(program)
        pool.close()
        assert (counts == done).all()
    assert set(threading.enumerate()) <= before


def test_a_program_ends_with_a_barrier(machine: Machine) -> None:
    counts = np.zeros(5, np.int64)
    with pytest.raises(AssertionError):
        Program.of([operation(machine, count_kernel, counts, barrier=False)], step_of(5))


def grow(pool: ThreadPool, size: int, program: Program) -> None:
    """Until the team has the size; fails if workers do not leave, so that they cannot come back."""
    end = time.monotonic() + 60
    pool.resize(size)
    while pool.size != size:
        assert time.monotonic() < end, "workers did not come back"
        pool.run(program)
        pool.resize(size)


def wait_until_parked(pool: ThreadPool) -> None:
    """Until all members have gone to sleep; fails when they never do."""
    end = time.monotonic() + 60
    while pool._control[Control.PARKED] != pool.workers - 1:
        assert time.monotonic() < end, "members did not park"
        time.sleep(1e-3)
