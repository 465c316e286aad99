"""How a worker of the pool waits for a number in memory to change: it spins, offers its core, and at last sleeps.

Spinning costs nothing where the others are on their way. Where they are not, somebody has their core: another member,
then it helps to offer ours at once, or a foreign process, then it helps to leave ours empty, so that the operating
system moves them there. A member that only offers its core, again and again (sched_yield), falls behind in the
scheduler's books and gets none itself when it has work: with two foreign processes on two cores a step then took forty
times as long. So offers become rarer and end in sleep.

A gate is two 8-byte fields: a number, and how many sleep until its low half changes. Who changes the number looks for
sleepers without waiting until the others see it, which would cost each barrier a tenth of a microsecond; so a member
that falls asleep in that very moment may be overlooked. It wakes all the same: no sleep is longer than a millisecond.
Linux's futex does it; elsewhere the processor is offered to others.

Ulrich Drepper, "Futexes Are Tricky" (2011).
"""

from __future__ import annotations

import platform
from typing import Final

from twofold.backends.cpu.kernels.ir import Kernel, Value
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.types import I1, I32, I64, PTR

FIRST_OFFER: Final = 256
"""Pauses before a member offers its core for the first time, a power of two; it does so again after twice as many."""
SPINS: Final = 8_000
"""Pauses before a member sleeps: a third of a millisecond. Members that are on their way are seldom later."""
FUTEX: Final = {"x86_64": 202, "aarch64": 98}
"""The number of Linux's system call."""
WAIT: Final = 128
WAKE: Final = 129
"""FUTEX_WAIT and FUTEX_WAKE, for the threads of one process."""
LONGEST_NS: Final = 1_000_000
EVERYBODY: Final = 2**31 - 1


def open_gate(k: Kernel, gate: Value, number: Value) -> None:
    """Changes the gate's number and wakes who sleeps. What was written before is visible to those who see it."""
    k.store_release(number, gate)
    with k.when(k.load_acquire(_sleepers(gate)) > 0):
        _system_call(k, gate, WAKE, k.lift(EVERYBODY, I64), Value(k, PTR, "null"))


def wait_at_gate(k: Kernel, isa: Isa, gate: Value, number: Value) -> None:
    """Waits until the gate's number is no longer ``number``."""
    waiting, spins = k.var(I1, k.load_acquire(gate).equals(number)), k.var(I64, 0)
    longest = k.buffer(16)
    with k.loop_while(waiting):
        isa.pause(k)
        spins.set(spins.get() + 1)
        with k.when((spins.get() >= FIRST_OFFER) & (spins.get() & (spins.get() - 1)).equals(0)):
            k.call(I32, "sched_yield")
        with k.when(spins.get() > SPINS):
            for index, part in enumerate((0, LONGEST_NS)):  # seconds and nanoseconds
                k.store(k.lift(part, I64), longest + 8 * index)
            k.fetch_add(_sleepers(gate), 1)
            _system_call(k, gate, WAIT, number, longest)
            k.fetch_add(_sleepers(gate), -1)
        waiting.set(k.load_acquire(gate).equals(number))


def _sleepers(gate: Value) -> Value:
    return gate + 8


def _system_call(k: Kernel, gate: Value, operation: int, number: Value, timeout: Value) -> None:
    call = FUTEX.get(platform.machine()) if platform.system() == "Linux" else None
    if call is None:
        k.call(I32, "sched_yield")
        return
    zero = k.lift(0, I64)
    k.call(I64, "syscall", k.lift(call, I64), gate, k.lift(operation, I64), number, timeout, zero, zero)
