"""The instruction table that kernels are made for on this machine, and why it is not a faster one.

    features     LLVM says what the processor and the system show; a table needs all of its features
    permission   the system must let the process use tile registers
    self-test    a table's kernels must compute a known layer to the bit: first in a process of its own, whose end by an
                 unknown instruction is noticed, then at every load in the process that uses them, in two milliseconds

A table that fails is passed over for the next one. The cache folder remembers the first test of each table, with the
processor, its features and the kernels' source: a folder that is used on another machine is tested anew.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twofold.backends.cpu.kernels.isa import TABLES, TILE_FEATURES, Isa, choose, obstacle
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features, machine_key, refused_features
from twofold.backends.cpu.kernels.selftest import WRONG, self_test
from twofold.core.errors import ParameterError
from twofold.host.paths import CacheFolders, write_whole

TEST_S: Final = 60.0
"""A self-test compiles its kernels, in a second on an idle machine."""
FAULTS: Final = frozenset({signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})
"""Signals by which wrong machine code ends a process. Another end says nothing about a table."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A table that is faster than the one in use. ``fault``: the machine shows its features, at least some of them."""

    table: str
    reason: str
    fault: bool

    def __str__(self) -> str:
        return f"{self.table} is not used: {self.reason}"


@dataclass(frozen=True, slots=True)
class TableChoice:
    """The table in use, whether it was asked for, how many this machine can run, and the faster ones that it cannot."""

    isa: Isa
    forced: bool
    runnable: int
    rejected: tuple[Rejection, ...]

    @property
    def reason(self) -> str:
        """Why this table is used, as part of a sentence."""
        if self.forced:
            return "chosen by --isa"
        best = "the only one" if self.runnable == 1 else f"the fastest of {self.runnable}"
        return "; ".join([f"{best} that this machine can run", *map(str, self.rejected)])


@dataclass(frozen=True, slots=True)
class SelfTests:
    """The first self-test of each table on this machine, remembered in the cache folder.

    ``command`` starts the test of the table and the kernel folder that follow it. If no process can be started, or it
    ends for other reasons than the table, only the test in this process remains.
    """

    folders: CacheFolders
    command: Sequence[str] = (sys.executable, "-P", "-m", "twofold.backends.cpu.kernels.selftest")

    def fault(self, isa: Isa, *, again: bool = False) -> str | None:
        """What is wrong with a table, or None. ``again`` repeats a test that failed."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            known = json.loads(self._path(isa).read_text("utf-8"))
            if known["machine"] == machine_key(CodegenTarget.of(isa)) and not (again and known["fault"]):
                return known["fault"] and str(known["fault"])
        status, output = self._run(isa)
        if status == WRONG or -status in FAULTS:
            fault = (
                output.splitlines()[-1] if status == WRONG else f"its self-test ended by {signal.Signals(-status).name}"
            )
            self.record(isa, fault)
            return fault
        if status == 0:
            self.record(isa, None)
        return None

    def record(self, isa: Isa, fault: str | None) -> None:
        """Remembers the result of a test. Without a writable folder nothing is kept."""
        found = {"machine": machine_key(CodegenTarget.of(isa)), "fault": fault}
        with contextlib.suppress(OSError):
            write_whole(self._path(isa), json.dumps(found).encode())

    def _path(self, isa: Isa) -> Path:
        return self.folders.root / f"selftest-{isa.name}.json"

    def _run(self, isa: Isa) -> tuple[int, str]:
        """The status and output of the test's process; any other status if it could not be started or took too long."""
        command = [*self.command, isa.name, str(self.folders.kernels)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TEST_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return 1, ""
        return done.returncode, done.stdout


def choose_table(forced: str | None, fault_of: Callable[[Isa], str | None]) -> TableChoice:
    """The fastest table that this machine can run and that passes its self-test, or the one named ``forced``.

    ``fault_of`` says what is wrong with a table; the last, portable one is not tested. Raises ParameterError if the
    table ``forced`` is unknown, or cannot be used.
    """
    features, refused = host_features(), refused_features()
    if forced is not None:
        isa = choose(features, forced, refused)
        if isa is not TABLES[-1] and (fault := fault_of(isa)) is not None:
            raise ParameterError(
                f"The {forced} kernels cannot be used on this machine: {fault}.",
                param="isa",
                hint="Omit isa to use the best available. `twofold doctor` tests again.",
            )
        return TableChoice(isa, True, 1, ())
    rejected: list[Rejection] = []
    for index, isa in enumerate(TABLES):
        reason = obstacle(isa, features, refused)
        if reason is not None:
            shown = bool(isa.needs & TILE_FEATURES & (features | refused.keys()))
            rejected.append(Rejection(isa.name, reason, fault=shown))
        elif isa is not TABLES[-1] and (wrong := fault_of(isa)) is not None:
            rejected.append(Rejection(isa.name, wrong, fault=True))
        else:
            runnable = sum(obstacle(each, features, refused) is None for each in TABLES[index:])
            return TableChoice(isa, False, runnable, tuple(rejected))
    raise AssertionError("the portable table needs no feature")


def select_table(forced: str | None, folders: CacheFolders) -> tuple[TableChoice, Compiler]:
    """The choice and its compiler, whose kernels have just passed the self-test in this process."""
    tests, failed = SelfTests(folders), dict[str, str]()
    while True:
        choice = choose_table(forced, lambda isa: failed.get(isa.name) or tests.fault(isa))
        compiler = Compiler(CodegenTarget.of(choice.isa), folders.kernels)
        fault = None if choice.isa is TABLES[-1] else self_test(compiler)
        if fault is None:
            return choice, compiler
        failed[choice.isa.name] = fault
        tests.record(choice.isa, fault)
