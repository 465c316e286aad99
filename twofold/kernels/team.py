"""A persistent team of threads that runs programs of kernels: one call from Python a step.

A **program** is a list of operations; each names a kernel, its arguments, and where its number of units comes from.
Every member of the team walks the same list. Of each operation a member runs a first share that is always its own, then
claims more from a shared counter until none are left; where the next operation needs all of it, the members meet at a
barrier that spins. Claims decide only who computes, never what.

    op  →  run own share, claim, run …  →  (barrier)  →  next op

Members other than the caller are Python threads inside machine code that holds no interpreter lock. Between steps they
spin for a moment on the generation counter, then park on a Python event.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.kernels.ir import Kernel, Value
from twofold.kernels.isa import Isa
from twofold.kernels.jit import Compiler, as_function
from twofold.kernels.signature import Step
from twofold.kernels.types import I1, I32, I64, PTR

LINE: Final = 64
SPIN_LIMIT: Final = 20_000
"""Pauses a member spins between steps before it parks: about a millisecond."""
YIELD_AFTER: Final = 200
"""Pauses at a barrier after which the processor is offered to others: somebody else is on our core."""

OP_FIELDS: Final = ("kernel", "args", "source", "multiplier", "quantum", "parts", "barrier")
OP_BYTES: Final = 8 * len(OP_FIELDS)


class Control(IntEnum):
    """Fields of the team's record, each on a cache line of its own where several threads write."""

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
    GENERATION = 24
    PARKED = 32
    SIZE = 40


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel call of a program.

    Units are ``step[source] · multiplier``; members claim at least ``quantum`` of them, and about 1/``parts`` of a
    member's share, the first of them fixed. ``barrier``: whether the next operation must wait for all of it.
    """

    kernel: int
    args: NDArray[np.int64]
    source: Step
    multiplier: int = 1
    quantum: int = 1
    parts: int = 4
    barrier: bool = True


@dataclass(frozen=True, slots=True)
class Program:
    """Operations as the machine reads them, and the step record they share. Counters are zero between runs."""

    ops: NDArray[np.int64]
    counters: NDArray[np.int64]
    step: NDArray[np.int64]
    operations: tuple[Operation, ...]

    @staticmethod
    def of(operations: Sequence[Operation], step: NDArray[np.int64]) -> Program:
        assert operations, "a program has operations"
        assert operations[-1].barrier, "a program ends where all its results are there"
        rows = [
            (o.kernel, o.args.ctypes.data, int(o.source), o.multiplier, o.quantum, o.parts, int(o.barrier))
            for o in operations
        ]
        ops = np.array(rows, np.int64)
        return Program(ops, np.zeros(len(rows) * LINE // 8 + 8, np.int64), step, tuple(operations))


def run_kernel(isa: Isa) -> Kernel:
    """Walks the team's program as member ``worker``."""
    k = Kernel("run_program", [("control", PTR), ("worker", I64)])
    control, worker = k.args
    ops, step, counters, scratch = (
        k.field(PTR, control, f) for f in (Control.OPS, Control.STEP, Control.COUNTERS, Control.SCRATCH)
    )
    mine = scratch + worker * k.field(I64, control, Control.SCRATCH_STRIDE)
    workers = k.field(I64, control, Control.WORKERS)
    for index in k.range(0, k.field(I64, control, Control.OP_COUNT)):
        op = ops + index * OP_BYTES
        _claim_and_run(k, op, step, counters + index * LINE, worker, workers, mine)
        with k.when(_field(op, "barrier").equals(1)):
            _barrier(k, isa, control, workers)
    with k.when(worker.equals(0)):
        for index in k.range(0, k.field(I64, control, Control.OP_COUNT)):
            k.store(k.lift(0, I64), counters + index * LINE)
    k.ret()
    return k


def _field(op: Value, name: str) -> Value:
    """A number of an operation's record."""
    return op.kernel.field(I64, op, OP_FIELDS.index(name))


def _pointer(op: Value, name: str) -> Value:
    return op.kernel.field(PTR, op, OP_FIELDS.index(name))


def _claim_and_run(
    k: Kernel, op: Value, step: Value, counter: Value, worker: Value, workers: Value, scratch: Value
) -> None:
    """Runs the member's first claim, which is fixed, then what it can get of the rest."""
    kernel, args = _pointer(op, "kernel"), _pointer(op, "args")
    units = k.load(I64, step + _field(op, "source") * 8) * _field(op, "multiplier")
    share, quantum = units // (workers * _field(op, "parts")), _field(op, "quantum")
    size = k.smax(share - share % quantum, quantum)
    begin = k.var(I64, worker * size)
    more = k.var(I1, begin.get() < units)
    with k.loop_while(more):
        k.invoke(kernel, args, step, begin.get(), k.smin(begin.get() + size, units), scratch)
        begin.set(workers * size + k.fetch_add(counter, size))
        more.set(begin.get() < units)


def _barrier(k: Kernel, isa: Isa, control: Value, workers: Value) -> None:
    """Waits until every member is here. The last one opens the next generation."""
    arrivals, generation = control + 8 * Control.ARRIVALS, control + 8 * Control.BARRIER_GENERATION
    before = k.load_acquire(generation)
    last = k.fetch_add(arrivals, 1).equals(workers - 1)
    with k.when(last):
        k.store_release(0, arrivals)
        k.store_release(before + 1, generation)
    waiting = k.var(I1, k.load_acquire(generation).equals(before))
    spins = k.var(I64, 0)
    with k.loop_while(waiting):
        isa.pause(k)
        spins.set(spins.get() + 1)
        with k.when(spins.get() > YIELD_AFTER):
            k.call(I32, "sched_yield")
        waiting.set(k.load_acquire(generation).equals(before))


def start_kernel() -> Kernel:
    """Opens the next generation, and runs the caller's share unless somebody must be woken first.

    What Python wrote before is visible to members that see the generation.
    """
    k = Kernel("start", [("control", PTR), ("run", PTR)])
    control, run = k.args
    k.fetch_add(control + 8 * Control.GENERATION, 1)
    awake = k.load_acquire(control + 8 * Control.PARKED).equals(0)
    k.store(awake.to(I64, unsigned=True), control + 8 * Control.STARTED)
    with k.when(awake):
        k.invoke(run, control, k.lift(0, I64))
    k.ret()
    return k


def serve_kernel(isa: Isa) -> Kernel:
    """A member's life: runs each new generation; returns to Python, counted as parked, when none comes for a while.

    ``seen`` points to the last generation this member ran. A member counts itself before its last look at the
    generation, and the caller looks at the count after publishing, so one of them always sees the other.
    """
    k = Kernel("serve", [("control", PTR), ("worker", I64), ("seen", PTR), ("run", PTR), ("limit", I64)])
    control, worker, seen, run, limit = k.args
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
            fresh.set(k.load_acquire(generation).equals(k.load(I64, seen)).equals(0))
            with k.when(fresh.get()):
                k.fetch_add(parked, -1)
        with k.when(fresh.get()):
            k.store(k.load(I64, seen) + 1, seen)
            k.invoke(run, control, worker)
        serving.set(fresh.get())
    k.ret()
    return k


class Team:
    """``workers`` threads, the caller included. ``run`` is to be called by one thread at a time; ``close`` ends it."""

    def __init__(self, compiler: Compiler, workers: int, scratch_bytes: int) -> None:
        isa = compiler.target.isa
        self._run_address = compiler.named("run_program", lambda: run_kernel(isa))
        self._run = as_function(self._run_address, 2)
        self._serve = as_function(compiler.named("serve", lambda: serve_kernel(isa)), 5)
        self._start = as_function(compiler.named("start", start_kernel), 2)
        stride = -(-scratch_bytes // LINE) * LINE + 2 * LINE
        self._scratch = np.zeros(stride * workers + LINE, np.uint8)
        self._control = np.zeros(Control.SIZE, np.int64)
        self._control[Control.WORKERS] = workers
        self._control[Control.PARKED] = workers - 1
        self._control[Control.SCRATCH] = -(-self._scratch.ctypes.data // LINE) * LINE
        self._control[Control.SCRATCH_STRIDE] = stride
        self._at = self._control.ctypes.data
        self._wake = [threading.Event() for _ in range(workers - 1)]
        self._closed = False
        self._program: Program | None = None
        self._threads = [
            threading.Thread(target=self._member, args=(i,), name=f"twofold-{i + 1}", daemon=True)
            for i in range(workers - 1)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def workers(self) -> int:
        return int(self._control[Control.WORKERS])

    def run(self, program: Program) -> None:
        """Runs every operation of ``program``; all its results are in memory on return."""
        assert not self._closed, "the team is closed"
        if program is not self._program:
            self._take_up(program)
        self._start(self._at, self._run_address)
        if not self._control[Control.STARTED]:
            self._wake_all()
            self._run(self._at, 0)

    def close(self) -> None:
        """Ends the threads. The team cannot run again."""
        if self._closed:
            return
        self._closed = True
        self._control[Control.OP_COUNT] = 0
        self._start(self._at, self._run_address)
        self._wake_all()
        for thread in self._threads:
            thread.join()

    def _take_up(self, program: Program) -> None:
        control = self._control
        control[Control.OPS] = program.ops.ctypes.data
        control[Control.OP_COUNT] = len(program.ops)
        control[Control.STEP] = program.step.ctypes.data
        control[Control.COUNTERS] = -(-program.counters.ctypes.data // LINE) * LINE
        self._program = program

    def _wake_all(self) -> None:
        for event in self._wake:
            event.set()

    def _member(self, index: int) -> None:
        seen = np.zeros(1, np.int64)
        while not self._closed:
            self._serve(self._at, index + 1, seen.ctypes.data, self._run_address, SPIN_LIMIT)
            self._wake[index].wait()
            self._wake[index].clear()
