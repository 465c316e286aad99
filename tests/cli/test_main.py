"""Commands, help texts, and errors."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import ROOT, Command
from twofold.backends.cpu import tables
from twofold.backends.cpu.kernels.isa import TABLES
from twofold.backends.cpu.kernels.jit import host_features
from twofold.cli import main as entry
from twofold.cli.foreign_flags import FOREIGN_FLAGS, RUNNING
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
    ("words", "said", "hint"),
    [
        ("serve --tensor-parallel-size 2", "--tensor-parallel-size", "no GPU support"),
        ("serve --tensor-parallel-size=2", "--tensor-parallel-size", "serve --replicas N"),
        ("run --device cuda x", "--device", "no GPU support"),
        ("run --n-gpu-layers 99 x", "--n-gpu-layers", "no GPU support"),
        ("chat -ngl 99", "-ngl", "no GPU support"),
        ("run -fa x", "-fa", "Leave it out"),
        ("serve --gpu-memory-utilization 0.9", "--gpu-memory-utilization", "--kv-cache-memory-bytes"),
        ("serve --quantization awq", "--quantization", "hf.co/USER/MODEL:Q4_K_M"),
        ("serve --tool-call-parser hermes", "--tool-call-parser", "chat template"),
        ("run --num-ctx 4096 x", "--num-ctx", "--max-model-len"),
        ("run --temprature 0 x", "--temprature", "Did you mean --temperature?"),
        ("serve --max_num_seq 3", "--max", "Did you mean --max-num-seqs?"),
        ("run --frobnicate x", "--frobnicate", "See: twofold run --help"),
        ("run --choise yes x", "--choise", "Did you mean --choice?"),
    ],
)
def test_options_that_are_not_there(words: str, said: str, hint: str, twofold: Command) -> None:
    """Those of other engines say what to do; only close names are suggested."""
    result = twofold(*words.split())
    assert result.code == 2
    error, told = result.err.splitlines()
    assert error.startswith(f"error: There is no option {said}")
    assert hint in told
    assert "Did you mean" not in error


def test_flags_of_other_engines_are_not_ours_and_their_hints_name_ours() -> None:
    ours: set[str] = set()
    for name in RUNNING:
        commands = [name] if name != "bench" else [f"bench {each}" for each in entry.BENCHES]
        for command in commands:
            collection = entry.app()[command.split()[0]] if " " not in command else entry.app()["bench"][command[6:]]
            ours |= {each for argument in collection.assemble_argument_collection() for each in argument.names}
    assert "--kv-cache-dtype" in ours
    assert not ours & set(FOREIGN_FLAGS)
    for hint in FOREIGN_FLAGS.values():
        assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", hint)) <= ours


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Lower max_model_len, or raise kv_cache_memory_bytes.",
            "Lower --max-model-len, or raise --kv-cache-memory-bytes.",
        ),
        ("swap_space_bytes must be 1", "--swap-space must be 1"),
        ("/data/max_model_len/x, max_model_len.json and 'max_tokens'", None),
        ('Like {"max_tokens": 3} or max_tokens=3, some_words', None),
    ],
)
def test_errors_of_commands_name_flags(
    text: str, told: str | None, twofold: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_arguments: object) -> int:
        raise TwofoldError(text, hint=text)

    monkeypatch.setattr(entry, "_run", fail)
    assert twofold("ls").err == f"error: {told or text}\nhint:  {told or text}\n"


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pull"], "twofold pull needs MODEL."),
        (["kv", "ls"], "twofold kv ls needs STORE."),
        (["run", "-m"], "-m needs a value."),
        (["ls", "nope"], "There is no use for 'nope' here."),
        (["run", "-n", "abc", "hi"], "-n must be a whole number, not 'abc'."),
        (["bench", "serve", "--rate", "two"], "--rate must be a number, not 'two'."),
        (["run", "--temperature", "-1", "hi"], "--temperature must be a number of at least 0, not -1.0."),
        (["run", "--json-schema", "gone.json", "hi"], "--json-schema: gone.json cannot be read"),
        (["explain", "--model", "llama-3-8b", "--hardware", "h100", "--tp", "0"], "--tp must be at least 1, not 0."),
        (["explain", "--model", "llama-3-8b", "--hardware", "h100", "--kv", "q9"], "k8v4"),
        (["explain", "127.0.0.1:1"], "refused the connection"),
    ],
)
def test_mistakes_get_a_plain_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(words) in {2, 5}
    assert said in capsys.readouterr().err


def test_defaults_are_told_in_one_form() -> None:
    """Cyclopts writes [default: …]; our own texts "(default: …)"."""
    texts = [path.read_text("utf-8") for path in (ROOT / "twofold" / "cli").rglob("*.py")]
    assert [line for text in texts for line in text.splitlines() if "Default: " in line] == []
