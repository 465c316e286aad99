"""Commands, help texts, and errors."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import Command
from twofold.backends.cpu import tables
from twofold.backends.cpu.kernels.isa import TABLES
from twofold.backends.cpu.kernels.jit import host_features
from twofold.cli import main as entry
from twofold.core.errors import NetworkError, TwofoldError


def test_help_names_every_command(twofold: Command) -> None:
    result = twofold("--help")
    assert result.code == 0
    assert all(f" {name} " in result.out for name in entry.COMMANDS)


@pytest.mark.parametrize("name", entry.COMMANDS)
def test_every_command_has_help(name: str, twofold: Command) -> None:
    result = twofold(name, "--help")
    assert (result.code, result.err) == (0, "")
    assert "Usage: twofold" in result.out


def test_version(twofold: Command) -> None:
    assert re.fullmatch(r"(\d+\.\d+\.\d+|not installed)\n?", twofold("--version").out)


def test_a_misspelt_command(twofold: Command) -> None:
    result = twofold("rn", "x")
    assert result.code == 2
    assert '"run"' in result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NetworkError("No way.", hint="Plug it in."), 5),
        (TwofoldError("Odd."), 1),
        (ValueError("a bug"), 1),
        (MemoryError(), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException, code: int, twofold: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_arguments: object) -> int:
        raise error

    monkeypatch.setattr(entry, "_run", fail)
    result = twofold("ls")
    assert (result.code, result.out) == (code, "")
    assert "Traceback" not in result.err
    if isinstance(error, NetworkError):
        assert result.err == "error: No way.\nhint:  Plug it in.\n"


def test_doctor_measures_and_counts(twofold: Command) -> None:
    found = json.loads(twofold("doctor", "--json", "--threads", 1).out)
    assert found["threads"] == found["limits"]["threads"] == 1
    assert found["limits"]["int8_macs_per_s"] > 0
    assert found["folders"].keys() == {"models", "kernels", "tokenizers"}
    assert found["versions"]["numpy"]
    assert found["isa_reason"].startswith("the fastest of ")
    faster = [each["table"] for each in found["rejected"]]
    assert [*faster, found["isa"]] == [isa.name for isa in TABLES[: len(faster) + 1]]
    assert any("No model" in problem["message"] for problem in found["problems"])


def test_doctor_in_words(twofold: Command) -> None:
    result = twofold("doctor", "-t", 1)
    assert result.code == 0
    assert "GB/s over" in result.out
    assert re.search(r"kernels for +\w+: the fastest of \d that this machine can run", result.out)
    assert "avx2: chosen by --isa" in twofold("doctor", "-t", 1, "--isa", "avx2").out
    assert "twofold pull smollm2-135m" in result.out


@pytest.mark.skipif(TABLES[0].needs <= host_features(), reason="this processor has AMX")
def test_doctor_reports_tiles_that_are_shown_in_part(twofold: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = host_features() | {"amx-int8"}
    monkeypatch.setattr(tables, "host_features", lambda: shown)
    result = twofold("doctor", "-t", 1)
    missing = ", ".join(sorted(TABLES[0].needs - shown))
    assert f"\namx is not used: the processor lacks {missing}. → Results are the same with " in result.out


def test_kernels_counts_instructions(twofold: Command) -> None:
    result = twofold("kernels", "argmax", "--isa", "portable", "--ir")
    assert result.code == 0
    assert "define void @" in result.out
    assert "instructions," in result.out


def test_a_kernel_without_its_format_lists_the_formats(twofold: Command) -> None:
    result = twofold("kernels", "linear")
    assert result.code == 2
    assert "The kernel linear needs a tensor format." in result.err
    assert "Q4_K" in result.err


def test_an_unknown_kernel(twofold: Command) -> None:
    result = twofold("kernels", "linea")
    assert result.code == 2
    assert "linear" in result.err
