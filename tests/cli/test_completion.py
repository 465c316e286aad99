"""Shell completion in the installed shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from twofold.cli import main as entry

ASK = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
complete -p twofold >/dev/null || exit 9
_twofold twofold "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "twofold.bash"
    path.write_text(entry.app().generate_completion(shell="bash"))
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("twofold", "se"), ("serve",)),
        (("twofold", ""), tuple(entry.COMMANDS)),
        (("twofold", "bench", "co"), ("compare",)),
        (("twofold", "run", "--temp"), ("--temp", "--temperature")),
        (("twofold", "serve", "--idle"), ("--idle-unload",)),
        (("twofold", "completion", "f"), ("fish",)),
    ],
    ids=" ".join,
)
def test_bash_completes(script: Path, words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    command = ["bash", "--norc", "-c", ASK, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(expected) <= {word.strip() for word in done.stdout.split()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str, twofold: Command) -> None:
    result = twofold("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert "serve" in result.out
    assert "--idle-unload" in result.out or "idle-unload" in result.out
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=result.out, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_another_shell_is_refused(twofold: Command) -> None:
    assert twofold("completion", "tcsh").code == 2
