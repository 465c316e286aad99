"""A persistent thread pool that runs programs of kernels, with one call from Python a step.

A **program** is a list of operations; each has a kernel, its arguments, and the field that counts its units. Every
worker of the pool processes the same list. Of each operation a worker runs a fixed first share, then claims more from a
shared counter until none is left. If the next operation needs all results of this one, the workers meet at a barrier,
where they spin and then sleep. Claims decide only which worker computes, never what.

    op  →  run own share, claim, run …  →  (barrier)  →  next op

Workers other than the caller are Python threads that run machine code without the interpreter's lock. Between steps
they spin on the generation counter for some milliseconds, then park on a Python event.

**Joining late.** The caller is the last worker. It may join after the others have begun, to do other work in Python
first. This is correct for these reasons:

- ``PRESENT`` is the number of participating workers: 0 … PRESENT − 1. While a program runs, only the last worker to
  arrive at a barrier changes it, while all others wait there, so between two barriers all workers see the same number.
- The caller sets ``JOINING`` and waits for ``RESUME``, the operation that it begins with. The last worker to arrive at
  a barrier sets it once: at the first barrier where it sees ``JOINING``, or at the last barrier in any case. So the
  caller never waits forever; if the program has ended, no operation is left after ``RESUME``.
- ``RESUME`` is set after the barrier has opened. Otherwise a caller that already ran to the next barrier could take the
  previous generation for the one it waits in. The next barrier cannot open before the caller arrives.
- Only the caller clears the counters, once it is past the last barrier; after that barrier no worker claims, and only
  the caller starts another program.

**Exceptions.** A signal may raise between the start of a program and the caller's share of it. ``OWED`` says what the
caller has not done; only machine code changes it, and the next start and ``close`` do it first.

**Fewer workers.** ``resize`` sets the size of the team between two programs (see ``team``). Workers beyond it leave at
the next generation: they mark their record as ``DISMISSED``, return to Python, and wait there. ``PARKED`` counts only
workers of the team, so no start waits for the others. A worker is enlisted again only after it has left.
"""

from __future__ import annotations

import atexit
import os
import platform
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.cpu.kernels.ir import I1, I32, I64, PTR, Kernel, Value
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.jit import Compiler, as_function

FIRST_YIELD: Final = 256
"""Pauses before a worker first yields its core (sched_yield), a power of two; the next yield is after twice as many."""
SPINS: Final = 8_000
"""Pauses before a worker sleeps: a third of a millisecond. The other workers are seldom later."""
FUTEX: Final = {"x86_64": 202, "aarch64": 98}
"""The number of Linux's system call."""
WAIT: Final = 128
WAKE: Final = 129
"""FUTEX_WAIT and FUTEX_WAKE, for the threads of one process."""
MAX_SLEEP_NS: Final = 1_000_000
WAKE_ALL: Final = 2**31 - 1
LINE: Final = 64
SPIN_LIMIT: Final = 50_000
"""Pauses that a worker spins between steps before it parks: two milliseconds, longer than Python needs for a step."""
NOT_YET: Final = 0
"""``RESUME`` before it is set: a worker that was absent at operation 0 cannot begin with it."""

ALL: Final = 1
REST: Final = 2
"""What the caller still owes to an open program, in ``OWED``: its whole share, or to join; 0 if nothing."""

OP_FIELDS: Final = ("kernel", "args", "source", "multiplier", "quantum", "parts", "barrier")
OP_BYTES: Final = 8 * len(OP_FIELDS)


def open_gate(k: Kernel, gate: Value, number: Value) -> None:
    """Changes the gate's number and wakes sleepers. Earlier writes are visible to every worker that sees the number.

    A gate is two 8-byte fields: a number, and the count of workers that sleep until its low half changes. The count is
    read without a fence, which would cost each barrier a tenth of a microsecond. So a worker that falls asleep at that
    moment may be missed; it wakes by itself, because no sleep is longer than a millisecond.
    """
    k.store_release(number, gate)
    with k.when(k.load_acquire(_sleepers(gate)) > 0):
        _system_call(k, gate, WAKE, k.lift(WAKE_ALL, I64), Value(k, PTR, "null"))


def wait_at_gate(k: Kernel, isa: Isa, gate: Value, number: Value, waited: Value | None = None) -> None:
    """Waits until the gate's number is no longer ``number``: spins, yields the core, and at last sleeps.

    Spinning costs nothing while the others compute. If they do not, something else runs on their core. If that is
    another worker, it helps to yield this core at once; if it is a foreign process, it helps to leave this core idle,
    because the operating system then moves the other worker here. A worker that yields again and again loses its share
    in the scheduler and gets no core when it has work: with two foreign processes on two cores a step took forty times
    as long. So yields become rarer, and then the worker sleeps in Linux's futex (Drepper, "Futexes Are Tricky", 2011).
    On other systems it only yields.

    ``waited``, if given, is a field to which waits are added, in nanoseconds from ``FIRST_YIELD`` pauses on.
    """
    waiting, spins = k.var(I1, k.load_acquire(gate).equals(number)), k.var(I64, 0)
    longest, now = k.buffer(16), k.buffer(16)
    began = k.var(I64, 0)
    with k.loop_while(waiting):
        isa.pause(k)
        spins.set(spins.get() + 1)
        if waited is not None:
            with k.when(spins.get().equals(FIRST_YIELD)):
                began.set(_nanoseconds(k, now))
        with k.when((spins.get() >= FIRST_YIELD) & (spins.get() & (spins.get() - 1)).equals(0)):
            k.call(I32, "sched_yield")
        with k.when(spins.get() > SPINS):
            for index, part in enumerate((0, MAX_SLEEP_NS)):  # seconds and nanoseconds
                k.store(k.lift(part, I64), longest + 8 * index)
            k.fetch_add(_sleepers(gate), 1)
            _system_call(k, gate, WAIT, number, longest)
            k.fetch_add(_sleepers(gate), -1)
        waiting.set(k.load_acquire(gate).equals(number))
    if waited is not None:
        with k.when(spins.get() >= FIRST_YIELD):
            k.fetch_add(waited, _nanoseconds(k, now) - began.get())


def _sleepers(gate: Value) -> Value:
    return gate + 8


def _nanoseconds(k: Kernel, buffer: Value) -> Value:
    """The monotonic clock. ``buffer`` has room for seconds and nanoseconds."""
    k.call(I32, "clock_gettime", k.lift(time.CLOCK_MONOTONIC, I32), buffer)
    return k.load(I64, buffer) * 1_000_000_000 + k.load(I64, buffer + 8)


def _system_call(k: Kernel, gate: Value, operation: int, number: Value, timeout: Value) -> None:
    call = FUTEX.get(platform.machine()) if platform.system() == "Linux" else None
    if call is None:
        k.call(I32, "sched_yield")
        return
    zero = k.lift(0, I64)
    k.call(I64, "syscall", k.lift(call, I64), gate, k.lift(operation, I64), number, timeout, zero, zero)


class Control(IntEnum):
    """Fields of the pool's record. Fields that several threads write have a cache line of their own."""

    OPS = 0
    OP_COUNT = 1
    STEP = 2
    COUNTERS = 3
    WORKERS = 4
    SCRATCH = 5
    SCRATCH_STRIDE = 6
    STARTED = 7
    ARRIVALS = 8
    BARRIER_GENERATION = 16
    BARRIER_SLEEPERS = 17
    GENERATION = 24
    PARKED = 32
    PRESENT = 40
    JOINING = 41
    RESUME = 42
    RESUME_SLEEPERS = 43
    OWED = 44
    WAITED = 48
    SIZE = 56


class WorkerRecord(IntEnum):
    """Fields of a worker's record, which it shares with the caller."""

    SEEN = 0
    """The last generation that it ran."""
    DISMISSED = 1
    """Whether it has left the team."""
    SIZE = 8


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel call of a program.

    It has ``step[source] · multiplier`` units. A claim is about 1/``parts`` of a worker's share, in multiples of
    ``quantum``; the first is fixed. ``barrier``: whether the next operation must wait for all units.
    """

    kernel: int
    args: NDArray[np.int64]
    source: int
    multiplier: int = 1
    quantum: int = 1
    parts: int = 2
    barrier: bool = True


@dataclass(frozen=True, slots=True)
class Program:
    """Operations as machine code reads them, and the step record they share. Counters are zero between runs."""

    ops: NDArray[np.int64]
    counters: NDArray[np.int64]
    step: NDArray[np.int64]
    operations: tuple[KernelCall, ...]

    @staticmethod
    def of(operations: Sequence[KernelCall], step: NDArray[np.int64]) -> Program:
        assert operations, "a program has operations"
        assert operations[-1].barrier, "a program ends with a barrier: then all results are computed"
        rows = [
            (o.kernel, o.args.ctypes.data, o.source, o.multiplier, o.quantum, o.parts, int(o.barrier))
            for o in operations
        ]
        ops = np.array(rows, np.int64)
        return Program(ops, _lines(len(rows) * LINE // 8), step, tuple(operations))


def run_kernel(isa: Isa) -> Kernel:
    """Runs the pool's program from operation ``first`` on, as worker number ``worker``."""
    k = Kernel("run_program", [("control", PTR), ("worker", I64), ("first", I64)])
    control, worker, first = k.args
    ops, step, counters, scratch = (
        k.field(PTR, control, f) for f in (Control.OPS, Control.STEP, Control.COUNTERS, Control.SCRATCH)
    )
    mine = scratch + worker * k.field(I64, control, Control.SCRATCH_STRIDE)
    count = k.field(I64, control, Control.OP_COUNT)
    # The team may be resized as soon as the last barrier has opened, so this is asked before.
    is_caller = worker.equals(k.field(I64, control, Control.WORKERS) - 1)
    present = k.var(I64, k.field(I64, control, Control.PRESENT))
    for index in k.range(first, count):
        op = ops + index * OP_BYTES
        _claim_and_run(k, op, step, counters + index * LINE, worker, present.get(), mine)
        with k.when(_field(op, "barrier").equals(1)):
            _barrier(k, isa, control, index + 1, present.get())
            present.set(k.field(I64, control, Control.PRESENT))
    with k.when(is_caller):
        for index in k.range(0, count):
            k.store(k.lift(0, I64), counters + index * LINE)
        k.store(k.lift(0, I64), control + 8 * Control.OWED)
    k.ret()
    return k


def _field(op: Value, name: str) -> Value:
    """A numeric field of an operation's record."""
    return op.kernel.field(I64, op, OP_FIELDS.index(name))


def _pointer(op: Value, name: str) -> Value:
    return op.kernel.field(PTR, op, OP_FIELDS.index(name))


def _claim_and_run(
    k: Kernel, op: Value, step: Value, counter: Value, worker: Value, present: Value, scratch: Value
) -> None:
    """Runs the worker's first claim, which is fixed, then claims until no unit is left."""
    kernel, args = _pointer(op, "kernel"), _pointer(op, "args")
    units = k.load(I64, step + _field(op, "source") * 8) * _field(op, "multiplier")
    share, quantum = units // (present * _field(op, "parts")), _field(op, "quantum")
    size = k.smax(share - share % quantum, quantum)
    begin = k.var(I64, worker * size)
    more = k.var(I1, begin.get() < units)
    with k.loop_while(more):
        k.invoke(kernel, args, step, begin.get(), k.smin(begin.get() + size, units), scratch)
        begin.set(present * size + k.fetch_add(counter, size))
        more.set(begin.get() < units)


def _barrier(k: Kernel, isa: Isa, control: Value, following: Value, present: Value) -> None:
    """Waits until all present workers have arrived. The last one opens the next generation.

    If the caller is absent, and has asked to join or no operation is left, the last one also sets ``RESUME`` to
    ``following``, the next operation.
    """
    arrivals, generation = control + 8 * Control.ARRIVALS, control + 8 * Control.BARRIER_GENERATION
    before = k.load_acquire(generation)
    last = k.fetch_add(arrivals, 1).equals(present - 1)
    with k.when(last):
        workers, count = k.field(I64, control, Control.WORKERS), k.field(I64, control, Control.OP_COUNT)
        asked = k.load_acquire(control + 8 * Control.JOINING).equals(1)
        admits = (present < workers) & (asked | following.equals(count))
        k.store_release(0, arrivals)
        with k.when(admits):
            k.store(workers, control + 8 * Control.PRESENT)
        open_gate(k, generation, before + 1)
        with k.when(admits):
            open_gate(k, control + 8 * Control.RESUME, following)
    wait_at_gate(k, isa, generation, before, control + 8 * Control.WAITED)


def start_kernel() -> Kernel:
    """Opens the next generation, and runs the caller's share unless parked workers must be woken first."""
    k = Kernel("start", [("control", PTR), ("run", PTR)])
    control, run = k.args
    k.store(k.lift(ALL, I64), control + 8 * Control.OWED)
    awake = _open(k, control)
    with k.when(awake):
        k.invoke(run, control, k.field(I64, control, Control.WORKERS) - 1, k.lift(0, I64))
    k.ret()
    return k


def start_others_kernel() -> Kernel:
    """Opens the next generation for all but the caller."""
    k = Kernel("start_others", [("control", PTR)])
    (control,) = k.args
    k.store(k.field(I64, control, Control.WORKERS) - 1, control + 8 * Control.PRESENT)
    k.store(k.lift(0, I64), control + 8 * Control.JOINING)
    k.store(k.lift(NOT_YET, I64), control + 8 * Control.RESUME)
    k.store(k.lift(REST, I64), control + 8 * Control.OWED)
    _open(k, control)
    k.ret()
    return k


def _open(k: Kernel, control: Value) -> Value:
    """Opens the next generation. Returns whether all workers are awake, and stores that in ``STARTED`` for Python.

    Earlier writes are visible to workers that see the generation. The number of parked workers is read by an atomic add
    of 0, which every processor orders after the add before it.
    """
    k.fetch_add(control + 8 * Control.GENERATION, 1)
    awake = k.fetch_add(control + 8 * Control.PARKED, 0).equals(0)
    k.store(awake.to(I64, unsigned=True), control + 8 * Control.STARTED)
    return awake


def await_workers_kernel() -> Kernel:
    """Waits until no worker is parked. Woken workers need the interpreter for a moment, so the caller waits without
    its lock. If the program ends first, they may be parked again.
    """
    k = Kernel("await_workers", [("control", PTR)])
    parked, resume = k.args[0] + 8 * Control.PARKED, k.args[0] + 8 * Control.RESUME
    waiting = k.var(I1, 1)
    with k.loop_while(waiting):
        k.call(I32, "sched_yield")
        waiting.set((k.load_acquire(parked) > 0) & k.load_acquire(resume).equals(NOT_YET))
    k.ret()
    return k


def join_kernel(isa: Isa) -> Kernel:
    """Lets the caller join the running program at its next barrier, and runs its share of the rest."""
    k = Kernel("join", [("control", PTR), ("run", PTR)])
    control, run = k.args
    resume = control + 8 * Control.RESUME
    k.store_release(1, control + 8 * Control.JOINING)
    wait_at_gate(k, isa, resume, k.lift(NOT_YET, I64))
    k.invoke(run, control, k.field(I64, control, Control.WORKERS) - 1, k.load_acquire(resume))
    k.ret()
    return k


def serve_kernel(isa: Isa) -> Kernel:
    """A worker's loop: runs each new generation; returns to Python, counted as parked, after ``limit`` idle pauses.

    It also returns, not counted, from a generation whose team it is not in. ``record`` is its ``WorkerRecord``.
    A worker counts itself as parked before it reads the generation for the last time, and the caller reads the count
    after it opens a generation: one of them always sees the other.
    """
    k = Kernel("serve", [("control", PTR), ("worker", I64), ("record", PTR), ("run", PTR), ("limit", I64)])
    control, worker, record, run, limit = k.args
    seen = record + 8 * WorkerRecord.SEEN
    generation, parked = control + 8 * Control.GENERATION, control + 8 * Control.PARKED
    k.fetch_add(parked, -1)
    serving = k.var(I1, 1)
    with k.loop_while(serving):
        idle = k.var(I64, 0)
        waiting = k.var(I1, k.load_acquire(generation).equals(k.load(I64, seen)))
        with k.loop_while(waiting):
            isa.pause(k)
            idle.set(idle.get() + 1)
            same = k.load_acquire(generation).equals(k.load(I64, seen))
            waiting.set(same & (idle.get() < limit))
        fresh = k.var(I1, k.load_acquire(generation).equals(k.load(I64, seen)).equals(0))
        with k.when(fresh.get().equals(0)):
            k.fetch_add(parked, 1)
            fresh.set(k.fetch_add(generation, 0).equals(k.load(I64, seen)).equals(0))
            with k.when(fresh.get()):
                k.fetch_add(parked, -1)
        member = worker < k.field(I64, control, Control.WORKERS) - 1
        with k.when(fresh.get() & member):
            k.store(k.load(I64, seen) + 1, seen)
            k.invoke(run, control, worker, k.lift(0, I64))
        with k.when(fresh.get() & member.equals(0)):
            k.store_release(1, record + 8 * WorkerRecord.DISMISSED)
        serving.set(fresh.get() & member)
    k.ret()
    return k


def enlist_kernel() -> Kernel:
    """Counts dismissed workers as parked."""
    k = Kernel("enlist", [("control", PTR), ("count", I64)])
    k.fetch_add(k.args[0] + 8 * Control.PARKED, k.args[1])
    k.ret()
    return k


def _lines(size: int) -> NDArray[np.int64]:
    """``size`` zeros from the start of a cache line on."""
    memory = np.zeros(size + LINE // 8, np.int64)
    first = -memory.ctypes.data % LINE // 8
    return memory[first : first + size]


class ThreadPool:
    """At most ``workers`` threads, the caller included. One thread at a time may call; ``close`` ends the threads."""

    def __init__(self, compiler: Compiler, workers: int, scratch_bytes: int) -> None:
        isa = compiler.target.isa
        self._run_address = compiler.named("run_program", lambda: run_kernel(isa))
        self._run = as_function(self._run_address, 3)
        self._serve = as_function(compiler.named("serve", lambda: serve_kernel(isa)), 5)
        self._start = as_function(compiler.named("start", start_kernel), 2)
        self._start_others = as_function(compiler.named("start_others", start_others_kernel), 1)
        self._await_workers = as_function(compiler.named("await_workers", await_workers_kernel), 1)
        self._join = as_function(compiler.named("join", lambda: join_kernel(isa)), 2)
        self._enlist = as_function(compiler.named("enlist", enlist_kernel), 2)
        self._control = _lines(Control.SIZE)
        self._control[Control.WORKERS] = self._control[Control.PRESENT] = workers
        self._control[Control.PARKED] = workers - 1
        self._at = self._control.ctypes.data
        self._set_scratch(scratch_bytes, workers)
        self._records = _lines(WorkerRecord.SIZE * workers).reshape(workers, WorkerRecord.SIZE)
        self._size = workers
        self._wake = [threading.Event() for _ in range(workers - 1)]
        self._closed, self._process = False, os.getpid()
        self._program: Program | None = None
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"twofold-{i + 1}", daemon=True)
            for i in range(workers - 1)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)  # or a thread would go on in machine code whose memory is freed

    @property
    def workers(self) -> int:
        """The largest size of the team."""
        return len(self._threads) + 1

    @property
    def size(self) -> int:
        """Workers that run the next program."""
        return self._size

    @property
    def waited(self) -> float:
        """Seconds that all workers have waited for others, of waits that were longer than some microseconds."""
        return float(self._control[Control.WAITED]) * 1e-9

    def reserve(self, scratch_bytes: int) -> None:
        """Gives each worker at least ``scratch_bytes`` of scratch from the next program on."""
        if scratch_bytes > self._scratch_bytes:
            self._set_scratch(scratch_bytes, self.workers)

    def _set_scratch(self, size: int, workers: int) -> None:
        stride = -(-size // LINE) * LINE + 2 * LINE
        self._scratch_bytes = size
        self._scratch = np.zeros(stride * workers + LINE, np.uint8)
        self._control[Control.SCRATCH] = -(-self._scratch.ctypes.data // LINE) * LINE
        self._control[Control.SCRATCH_STRIDE] = stride

    def resize(self, size: int) -> None:
        """Sets the number of workers from the next program on; fewer if workers that left before are not back yet."""
        assert 1 <= size <= self.workers, f"a team of {self.workers} has no {size} workers"
        first = last = self._size - 1
        while last < size - 1 and self._records[last, WorkerRecord.DISMISSED]:
            last += 1
        if last > first:
            self._enlist(self._at, last - first)
            self._records[first:last, WorkerRecord.SEEN] = self._control[Control.GENERATION]
            self._records[first:last, WorkerRecord.DISMISSED] = 0
        self._size = min(size, last + 1)
        self._control[Control.WORKERS] = self._control[Control.PRESENT] = self._size

    def run(self, program: Program) -> None:
        """Runs every operation of ``program``; all its results are in memory on return."""
        self._take_up(program)
        self._run_together()

    def begin(self, program: Program) -> None:
        """Starts ``program`` on the other threads. ``finish`` must follow."""
        self._take_up(program)
        if self._size > 1:
            self._start_others(self._at)
            if not self._control[Control.STARTED]:
                self._wake_all()
                self._await_workers(self._at)

    def finish(self) -> None:
        """Joins the program that was begun, or runs all of it if the caller is alone. Returns as ``run``."""
        if self._size > 1:
            self._join(self._at, self._run_address)
        else:
            self._run_together()

    def _run_together(self) -> None:
        self._start(self._at, self._run_address)
        if not self._control[Control.STARTED]:
            self._wake_all()
            self._run(self._at, self._size - 1, 0)

    def _settle(self) -> None:
        """Does what the caller owes to a program that an exception interrupted, as signals raise between two calls of
        machine code: the others wait for the caller at a barrier."""
        owed = self._control[Control.OWED]
        if not owed:
            return
        self._wake_all()
        if owed == ALL:
            self._run(self._at, self._size - 1, 0)
        else:
            self._join(self._at, self._run_address)

    def close(self) -> None:
        """Ends the threads. The pool cannot run again."""
        if self._closed or self._process != os.getpid():  # a fork has none of the threads
            return
        atexit.unregister(self.close)
        self._settle()
        self._closed = True
        self._control[Control.OP_COUNT] = 0
        self._start(self._at, self._run_address)
        self._wake_all()
        for thread in self._threads:
            thread.join()

    def _take_up(self, program: Program) -> None:
        assert not self._closed, "the pool is closed"
        self._settle()
        if program is self._program:
            return
        control = self._control
        control[Control.OPS] = program.ops.ctypes.data
        control[Control.OP_COUNT] = len(program.ops)
        control[Control.STEP] = program.step.ctypes.data
        control[Control.COUNTERS] = program.counters.ctypes.data
        self._program = program

    def _wake_all(self) -> None:
        for event in self._wake:
            event.set()

    def _work(self, index: int) -> None:
        record = self._records[index]
        while not self._closed:
            self._serve(self._at, index, record.ctypes.data, self._run_address, SPIN_LIMIT)
            self._sleep(index)
            while record[WorkerRecord.DISMISSED] and not self._closed:
                self._sleep(index)

    def _sleep(self, index: int) -> None:
        self._wake[index].wait()
        self._wake[index].clear()
