"""Which instruction table is used and why: hidden and half-shown features, refused permission, failed self-tests."""

from __future__ import annotations

import json
import logging
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold import LLM, SamplingParams
from twofold.backends.cpu import backend, tables
from twofold.backends.cpu.backend import CpuBackend
from twofold.backends.cpu.kernels import jit
from twofold.backends.cpu.kernels.isa import TABLES, TILE_FEATURES, Isa
from twofold.backends.cpu.kernels.jit import host_features, refused_features
from twofold.backends.cpu.tables import SelfTests, choose_table, select_table
from twofold.core.errors import ParameterError
from twofold.host.machine import request_tiles
from twofold.host.paths import CacheFolders

AMX, AVX512_BF16, AVX512 = TABLES[:3]
HAS_AMX = AMX.needs <= host_features()
BEST = next(isa for isa in TABLES if isa.tile is None and isa.needs <= host_features())
"""The best table of this machine but for tiles."""
NEXT = TABLES[TABLES.index(BEST) + 1]
PORTABLE = TABLES[-1]
ENDS = "import os, signal; os.kill(os.getpid(), signal.{})"

Show = Callable[..., None]


def passes(_isa: Isa) -> None:
    """Every table passes."""


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Shows features to the choice, and reasons why some are refused."""

    def shown(features: frozenset[str], refused: Mapping[str, str] | None = None) -> None:
        monkeypatch.setattr(tables, "host_features", lambda: features)
        monkeypatch.setattr(tables, "refused_features", lambda: dict(refused or {}))

    return shown


@pytest.fixture
def folders(tmp_path: Path) -> CacheFolders:
    return CacheFolders(tmp_path / "cache").create()


# -- features and permission ------------------------------------------------------------------------------------------


def test_a_machine_with_all_features_uses_tiles(show: Show) -> None:
    show(AMX.needs)
    choice = choose_table(None, passes)
    assert (choice.isa.name, choice.rejected) == ("amx", ())
    assert choice.reason == f"the fastest of {len(TABLES)} that this machine can run"


def test_hidden_features_are_named_and_are_no_fault(show: Show) -> None:
    show(AVX512.needs)
    choice = choose_table(None, passes)
    assert choice.isa is AVX512
    assert [(r.table, r.reason, r.fault) for r in choice.rejected] == [
        ("amx", "the processor lacks amx-int8, amx-tile, avx512bf16", False),
        ("avx512_bf16", "the processor lacks avx512bf16", False),
    ]
    assert choice.reason.startswith("the fastest of 3 that this machine can run; amx is not used: the processor lacks")


@pytest.mark.parametrize("hidden", sorted(TILE_FEATURES | {"avx512bf16"}))
def test_half_shown_tiles_are_a_fault(show: Show, hidden: str) -> None:
    show(AMX.needs - {hidden})
    choice = choose_table(None, passes)
    assert choice.isa is (AVX512 if hidden == "avx512bf16" else AVX512_BF16)
    assert (choice.rejected[0].reason, choice.rejected[0].fault) == (f"the processor lacks {hidden}", True)


def test_refused_permission_is_a_fault_with_its_reason(show: Show) -> None:
    refused = dict.fromkeys(TILE_FEATURES, "Operation not permitted")
    show(AVX512_BF16.needs, refused)
    choice = choose_table(None, passes)
    assert choice.isa is AVX512_BF16
    assert choice.rejected[0].fault
    assert str(choice.rejected[0]) == (
        "amx is not used: the system refuses amx-int8, amx-tile (Operation not permitted)"
    )
    with pytest.raises(
        ParameterError, match=r"cannot run amx kernels: the system refuses .* \(Operation not permitted\)"
    ):
        choose_table("amx", passes)


def test_a_forced_table_says_so_and_rejects_none(show: Show) -> None:
    show(AMX.needs)
    choice = choose_table("avx512", passes)
    assert (choice.isa, choice.reason, choice.rejected) == (AVX512, "chosen by --isa", ())


def test_a_forced_table_that_is_missing_says_what_is_missing(show: Show) -> None:
    show(AVX512_BF16.needs)
    with pytest.raises(ParameterError, match="cannot run amx kernels: the processor lacks amx-int8, amx-tile"):
        choose_table("amx", passes)


def test_a_forced_table_that_fails_its_test_is_an_error(show: Show) -> None:
    show(AMX.needs)
    with pytest.raises(ParameterError, match="amx kernels cannot be used on this machine: it is wrong"):
        choose_table("amx", lambda _isa: "it is wrong")


def test_permission_is_asked_only_where_tiles_are_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse() -> str:
        asked.append(True)
        return "no"

    monkeypatch.setattr(jit, "request_tiles", refuse)
    for features in (AVX512.needs, AVX512.needs | {"amx-int8"}, AVX512.needs | {"amx-tile"}):
        monkeypatch.setattr(jit, "_processor_features", lambda shown=features: shown)
        assert refused_features() == {}
    assert not asked
    monkeypatch.setattr(jit, "_processor_features", lambda: AMX.needs)
    assert refused_features() == {"amx-int8": "no", "amx-tile": "no"}
    assert host_features() == AMX.needs - TILE_FEATURES
    monkeypatch.setattr(jit, "request_tiles", lambda: None)
    assert host_features() == AMX.needs


def test_the_permission_of_this_machine() -> None:
    """Granted where there are tiles, refused with a reason elsewhere; asking twice changes nothing."""
    first = request_tiles()
    assert request_tiles() == first
    assert (first is None) == HAS_AMX or first is not None


def test_other_systems_have_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert request_tiles() == "Darwin on arm64 has no such permission"


# -- self-tests -------------------------------------------------------------------------------------------------------


def child(folders: CacheFolders, code: str) -> SelfTests:
    """Self-tests whose process runs ``code`` instead."""
    return SelfTests(folders, (sys.executable, "-c", code))


def counting(path: Path, then: str = "") -> str:
    """Code that appends a byte to a file: its size counts the runs."""
    return f"open({str(path)!r}, 'a').write('x'); {then or 'pass'}"


def test_the_best_table_of_this_machine_passes_in_a_process_of_its_own(folders: CacheFolders) -> None:
    assert SelfTests(folders).fault(BEST) is None
    assert json.loads((folders.root / f"selftest-{BEST.name}.json").read_text())["fault"] is None
    assert list(folders.kernels.glob("*.o")), "its kernels are in the cache for the process that uses them"


@pytest.mark.skipif(HAS_AMX, reason="this processor has AMX")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM generates code for x86 on x86 only")
def test_tiles_on_a_processor_without_them_end_that_process_only(folders: CacheFolders) -> None:
    fault = SelfTests(folders).fault(AMX)
    assert fault is not None
    assert fault.startswith("its self-test ended by SIG")


@pytest.mark.parametrize("name", ["SIGILL", "SIGSEGV"])
def test_a_test_that_dies_passes_the_table_over(name: str, folders: CacheFolders, show: Show, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    tests = child(folders, counting(runs, ENDS.format(name)))
    show(AMX.needs)
    for _ in range(2):
        choice = choose_table(None, lambda isa: tests.fault(isa) if isa is AMX else None)
        assert choice.isa is AVX512_BF16
        assert str(choice.rejected[0]) == f"amx is not used: its self-test ended by {name}"
        assert choice.rejected[0].fault
    assert runs.stat().st_size == 1, "the result is remembered"
    assert tests.fault(AMX, again=True) is not None
    assert runs.stat().st_size == 2
    assert child(folders, "pass").fault(AMX, again=True) is None, "a machine that was repaired passes"
    assert tests.fault(AMX) is None


def test_wrong_results_pass_the_table_over(folders: CacheFolders) -> None:
    wrong = child(folders, "print('its kernels give wrong results for 20 rows'); raise SystemExit(3)")
    assert wrong.fault(AMX) == "its kernels give wrong results for 20 rows"


@pytest.mark.parametrize("code", ["raise SystemExit(1)", ENDS.format("SIGKILL"), "import no_such_module"])
def test_a_test_that_ends_for_other_reasons_says_nothing(code: str, folders: CacheFolders) -> None:
    assert child(folders, code).fault(AMX) is None
    assert not list(folders.root.glob("selftest*"))


def test_a_test_that_cannot_start_or_takes_too_long_says_nothing(
    folders: CacheFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SelfTests(folders, ("/no/such/program",)).fault(AMX) is None
    monkeypatch.setattr(tables, "TEST_S", 0.05)
    assert child(folders, "import time; time.sleep(60)").fault(AMX) is None
    assert not list(folders.root.glob("selftest*"))


def test_another_machine_tests_anew(folders: CacheFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder moved, or a virtual machine shows other features now."""
    runs = tmp_path / "runs"
    tests = child(folders, counting(runs))
    assert tests.fault(BEST) is tests.fault(BEST) is None
    assert runs.stat().st_size == 1
    monkeypatch.setattr(tables, "machine_key", lambda _target: "another machine")
    assert tests.fault(BEST) is None
    assert runs.stat().st_size == 2


def test_the_key_of_a_machine_holds_its_features_and_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [jit.CodegenTarget(BEST, "znver4", "+avx2"), jit.CodegenTarget(BEST, "znver4", "+avx2,+avx512f")]
    targets += [jit.CodegenTarget(BEST, "znver5", "+avx2"), jit.CodegenTarget(NEXT, "znver4", "+avx2")]
    keys = [jit.machine_key(target) for target in targets]
    monkeypatch.setattr(jit, "_fingerprint", lambda: "other generators")
    assert len({*keys, jit.machine_key(targets[0])}) == len(targets) + 1


@pytest.mark.parametrize("content", ["", "[]", '{"machine": 1}', "\x00"])
def test_a_damaged_memory_is_tested_anew(content: str, folders: CacheFolders) -> None:
    (folders.root / f"selftest-{BEST.name}.json").write_text(content)
    assert child(folders, "pass").fault(BEST) is None


def test_wrong_bits_in_this_process_pass_the_table_over(folders: CacheFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was moved, or a fault that the first test did not see."""
    monkeypatch.setattr(tables, "self_test", lambda c: "it is wrong" if c.target.isa.name == BEST.name else None)
    monkeypatch.setattr(tables, "host_features", lambda: BEST.needs)
    choice, compiler = select_table(None, folders)
    assert choice.isa is NEXT
    assert compiler.target.isa.name == NEXT.name
    assert str(choice.rejected[-1]) == f"{BEST.name} is not used: it is wrong"
    assert SelfTests(folders).fault(BEST) == "it is wrong", "other processes know it, too"


def test_when_every_table_fails_the_portable_one_is_used(
    folders: CacheFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "self_test", lambda _compiler: "it is wrong")
    monkeypatch.setattr(SelfTests, "_run", lambda _self, _isa: (0, ""))
    choice, _ = select_table(None, folders)
    assert choice.isa is PORTABLE
    assert choice.reason.startswith("the only one that this machine can run; amx is not used: ")


@pytest.mark.skipif(HAS_AMX, reason="this processor has AMX")
def test_a_model_runs_and_one_line_says_that_tiles_are_half_shown(
    tiny_gguf: Callable[[TinyOptions], TinyModel],
    show: Show,
    caplog: pytest.LogCaptureFixture,
) -> None:
    show(host_features() | {"amx-int8"})
    with caplog.at_level(logging.WARNING), LLM(tiny_gguf(TinyOptions()).path) as llm:
        assert llm.generate("a", SamplingParams(max_tokens=2))
    lines = [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]
    missing = ", ".join(sorted(AMX.needs - host_features() - {"amx-int8"}))
    assert lines == [f"amx is not used: the processor lacks {missing}. Kernels use {BEST.name}."]


def test_a_later_load_tests_in_this_process_only(folders: CacheFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    select_table(None, folders)

    def no_process(*_args: object) -> tuple[int, str]:
        raise AssertionError("a process was started")

    monkeypatch.setattr(SelfTests, "_run", no_process)
    _, compiler = select_table(None, folders)
    assert compiler.compiled == 0, "its kernels come from the cache"
    assert compiler.loaded >= 2


def test_an_unknown_table_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ParameterError, match="no instruction set named 'amd'"):
        CpuBackend("amd")


def test_replicas_share_the_cores_unless_their_threads_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "read_cpu", lambda: SimpleNamespace(usable_cores=8))
    assert [CpuBackend().share(replicas) for replicas in (1, 2, 3, 9)] == [{}, *({"threads": n} for n in (4, 2, 1))]
    assert CpuBackend(threads=5).share(3) == {}
