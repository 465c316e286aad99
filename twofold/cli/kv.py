"""``twofold kv ls | verify | rm``: the KV stores that ``--kv-store`` fills."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from twofold.cli.console import print_json, print_lines, print_table
from twofold.cli.options import Json
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.units import format_bytes
from twofold.engine.config import EngineOptions
from twofold.engine.kv.segments import SEGMENT_TOKENS
from twofold.engine.kv_folder import StoreFolder, damaged, find_folders, remove, segment_files

app = App(name="kv", help="List, verify and remove KV stores on disk (--kv-store).")
Store: TypeAlias = Annotated[Path, Parameter(help="The folder that --kv-store names.")]
Model: TypeAlias = Annotated[str | None, Parameter(help="Only folders of this model, by its name or its folder.")]


@dataclass(frozen=True, slots=True)
class FolderReport:
    """The segments of a model in a store. ``used``: the last use or the end of the last pin, seconds since 1970; None
    if it is empty. ``process`` serves the model from there; "" if none does."""

    model: str
    folder: str
    segments: int
    tokens: int
    bytes: int
    used: float | None
    process: str


@app.command
def ls(store: Store, /, *, json: Json = False) -> None:
    """List the models of a KV store and their sizes."""
    reports = [_report(folder) for folder in find_folders(store)]
    if json:
        print_json([asdict(report) for report in reports])
        return
    rows = [("model", "segments", "tokens", "size", "used", "process", "folder")]
    now = datetime.now(UTC)
    for each in reports:
        at = None if each.used is None else datetime.fromtimestamp(each.used, UTC)
        used = "" if at is None else f"{'pinned until ' if at > now else ''}{at:%Y-%m-%d %H:%M} UTC"
        size = format_bytes(each.bytes)
        rows.append((each.model, f"{each.segments:,}", f"{each.tokens:,}", size, used, each.process, each.folder))
    print_table(rows)


@app.command
def verify(store: Store, /, *, model: Model = None, json: Json = False) -> int:
    """Read and check every segment. Damaged ones, and those of another version of the store, are listed: they are never
    used, and removed when the model is served the next time. Exits with 1 if there are any."""
    folders = _folders(store, model)
    universal_hash = EngineOptions().open_backend().universal_hash()
    bad = [str(path) for folder in folders for path in damaged(replace(folder, universal_hash=universal_hash))]
    total = sum(_report(folder).segments for folder in folders)
    if json:
        print_json({"segments": total, "damaged": bad})
    else:
        print_lines([*(f"damaged: {path}" for path in bad), f"segments: {total:,}, damaged: {len(bad):,}"])
    return int(bool(bad))


@app.command
def rm(store: Store, /, *, model: Model = None) -> None:
    """Remove a KV store, or what it has of one model. Files that are not the store's stay."""
    folders = _folders(store, model)
    size = sum(_report(folder).bytes for folder in folders)
    try:
        remove(store, folders, whole=model is None)
    except OSError as error:
        what = f"{error.filename} cannot be removed: {error.strerror}."
        raise ResourceError(what, hint="Run it again once the disk can be written.") from error
    print_lines([f"removed {format_bytes(size)} from {store}"])


def _folders(store: Path, model: str | None) -> list[StoreFolder]:
    folders = find_folders(store)
    chosen = [folder for folder in folders if model in (None, folder.model, folder.path.name)]
    if model is not None and not chosen:
        known = ", ".join(sorted({folder.model for folder in folders}))
        raise ParameterError(f"{store} has nothing of {model}.", param="model", hint=f"It has: {known or 'no model'}.")
    return chosen


def _report(folder: StoreFolder) -> FolderReport:
    files = list(segment_files(folder.path))
    return FolderReport(
        folder.model,
        folder.path.name,
        len(files),
        len(files) * SEGMENT_TOKENS,
        sum(size for _, size, _ in files),
        max((modified / 1e9 for _, _, modified in files), default=None),
        folder.server,
    )
