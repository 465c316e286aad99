"""Traces in the formats of Azure, Mooncake and Twofold: the requests in columns, and their files.

A trace is read whole before the first request is sent, so that an invalid line is reported at once. A million requests
take about 20 MB, without prompts.

Azure's traces of LLM inference (AzurePublicDataset, 2023 and 2024) are CSV with a header; a time without a zone is UTC,
and digits after microseconds are dropped:

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44              2023: seven digits, no zone
    2024-05-10 00:00:00.009930+00:00,2162,5         2024: six digits or none, and a zone

Mooncake's traces (Qin et al., "Mooncake", FAST 2025) are JSON lines, with times in milliseconds, from the start of the
trace or from 1970:

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, …]}

``hash_ids`` identify the prompt's blocks of 512 tokens, of which the last may be partial. Prompts have equal tokens as
far as their ids are equal from the start. Ids are optional; tokens beyond them are unique to the prompt.

Twofold's traces are JSON lines, one request in each:

    {"at_s": 0.0, "input_tokens": 512, "output_tokens": 128}
    {"at_s": 0.4, "input_tokens": 900, "output_tokens": 64, "shared": [[7, 400], [12, 200]]}
    {"at_s": 1.5, "prompt": "Why is the sky blue?", "output_tokens": 100}
    {"at_s": 2.0, "session": 3, "input_tokens": 300, "output_tokens": 50}
    {"after_s": 4.0, "session": 3, "turn": 1, "input_tokens": 40, "output_tokens": 50}

docs/bench.md describes the fields; other fields are errors.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast, get_args

import orjson

from twofold.bench.load import base
from twofold.bench.load.base import MAX_REQUESTS, MAX_SECONDS, MAX_TOKENS, Ask, EndedRequest, PromptMessage, Shared
from twofold.bench.load.synthetic import MAX_TURNS
from twofold.core.errors import ParameterError, ResourceError, describe_name, did_you_mean, unreadable
from twofold.core.units import count

Format: TypeAlias = Literal["azure", "mooncake", "twofold"]

MAX_KEY: Final = 2**64 - 1
"""Keys of shared pieces have up to 64 bits."""
MAX_MOMENT: Final = 1e11
"""Times may count from 1970; this is the year 5138. In milliseconds, such a number still has microseconds."""
MAX_LINE_BYTES: Final = 16 << 20
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_REMEDY: Final = "Correct the line, or give --skip-bad to skip such lines."
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
BLOCK_TOKENS: Final = 512
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE: Final = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
FIELDS: Final = frozenset(
    {"at_s", "after_s", "input_tokens", "output_tokens", "shared", "messages", "prompt", "session", "turn", "fields"}
)
_WRITTEN: Final = re.compile(r"\s*-?[0-9]{1,20}(\.[0-9]{1,20})?([eE]\+?[0-9]{1,2})?\s*")
_PLAIN: Final = frozenset({"at_s", "input_tokens", "output_tokens"})
_MAX_SESSION: Final = 2**63 - 1


class TraceLineError(ValueError):
    """An invalid line. ``field`` is the invalid field, "" for the whole line."""

    def __init__(self, field: str, problem: str, *, hint: str = _REMEDY) -> None:
        super().__init__(f"{field} {problem}" if field else problem)
        self.field = field
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Extra:
    """Properties of a request that only Twofold's format has."""

    session: int | None = None
    messages: tuple[PromptMessage, ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaterTurn:
    """A turn of a session after its first one, due ``after_s`` seconds after the completion before it."""

    turn: int
    after_s: float
    input_tokens: int
    output_tokens: int
    extra: Extra


class Trace:
    """Requests with arrival times, ascending in ``at_s``, and the later turns of their sessions.

    at_s                   (n,) arrival times on the clock of the trace
    input_tokens, output_tokens   (n,) tokens of prompts and completions
    keys, piece_tokens     shared pieces of all prompts; ``ends`` (n,): the position after the pieces of each request
    extras                 by number of the request
    later                  later turns by session, in order
    unused                 fields of the file that are ignored
    skipped                number of invalid lines; ``first_skipped`` is the error of the first one, "" without any
    """

    def __init__(self, path: Path, form: Format) -> None:
        self.path, self.form = path, form
        self.at_s = array("d")
        self.input_tokens = array("i")
        self.output_tokens = array("i")
        self.keys = array("Q")
        self.piece_tokens = array("i")
        self.ends = array("q")
        self.extras: dict[int, Extra] = {}
        self.later: dict[int, list[LaterTurn]] = {}
        self.unused: set[str] = set()
        self.skipped, self.first_skipped = 0, ""
        self.sha256 = ""

    def __len__(self) -> int:
        return len(self.at_s)

    def add(self, moment_field: str, at_s: float, input_tokens: int, output_tokens: int) -> int:
        """Adds a request without shared pieces and returns its number. Raises TraceLineError if it is out of order, or
        too long after the first."""
        number = len(self.at_s)
        if number and at_s < self.at_s[-1]:
            hint = f"Sort the lines by {moment_field}, or give --skip-bad to skip those that are not in order."
            raise TraceLineError(moment_field, "is earlier than in the line before", hint=hint)
        if number and at_s - self.at_s[0] > MAX_SECONDS:
            raise TraceLineError(moment_field, f"is more than {MAX_SECONDS:,.0f} s after the first request")
        if number == MAX_REQUESTS:
            raise TraceLineError("", f"exceeds the maximum of {MAX_REQUESTS:,} requests of a trace")
        self.at_s.append(at_s)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)
        self.ends.append(len(self.keys))
        return number

    def share(self, keys: Iterable[int], tokens: Iterable[int]) -> None:
        """Sets the shared pieces of the request added last."""
        self.keys.extend(keys)
        self.piece_tokens.extend(tokens)
        self.ends[-1] = len(self.keys)

    def start(self, number: int) -> int:
        """The position of the first piece of request ``number``."""
        return self.ends[number - 1] if number else 0

    def pieces(self, number: int) -> tuple[Shared, ...]:
        """The shared prefix of request ``number``."""
        places = range(self.start(number), self.ends[number])
        return tuple(Shared(self.keys[place], self.piece_tokens[place]) for place in places)


def read_lines(path: Path, parse: Callable[[bytes], None], *, skip_bad: bool) -> tuple[int, str]:
    """Passes each line to ``parse``, which raises TraceLineError for an invalid one.

    Raises ParameterError with file, line and field for the first invalid line. With ``skip_bad`` returns the number of
    invalid lines and the error of the first one, "" without any.
    """
    skipped, first = 0, ""
    with _opened(path) as file:
        for number, line in _numbered(file):
            if len(line) > MAX_LINE_BYTES:
                message = f"{path.name}:{number}: the line is longer than {MAX_LINE_BYTES >> 20} MiB."
                raise ParameterError(message, param="trace", hint="A trace has one request in a line.")
            try:
                parse(line)
            except TraceLineError as bad:
                message = f"{path.name}:{number}: {bad}"
                if not skip_bad:
                    raise ParameterError(f"{message}.", param=bad.field or "trace", hint=bad.hint) from None
                skipped += 1
                first = first or message
    return skipped, first


def whole(field: str, value: object, low: int, high: int = MAX_TOKENS) -> int:
    """``value`` if it is a whole number from ``low`` to ``high``, which may be written as 600.0 or "600". Raises
    TraceLineError."""
    value = _number(value)
    if type(value) is not int:
        raise TraceLineError(field, "is missing" if value is None else f"is {describe_name(value)}, not a whole number")
    if not low <= value <= high:
        raise TraceLineError(field, f"is {value!r:.30}, not from {low} to {high}")
    return value


def seconds(field: str, value: object, high: float, unit: str = "seconds") -> float:
    """``value`` if it is a number from 0 to ``high``, in this unit. Raises TraceLineError."""
    value = _number(value)
    if type(value) is not int and type(value) is not float:
        raise TraceLineError(field, "is missing" if value is None else f"is {describe_name(value)}, not a number")
    if not 0 <= value <= high:
        hint = f"It counts {unit}. {_REMEDY}"
        raise TraceLineError(field, f"is {value!r:.30}, not from 0 to {high:g}", hint=hint)
    return float(value)


def _number(value: object) -> object:
    """The number that ``value`` is: tools for tables make floats of columns with gaps, and texts of all columns."""
    if isinstance(value, str) and _WRITTEN.fullmatch(value):
        value = int(value) if value.strip("- \t").isdigit() else float(value)
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= MAX_KEY else value


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file for reading, unpacked if it is gzip. Raises UsageError if it is missing, ResourceError if damaged."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            if not packed:
                yield file
                return
            with gzip.open(file) as unpacked:
                yield cast("BinaryIO", unpacked)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ResourceError(f"{path} cannot be unpacked: {error}.", hint="Fetch the file again.") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, stripped at their end, with their numbers from 1; an overlong line is the last."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            yield number, line
            return
        if number == 1:
            line = line.removeprefix(_BOM)
        text = line.rstrip()
        if text:
            yield number, text


def read_trace(
    path: Path, *, form: Format | None = None, skip_bad: bool = False, block_tokens: int = BLOCK_TOKENS
) -> Trace:
    """The requests of a file, plain or gzip. The default format is detected by the first line.

    block_tokens  tokens of a block in Mooncake's format

    Raises UsageError for a missing file, and ParameterError with file, line and field for an invalid line; with
    ``skip_bad`` such lines are counted instead.
    """
    if form is not None and form not in FORMATS:
        message = f"{describe_name(form)} is not a trace format."
        raise ParameterError(message, param="trace-format", hint=did_you_mean(form, FORMATS))
    trace = Trace(path, form or _format(path))
    base.check_whole("block tokens", block_tokens, 1, MAX_TOKENS)
    readers: dict[Format, Callable[[], Callable[[bytes], None]]] = {
        "azure": lambda: AzureReader(trace),
        "mooncake": lambda: MooncakeReader(trace, block_tokens),
        "twofold": lambda: OwnReader(trace),
    }
    trace.skipped, trace.first_skipped = read_lines(path, readers[trace.form](), skip_bad=skip_bad)
    if not len(trace):
        why = f": {count(trace.skipped, 'line')} skipped, first {trace.first_skipped}" if trace.skipped else ""
        raise ParameterError(f"{path.name} has no requests{why}.", param="trace", hint="Give a trace with requests.")
    with path.open("rb") as file:
        trace.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return trace


def _format(path: Path) -> Format:
    with _opened(path) as file:
        line = next((line for _, line in _numbered(file)), b"")
    if line.lstrip().startswith(b"{"):
        try:
            return "mooncake" if "input_length" in parsed(line) else "twofold"
        except TraceLineError:
            return "twofold"
    if _AZURE[0].encode() in line:
        return "azure"
    raise ParameterError(
        f"{path.name} is not a trace in a known format.",
        param="trace",
        hint=f"Known: JSON lines (Twofold or Mooncake), and CSV with the header {','.join(_AZURE)}.",
    )


class AzureReader:
    """Adds the lines of an Azure file to a trace; the first line is the header."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._places: list[int] = []
        self._columns = 0

    def __call__(self, line: bytes) -> None:
        if not self._places:
            self._read_header(line)
            return
        values = _fields_of(line)
        if len(values) != self._columns:
            raise TraceLineError("", f"has {len(values)} fields, but the header has {self._columns}")
        time, prompt, output = (values[place] for place in self._places)
        self._trace.add(_AZURE[0], _moment(time), _count(_AZURE[1], prompt), _count(_AZURE[2], output))

    def _read_header(self, line: bytes) -> None:
        names = [name.decode("utf-8", "replace").strip() for name in _fields_of(line)]
        for name in _AZURE:
            if name not in names:
                raise TraceLineError(name, "is not in the header", hint=f"The header is {','.join(_AZURE)}.")
        self._places, self._columns = [names.index(name) for name in _AZURE], len(names)
        self._trace.unused |= {*names} - {*_AZURE, ""}  # tools write numbers of rows without a name


def _fields_of(line: bytes) -> list[bytes]:
    """The fields of a line of CSV (RFC 4180), which may be in quotes."""
    if b'"' not in line:
        return line.split(b",")
    try:
        return [field.encode("latin-1") for field in next(csv.reader([line.decode("latin-1")], strict=True))]
    except csv.Error as error:
        raise TraceLineError("", f"is not CSV ({error})") from None


def _moment(text: bytes) -> float:
    try:
        moment = datetime.fromisoformat(text.decode("ascii").strip())
    except ValueError:
        shown = _shown(text)
        wrong = f"is {shown!r}, not a time such as 2023-11-16 18:15:46.6805900" if shown else "is missing"
        raise TraceLineError(_AZURE[0], wrong) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _count(field: str, text: bytes) -> int:
    return whole(field, _shown(text) or None, 1)


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace").strip()[:40]


class MooncakeReader:
    """Adds the lines of a Mooncake file, with blocks of ``block_tokens`` tokens, to a trace."""

    def __init__(self, trace: Trace, block_tokens: int) -> None:
        self._trace = trace
        self._block = block_tokens

    def __call__(self, line: bytes) -> None:
        value = parsed(line)
        self._trace.unused |= value.keys() - _MOONCAKE
        at_s = seconds("timestamp", value.get("timestamp"), MAX_MOMENT * 1000, "milliseconds") / 1000
        tokens = whole("input_length", value.get("input_length"), 1)
        ids = self._ids(value.get("hash_ids", []), tokens)
        self._trace.add("timestamp", at_s, tokens, whole("output_length", value.get("output_length"), 1))
        if ids:
            full = len(ids) - 1
            self._trace.share(ids, chain(repeat(self._block, full), (min(self._block, tokens - full * self._block),)))

    def _ids(self, ids: object, tokens: int) -> list[int]:
        if not isinstance(ids, list):
            raise TraceLineError("hash_ids", "is not a list")
        blocks = -(-tokens // self._block)
        if len(ids) > blocks:
            raise TraceLineError(
                "hash_ids",
                f"has {len(ids)} blocks, but {tokens} tokens fill only {blocks} of {self._block} tokens",
                hint="Set --block-tokens to the block size of the trace, or give --skip-bad to skip such lines.",
            )
        found = [_number(each) for each in ids]
        for each in found:
            if type(each) is not int or not 0 <= each <= MAX_KEY:
                raise TraceLineError("hash_ids", f"contains {each!r:.30}, not a whole number from 0 to 2⁶⁴ − 1")
        return cast("list[int]", found)


class OwnReader:
    """Adds the lines of a file in Twofold's format to a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._turns: dict[int, int] = {}

    def __call__(self, line: bytes) -> None:
        value = parsed(line)
        if value.keys() == _PLAIN:
            self._first(value, Extra(), _input(value, None), [])
            return
        for name in value.keys() - FIELDS:
            raise TraceLineError(f"{name:.60}", "is not a field of a trace", hint=did_you_mean(name, sorted(FIELDS)))
        session, turn = self._session_and_turn(value)
        fields = value.get("fields", {})
        if not isinstance(fields, dict):
            raise TraceLineError("fields", "is not a JSON object")
        extra = Extra(session, _messages(value), fields)
        tokens, pieces = _input(value, extra.messages), _shared(value)
        if turn:
            self._later(value, turn, extra, tokens)
        else:
            self._first(value, extra, tokens, pieces)
        if session is not None:
            self._turns[session] = turn

    def _first(self, value: dict[str, Any], extra: Extra, tokens: int, pieces: list[tuple[int, int]]) -> None:
        output = whole("output_tokens", value.get("output_tokens"), 1)
        at_s = seconds("at_s", value.get("at_s"), MAX_MOMENT)
        if sum(length for _, length in pieces) > tokens:
            raise TraceLineError("shared", f"has more tokens than the {tokens} of the prompt")
        number = self._trace.add("at_s", at_s, tokens, output)
        if pieces:
            self._trace.share((key for key, _ in pieces), (length for _, length in pieces))
        if extra != Extra():
            self._trace.extras[number] = extra

    def _later(self, value: dict[str, Any], turn: int, extra: Extra, tokens: int) -> None:
        assert extra.session is not None
        for name in ("at_s", "shared"):
            if name in value:
                raise TraceLineError(name, "is for first turns only; later turns have after_s")
        after_s = seconds("after_s", value.get("after_s"), MAX_SECONDS)
        output = whole("output_tokens", value.get("output_tokens"), 1)
        self._trace.later.setdefault(extra.session, []).append(LaterTurn(turn, after_s, tokens, output, extra))

    def _session_and_turn(self, value: dict[str, Any]) -> tuple[int | None, int]:
        """Session and turn. Raises TraceLineError if the turn is not the next one of its session."""
        turn = whole("turn", value.get("turn", 0), 0, MAX_TURNS - 1)
        if "session" not in value:
            if turn:
                raise TraceLineError("session", "is missing: a turn needs one")
            session = None
        else:
            session = whole("session", value["session"], 0, _MAX_SESSION)
            wanted = self._turns.get(session, -1) + 1
            if turn != wanted:
                raise TraceLineError("turn", f"is {turn}, but the next turn of session {session} is {wanted}")
        if "after_s" in value and not turn:
            raise TraceLineError("after_s", "is for later turns; a first turn has at_s")
        return session, turn


def write_trace(path: Path, requests: Iterable[EndedRequest]) -> None:
    """Writes requests as a trace that can be replayed. Raises ResourceError if the file cannot be written."""
    try:
        with path.open("wb") as file:
            file.writelines(orjson.dumps(line) + b"\n" for line in _written(requests))
    except OSError as error:
        raise ResourceError(f"{path} cannot be written: {error.strerror}.", hint="Give another file.") from error


def _written(requests: Iterable[EndedRequest]) -> Iterator[dict[str, Any]]:
    ended: dict[tuple[int, int], float] = {}
    for each in sorted(requests, key=lambda each: (each.ask.due_s, each.ask.index)):
        ask, line = each.ask, _fields(each.ask)
        if ask.turn:
            assert ask.session is not None
            line["after_s"] = max(0.0, ask.due_s - ended[ask.session, ask.turn - 1])
        else:
            line["at_s"] = ask.due_s
        if ask.session is not None:
            ended[ask.session, ask.turn] = ask.due_s if each.ended_s is None else each.ended_s
        yield line


def _fields(ask: Ask) -> dict[str, Any]:
    line: dict[str, Any] = {"output_tokens": ask.output_tokens}
    if ask.input_tokens:
        line["input_tokens"] = ask.input_tokens
    if ask.messages is not None:
        line["messages"] = [{"role": message.role, "content": message.text} for message in ask.messages]
    if ask.shared:
        line["shared"] = [[piece.key, piece.tokens] for piece in ask.shared]
    if ask.session is not None:
        line |= {"session": ask.session, "turn": ask.turn}
    return line | ({"fields": dict(ask.fields)} if ask.fields else {})


def parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises TraceLineError."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceLineError("", f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise TraceLineError("", "is not a JSON object")
    return value


def _input(value: dict[str, Any], messages: tuple[PromptMessage, ...] | None) -> int:
    if messages is not None and "input_tokens" not in value:
        return 0
    return whole("input_tokens", value.get("input_tokens"), 1)


def _messages(value: dict[str, Any]) -> tuple[PromptMessage, ...] | None:
    if "prompt" in value:
        if "messages" in value:
            raise TraceLineError("prompt", "is given together with messages; use only one")
        return (PromptMessage("user", _text("prompt", value["prompt"])),)
    if "messages" not in value:
        return None
    listed = value["messages"]
    if not isinstance(listed, list) or not listed:
        raise TraceLineError("messages", "is not a list of messages")
    for each in listed:
        if not isinstance(each, dict) or each.keys() != {"role", "content"}:
            raise TraceLineError("messages", 'contains an entry that is not {"role": …, "content": …}')
    return tuple(PromptMessage(_text("messages", each["role"]), _text("messages", each["content"])) for each in listed)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TraceLineError(field, "must be a text that is not empty")
    return value


def _shared(value: dict[str, Any]) -> list[tuple[int, int]]:
    listed = value.get("shared", [])
    if not isinstance(listed, list):
        raise TraceLineError("shared", "is not a list of pairs")
    if listed and ("messages" in value or "prompt" in value):
        raise TraceLineError("shared", "is given together with the text of the prompt")
    if any(not isinstance(each, list) or len(each) != 2 for each in listed):
        raise TraceLineError("shared", "contains an entry that is not a pair of a key and a number of tokens")
    return [(whole("shared", key, 0, MAX_KEY), whole("shared", tokens, 1)) for key, tokens in listed]
