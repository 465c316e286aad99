"""Downloaded models: ``SLUG.gguf`` with its manifest ``SLUG.json``, partial downloads, and their progress.

A model file is renamed into place after its bytes were checked and written to the disk; then its manifest is written.
So a file without a manifest is not a model, and an interruption leaves at most parts in ``.downloads/SLUG``, from which
the next download resumes. One process at a time fetches a model: it locks ``.downloads/SLUG.lock``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from twofold.core.errors import ModelNotFoundError, ResourceError, TwofoldError, closest_match
from twofold.formats.gguf import part_paths


class Progress(Protocol):
    """Receives the progress of tasks, one after another: ``start``, any number of ``advance``, ``done``."""

    def start(self, total_bytes: int | None, what: str, *, follows: bool = False) -> None:
        """A task, ``what``, begins. ``total_bytes`` is None if its size is unknown. ``follows``: it continues the task
        before, as unpacking continues a download."""
        ...

    def advance(self, count: int) -> None:
        """``count`` more bytes are done."""
        ...

    def done(self) -> None:
        """The task has ended or failed."""
        ...


class _Silent:
    def start(self, *_: object, **__: object) -> None:
        return

    def advance(self, *_: object, **__: object) -> None:
        return

    def done(self) -> None:
        return


SILENT: Final[Progress] = _Silent()
FREE_SPACE: Final = "Free some disk space, or set TWOFOLD_CACHE to a folder on another disk."
_FIELDS: Final = {"name": str, "source": str, "path": str, "size": int, "sha256": str, "licence": str, "fetched": str}


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model of the cache. ``licence`` is empty if unknown; ``fetched`` is a UTC time in ISO 8601."""

    name: str
    source: str
    path: Path
    size: int
    sha256: str
    licence: str
    fetched: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True, slots=True)
class ModelStore:
    """The models of one folder."""

    folder: Path

    def file(self, slug: str) -> Path:
        return self.folder / f"{slug}.gguf"

    def downloads(self, slug: str) -> Path:
        return self.folder / ".downloads" / slug

    def find(self, slug: str) -> InstalledModel | None:
        """The model if it is complete: its file, or all its parts, have the size in the manifest."""
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
        """Writes the chunks to the model's file. Returns their SHA-256.

        The file appears only after all is on the disk and ``check(draft, sha256)`` has raised no error.
        """
        target = self.file(slug)
        draft = target.with_name(f".{target.name}.partial")
        digest = hashlib.sha256()
        with reported(target), contextlib.ExitStack() as cleanup:
            cleanup.callback(draft.unlink, missing_ok=True)
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
        """Deletes a model, its manifest and its partial download. Raises ModelNotFoundError for an unknown model."""
        by_slug = {path.stem: model for path in self.folder.glob("*.json") if (model := _read_manifest(path))}
        found = slug if slug in by_slug else next((s for s, m in by_slug.items() if name in (s, m.name)), None)
        if found is None:
            close = closest_match(name, [model.name for model in by_slug.values()])
            hint = f"Did you mean {close}?" if close else "`twofold ls` lists the models that are here."
            raise ModelNotFoundError(f"The model {name!r} is not in the cache.", hint=hint)
        model = by_slug[found]
        with reported(model.path):
            shutil.rmtree(self.downloads(found), ignore_errors=True)
            for part in part_paths(model.path):
                if part.is_symlink():  # into the hub's cache
                    part.resolve().unlink(missing_ok=True)
                part.unlink(missing_ok=True)
            self._manifest(found).unlink()
        return model

    @contextlib.contextmanager
    def locked(self, slug: str) -> Iterator[None]:
        """Waits until no other process fetches this model."""
        path = self.folder / ".downloads" / f"{slug}.lock"
        with reported(path):
            make_folder(path.parent)
            lock = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _manifest(self, slug: str) -> Path:
        return self.folder / f"{slug}.json"


def slug_of(name: str) -> str:
    """A file name for a model name: its letters, digits, dots and dashes, and a digest if it has other characters."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:80]
    return plain if plain and plain == name else f"{plain or 'model'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def make_folder(folder: Path) -> None:
    """Makes a folder and the missing ones above it, readable by their owner only."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def check_space(folder: Path, needed: int) -> None:
    """Raises ResourceError unless the disk of ``folder`` has ``needed`` bytes free."""
    with reported(folder):
        make_folder(folder)
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"{folder} has {free / 1e9:.2f} GB free, but {needed / 1e9:.2f} GB are needed.",
            hint=FREE_SPACE,
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
            raise ResourceError(f"The disk is full: {path} cannot be written.", hint=FREE_SPACE) from error
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
