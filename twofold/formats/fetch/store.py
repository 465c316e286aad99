"""Downloaded models: ``SLUG.gguf`` with ``SLUG.json`` beside it, and partial downloads.

A model appears by one rename, after its bytes reached the disk and were checked; its manifest follows. So a file
without a manifest is not a model, and an interruption leaves at most parts in ``.downloads/SLUG`` to resume from.
One process at a time fetches a model: it holds ``.downloads/SLUG.lock``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from twofold.core.errors import ModelNotFoundError, ResourceError, TwofoldError, closest_match
from twofold.formats.fetch.progress import Progress
from twofold.formats.gguf import part_paths

_FIELDS: Final = {"name": str, "source": str, "path": str, "size": int, "sha256": str, "licence": str, "fetched": str}


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model of the cache. ``fetched`` is a UTC time in ISO 8601; ``licence`` is empty where nothing says."""

    name: str
    source: str
    path: Path
    size: int
    sha256: str
    licence: str
    fetched: str


@dataclass(frozen=True, slots=True)
class ModelStore:
    """The models of one folder."""

    folder: Path

    def file(self, slug: str) -> Path:
        return self.folder / f"{slug}.gguf"

    def downloads(self, slug: str) -> Path:
        return self.folder / ".downloads" / slug

    def find(self, slug: str) -> InstalledModel | None:
        """The model when it is complete: its file (all its parts) has the size that the manifest says."""
        model = _read_manifest(self._manifest(slug))
        try:
            complete = model is not None and sum(p.stat().st_size for p in part_paths(model.path)) == model.size
        except OSError:
            return None
        return model if complete else None

    def installed(self) -> list[InstalledModel]:
        """All complete models, by name."""
        found = (self.find(path.stem) for path in self.folder.glob("*.json"))
        return sorted((model for model in found if model is not None), key=lambda model: model.name)

    def record(self, slug: str, model: InstalledModel) -> InstalledModel:
        """Writes the manifest, whole or not at all."""
        target = self._manifest(slug)
        draft = target.with_name(f".{target.name}.partial")
        with reported(target):
            make_folder(self.folder)
            draft.write_text(json.dumps({**asdict(model), "path": str(model.path)}, indent=1) + "\n", "utf-8")
            os.replace(draft, target)
        return model

    def place(self, slug: str, chunks: Iterable[bytes], check: Callable[[Path, str], None], progress: Progress) -> str:
        """Writes the chunks to the model's file, and gives their SHA-256.

        The file appears only when all is on disk and ``check(draft, sha256)`` has raised no error.
        """
        target = self.file(slug)
        draft = target.with_name(f".{target.name}.partial")
        digest = hashlib.sha256()
        with reported(target), _removed_after(draft):
            make_folder(self.folder)
            with draft.open("wb") as out:
                for chunk in chunks:
                    out.write(chunk)
                    digest.update(chunk)
                    progress.advance(len(chunk))
                out.flush()
                os.fsync(out.fileno())
            check(draft, digest.hexdigest())
            os.replace(draft, target)
        return digest.hexdigest()

    def remove(self, name: str, slug: str | None) -> InstalledModel:
        """Deletes a model, its manifest and its partial download. ModelNotFoundError if it is not in the cache."""
        by_slug = {path.stem: model for path in self.folder.glob("*.json") if (model := _read_manifest(path))}
        found = slug if slug in by_slug else next((s for s, m in by_slug.items() if name in (s, m.name)), None)
        if found is None:
            close = closest_match(name, [model.name for model in by_slug.values()])
            hint = f"Did you mean {close}?" if close else "`twofold ls` lists the models that are here."
            raise ModelNotFoundError(f"The model {name!r} is not in the cache.", hint=hint)
        model = by_slug[found]
        with reported(model.path):
            shutil.rmtree(self.downloads(found), ignore_errors=True)
            for path in _files_of(model.path):
                path.unlink(missing_ok=True)
            self._manifest(found).unlink()
        return model

    @contextlib.contextmanager
    def locked(self, slug: str) -> Iterator[None]:
        """Waits until no other process fetches this model."""
        path = self.folder / ".downloads" / f"{slug}.lock"
        with reported(path):
            make_folder(path.parent)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(handle)
            yield
        finally:
            os.close(handle)

    def _manifest(self, slug: str) -> Path:
        return self.folder / f"{slug}.json"


def slug_of(name: str) -> str:
    """A file name for a model name: letters, digits, dot and dash stay, and a digest keeps two names apart."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:80]
    return plain if plain and plain == name else f"{plain or 'model'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, that only their owner may read."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def check_space(folder: Path, needed: int) -> None:
    """ResourceError unless the disk of ``folder`` has ``needed`` bytes free."""
    with reported(folder):
        make_folder(folder)
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"{folder} has {free / 1e9:.2f} GB free, and {needed / 1e9:.2f} GB are needed.",
            hint="Free some disk space, or set TWOFOLD_CACHE to a folder on another disk.",
        )


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turns an OSError into a ResourceError that names the path."""
    try:
        yield
    except TwofoldError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "Free some disk space, or set TWOFOLD_CACHE to a folder on another disk."
            raise ResourceError(f"The disk is full: {path} cannot be written.", hint=hint) from error
        hint = "Check its permissions, or set TWOFOLD_CACHE to another folder."
        raise ResourceError(f"{path} cannot be used: {error.strerror or error}.", hint=hint) from error


def _read_manifest(path: Path) -> InstalledModel | None:
    try:
        fields = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(fields, dict) or any(not isinstance(fields.get(key), kind) for key, kind in _FIELDS.items()):
        return None
    return InstalledModel(**{key: fields[key] for key in _FIELDS if key != "path"}, path=Path(fields["path"]))


def _files_of(path: Path) -> list[Path]:
    """The file, or all its parts, and what they point to where they are links in the hub's cache."""
    return [file for part in part_paths(path) for file in ([part.resolve(), part] if part.is_symlink() else [part])]


@contextlib.contextmanager
def _removed_after(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _lock(handle: int) -> None:
    """Waits for the lock of an open file; closing the file gives it back."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - exists only there

        msvcrt.locking(handle, msvcrt.LK_LOCK, 1)
    else:
        import fcntl  # noqa: PLC0415 - does not exist on Windows

        fcntl.flock(handle, fcntl.LOCK_EX)
