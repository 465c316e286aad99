"""The document of a benchmark, as JSON and CSV: settings, requests and figures.

- Times are seconds of a run's clock, rounded to microseconds; gaps between chunks are whole microseconds.
- A measure is null if it is infinite, because its request failed, or if it does not exist, such as TPOT of one token.
  ``outcome`` distinguishes both cases, and ``Run.figures`` applies it.
- It contains no prompts, completions or keys.
- Fields may be added to schema 1 only with a default; readers reject unknown fields.

The JSON Schema, the reader and the writer are derived from the classes below. To write the schema's file:
``python -m twofold.bench.report.document docs/bench.schema.json``.
"""

from __future__ import annotations

import csv
import io
import math
import platform
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec
import numpy as np
import orjson
from msgspec import Meta

from twofold.bench.load.base import FAILURES, Outcome
from twofold.bench.metrics.requests import MeasurementRule, RequestFigures, request_figures
from twofold.bench.record import UNKNOWN, Client, Count, RecordedResponse, RequestSample, RunRecord
from twofold.core.errors import ParameterError
from twofold.host.machine import read_cpu, read_memory

if TYPE_CHECKING:
    Integers: TypeAlias = array[int]
else:
    Integers = array  # not generic at run time in Python 3.11

SCHEMA: Final = "twofold.bench/1"
SCHEMA_URL: Final = "https://json-schema.org/draft/2020-12/schema"
_MAX_QUOTED: Final = 300
_MAX_TEXT: Final = 500
_DIGITS: Final = 6
_DIGITS_OF_TPOT: Final = 9
_EXCLUDED: Final = frozenset({"gaps_us", "chunk_tokens"})
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")

Plain: TypeAlias = Mapping[str, Any]


class Microseconds(Integers):
    """The gaps of one response in microseconds, eight bytes each."""

    def __new__(cls, values: Any = ()) -> Microseconds:
        made: Microseconds = super().__new__(cls, "q", values)
        return made


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request: its parameters, times, tokens and outcome."""

    index: Annotated[Count, Meta(description="number of the request in its run")]
    session: Annotated[int | None, Meta(description="number of its conversation")] = None
    turn: Annotated[Count, Meta(description="turn of its conversation, from 0")] = 0
    outcome: Annotated[Outcome, Meta(description="ok; refused, failed, broken and late count as infinitely slow")]
    measured: Annotated[bool, Meta(description="whether the summary includes it: not in warm-up or cool-down")]
    status: Annotated[int | None, Meta(description="status of the HTTP response")]
    error: Annotated[str | None, Meta(description="one sentence if the outcome is not ok")]
    request_id: Annotated[str | None, Meta(description="the server's id of the request")]

    due_s: Annotated[float, Meta(description="when the load schedules it")]
    started_s: Annotated[float | None, Meta(description="when the client opened or took a connection for it")]
    connect_s: Annotated[float | None, Meta(description="time to open a connection; null if an open one was used")]
    sent_s: Annotated[float | None, Meta(description="when its last byte was handed to the kernel")]
    first_s: Annotated[float | None, Meta(description="when its first output arrived")]
    last_s: Annotated[float | None, Meta(description="when its last output arrived")]
    ended_s: Annotated[float | None, Meta(description="when the last byte of the response arrived")]
    lag_s: Annotated[float, Meta(description="longest time from the arrival of bytes in the kernel to their read")]

    ttft_s: Annotated[float | None, Meta(description="first_s - due_s")]
    ttft_sent_s: Annotated[float | None, Meta(description="first_s - started_s")]
    tpot_s: Annotated[float | None, Meta(description="(last_s - first_s) / (output_tokens - 1)")]
    e2e_s: Annotated[float | None, Meta(description="last_s - due_s")]
    queue_s: Annotated[float | None, Meta(description="estimated wait before prefill, part of ttft_sent_s")]

    asked_input_tokens: Annotated[Count, Meta(description="requested by the load; in a later turn, of the new message")]
    asked_output_tokens: Count
    shared_tokens: Annotated[Count, Meta(description="those in a prefix shared with other prompts")]
    prompt_tokens: Annotated[int | None, Meta(description="counted by the server")]
    cached_tokens: Annotated[int | None, Meta(description="those that the server had cached")]
    output_tokens: Annotated[int | None, Meta(description="counted by the server")]
    reasoning_tokens: int | None
    finish: Annotated[str | None, Meta(description="finish reason of the server")]

    streamed: Annotated[bool, Meta(description="false: the whole completion is one chunk")]
    chunks: Annotated[Count, Meta(description="events with output")]
    empty: Annotated[Count, Meta(description="events that could have had output and did not")]
    pings: Count
    merged: Annotated[Count, Meta(description="chunks read together with the next one")]
    gaps_us: Annotated[
        Microseconds | None,
        Meta(description="microseconds between chunks, one fewer than chunks; null if not recorded"),
    ] = None
    chunk_tokens: Annotated[
        int | list[int] | None,
        Meta(description="tokens of each chunk; one number if all are equal; null if unknown"),
    ] = None

    def with_failure(self, value: float | None, *, interrupted: bool) -> float | None:
        """The measure ``value`` of this request; infinite if the request failed or did not finish in the drain period.

        ``interrupted``: the run was stopped, so measures of open requests are unknown: None.
        """
        if value is not None:
            return value
        failed = self.outcome in FAILURES or (self.outcome == "unfinished" and not interrupted)
        return math.inf if failed else None


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One load that was sent, possibly interrupted."""

    load: Annotated[Plain, Meta(description="description of the load")]
    began_unix: Annotated[float, Meta(description="wall-clock time at second 0 of the run")]
    duration_s: Annotated[float, Meta(description="time in which requests became due")]
    interrupted: bool
    client: Client
    summary: Annotated[Plain, Meta(description="figures: rule, window, distributions, rates, goodput, warnings")]
    requests: list[Request]

    def figures(self, name: str) -> list[float | None]:
        """A measure, such as ``ttft_s``, of the measured requests, in their order; failures are infinite."""
        return [
            request.with_failure(getattr(request, name), interrupted=self.interrupted)
            for request in self.requests
            if request.measured
        ]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server that was measured."""

    url: Annotated[str, Meta(description="without user, password, query")]
    endpoint: Annotated[str, Meta(description="chat, completions or messages")]
    model: str
    server: Annotated[str | None, Meta(description="its Server header")] = None
    details: Annotated[Plain, Meta(description="other properties of the server and the prompts")] = {}


class ClientMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine of the client."""

    processor: str
    cores: int
    usable_threads: int
    memory_bytes: int
    system: str
    python: str


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A result of ``twofold bench serve`` or ``twofold bench run``. ``schema`` is ``SCHEMA``."""

    schema: Literal["twofold.bench/1"]
    version: Annotated[str, Meta(description="version of Twofold")]
    command: Annotated[str, Meta(description="the command: serve or run")]
    settings: Annotated[Plain, Meta(description="options without secrets")]
    target: Target
    machine: ClientMachine
    runs: Annotated[list[Run], Meta(description="in order; several of a sweep or a search")]
    search: Annotated[Plain | None, Meta(description="the highest sustainable rate and the trials")] = None
    sweep: Annotated[Plain | None, Meta(description="the rates or concurrencies, and the points of a curve")] = None

    def to_json(self) -> bytes:
        """One line of UTF-8; lone surrogates become question marks."""
        encoder = msgspec.json.Encoder(enc_hook=_encoded)
        try:
            return encoder.encode(self)
        except UnicodeEncodeError:
            return encoder.encode(_encodable(msgspec.to_builtins(self, enc_hook=_encoded)))

    def without_requests(self) -> Document:
        """A copy with only the summaries."""
        runs = [msgspec.structs.replace(run, requests=[]) for run in self.runs]
        return msgspec.structs.replace(self, runs=runs)

    def write(self, path: Path) -> None:
        """Writes the file atomically. Raises OSError."""
        part = path.with_name(path.name + ".part")
        part.write_bytes(self.to_json() + b"\n")
        part.replace(path)


def read(text: bytes | str) -> Document:
    """Reads the output of ``Document.to_json``. Raises ParameterError for anything else, with the reason."""
    try:
        return msgspec.json.decode(text, type=Document, dec_hook=_decoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(text, error) from None


def read_file(path: Path) -> Document:
    """Reads a file as ``read`` does; errors name the file."""
    try:
        return read(path.read_bytes())
    except OSError as error:
        raise _refusal(f"{path} cannot be read: {error.strerror or error}.") from None
    except ParameterError as error:
        raise _refusal(f"{path}: {error}") from None


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of documents."""
    schema = msgspec.json.schema(Document, schema_hook=_hook_schema)
    return {"$schema": SCHEMA_URL, "title": SCHEMA, **schema}


def schema_file() -> bytes:
    """The content of docs/bench.schema.json."""
    return orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def main(arguments: list[str]) -> int:
    """Writes the schema to the file in the only argument."""
    if len(arguments) != 1:
        print("usage: python -m twofold.bench.report.document FILE", file=sys.stderr)
        return 2
    Path(arguments[0]).write_bytes(schema_file())
    return 0


def _encoded(value: object) -> list[int]:
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be in a document")


def _encodable(value: Any) -> Any:
    """Plain data whose texts can be encoded as UTF-8."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_encodable(name): _encodable(item) for name, item in value.items()}
        case list() | tuple():
            return [_encodable(item) for item in value]
        case _:
            return value


def _decoded(kind: type, value: object) -> object:
    if kind is Microseconds and isinstance(value, list):
        with suppress(TypeError, OverflowError):
            return Microseconds(value)
    raise ValueError("expected a list of whole microseconds")


def _hook_schema(kind: type) -> dict[str, Any]:
    if kind is Microseconds:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}
    raise TypeError(f"{kind.__name__} has no schema")


class _Head(msgspec.Struct):
    """The field that identifies a document."""

    schema: str | None = None


def _invalid(text: bytes | str, error: Exception) -> ParameterError:
    """The error for a text that is not a document."""
    try:
        schema = msgspec.json.decode(text, type=_Head).schema
    except msgspec.ValidationError:
        return _refusal("This is not a document of twofold bench.")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _refusal(f"This is not valid JSON: {error!s:.{_MAX_QUOTED}}.")
    if schema == SCHEMA:
        return _refusal(f"This document does not match schema {SCHEMA}: {error!s:.{_MAX_QUOTED}}.")
    if schema is not None and schema.startswith("twofold.bench/"):
        return _refusal(f"This document has schema {schema!r:.60}; only {SCHEMA} is supported.")
    return _refusal(f"This is not a document of twofold bench: its schema is not {SCHEMA}.")


def _refusal(message: str) -> ParameterError:
    hint = "Give a file that `twofold bench serve` or `twofold bench run` wrote with --json or --output."
    return ParameterError(message, param="document", hint=hint)


REQUEST_COLUMNS: Final = tuple(name for name in Request.__struct_fields__ if name not in _EXCLUDED)
COLUMNS: Final = ("run", *REQUEST_COLUMNS)
"""Columns of the CSV file; ``run`` counts from 0."""


def run_of(record: RunRecord, rule: MeasurementRule, summary: Mapping[str, Any], *, chunks: bool = True) -> Run:
    """One run of the document, with the summary of the requests that ``rule`` measures.

    ``chunks``: whether to include the gaps between chunks, which are most of the size: about 8 bytes a chunk.
    """
    measured = {sample.ask.index for sample in rule.measured(record)}
    rows = sorted(
        zip(record.samples, request_figures(record), strict=True), key=lambda row: (row[1].due_s, row[1].index)
    )
    return Run(
        load=record.load,
        began_unix=record.began_unix,
        duration_s=record.duration_s,
        interrupted=record.interrupted,
        client=record.client,
        summary=summary,
        requests=[
            request_of(sample, figures, measured=figures.index in measured, chunks=chunks) for sample, figures in rows
        ],
    )


_SAMPLE: Final = ("outcome", "status", "error", "request_id", "lag_s", "output_tokens", "merged")
_TIMES: Final = ("started_s", "connect_s", "sent_s", "first_s", "last_s", "ended_s")
_FIGURES: Final = ("index", "due_s", "ttft_s", "ttft_sent_s", "tpot_s", "e2e_s", "queue_s", "chunks")
_RESPONSE: Final = ("prompt_tokens", "cached_tokens", "reasoning_tokens", "finish", "streamed", "empty", "pings")
"""Fields of ``Request`` by the record that has fields of the same names."""


def request_of(sample: RequestSample, figures: RequestFigures, *, measured: bool, chunks: bool = True) -> Request:
    """The request of the document. ``chunks`` as in ``run_of``."""
    ask, response = sample.ask, sample.response
    sources = ((sample, _SAMPLE + _TIMES), (figures, _FIGURES), (response, _RESPONSE))
    return Request(
        **{name: _value(name, getattr(source, name)) for source, names in sources for name in names},
        session=ask.session,
        turn=ask.turn,
        measured=measured,
        asked_input_tokens=ask.input_tokens,
        asked_output_tokens=ask.output_tokens,
        shared_tokens=sum(piece.tokens for piece in ask.shared),
        gaps_us=gaps_us(response) if chunks else None,
        chunk_tokens=chunk_tokens(response) if chunks else None,
    )


def machine_of_this() -> ClientMachine:
    """The machine that this process runs on."""
    cpu = read_cpu()
    return ClientMachine(
        processor=cpu.name,
        cores=cpu.cores,
        usable_threads=cpu.usable,
        memory_bytes=read_memory().usable,
        system=platform.platform(),
        python=platform.python_version(),
    )


def public_url(url: str) -> str:
    """A URL without user, password, query and fragment, which may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def gaps_us(response: RecordedResponse) -> Microseconds:
    """Whole microseconds between chunks; their sums are within a microsecond of the arrival times."""
    if not response.moments:
        return Microseconds()
    moments = np.maximum.accumulate(np.rint(np.frombuffer(response.moments, np.float64) * 1e6))
    return Microseconds(np.diff(moments).astype(np.int64).tobytes())


def chunk_tokens(response: RecordedResponse) -> int | list[int] | None:
    """Tokens of each chunk; one number if all are equal; None if any is unknown."""
    if not response.tokens or UNKNOWN in response.tokens:
        return None
    return response.tokens[0] if len(set(response.tokens)) == 1 else response.tokens.tolist()


def moments_of(request: Request) -> Sequence[float]:
    """Arrival times of chunks in seconds, computed from the gaps; empty without gaps."""
    if request.first_s is None or request.gaps_us is None:
        return ()
    gaps = np.frombuffer(request.gaps_us, np.int64)
    return np.concatenate(([request.first_s], request.first_s + np.cumsum(gaps) * 1e-6)).tolist()  # type: ignore[no-any-return]


def _value(name: str, value: Any) -> Any:
    """The value, rounded if it is a float, cut if it is a long text; None for infinity."""
    if isinstance(value, float):
        return round(value, _DIGITS_OF_TPOT if name == "tpot_s" else _DIGITS) if math.isfinite(value) else None
    return value[:_MAX_TEXT] if isinstance(value, str) else value


def to_csv(document: Document) -> str:
    """A header, and a row for each request without chunks.

    Spreadsheets treat texts that begin with ``= + - @``, a tab or a carriage return as formulas, and messages of
    servers may be such texts: an apostrophe is put in front (OWASP, "CSV Injection").
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for place, run in enumerate(document.runs):
        for request in run.requests:
            writer.writerow([place, *(_cell(getattr(request, name)) for name in REQUEST_COLUMNS)])
    return file.getvalue()


def _cell(value: object) -> object:
    """Empty for null; 0 and 1 for booleans; lines of a text joined, since some readers fail on line ends."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        line = " ".join(value.replace("\x00", " ").splitlines())
        return f"'{line}" if value.lstrip("\x00 \n").startswith(_FORMULA) else line
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
