"""The lines of a batch file in OpenAI's format: {"custom_id", "method", "url", "body"}, one JSON object each, and the
endpoints whose bodies they may have.

The key of a line is a digest of its bytes. So a batch resumes after lines were added to its file, at any place; an
edited line is a new line. Equal lines have different keys: the second is a duplicate of the first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

from msgspec import Meta

from twofold.api.base import DialectRequest
from twofold.api.body import RequestObject
from twofold.api.fields import FieldError, check_depth, unsupported
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.vectors import EmbeddingRequest
from twofold.core.errors import describe_name, quoted
from twofold.text.templates.messages import MAX_DEPTH

MAX_LINE_BYTES: Final = 32 << 20
MAX_CUSTOM_ID_CHARS: Final = 512
KEY_BYTES: Final = 16
CHUNK_BYTES: Final = 1 << 20
CHUNK_LINES: Final = 64
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is not blank. ``number`` counts from 1; ``data`` is None if the line is too long."""

    number: int
    key: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class LineCall:
    """A valid line. On a server, ``tenant`` and ``key`` are those of its batch: tenant and id of the API key."""

    line_key: str
    custom_id: str
    endpoint: str
    body: dict[str, Any]
    tenant: str = ""
    key: str = ""

    @property
    def request_id(self) -> str:
        return f"req_{self.line_key}"


class BatchLine(RequestObject):
    """The fields of a line."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_CUSTOM_ID_CHARS)]
    method: Literal["POST"]
    url: Any
    body: dict[str, Any]


class BatchReader:
    """Reads the lines of one input, each at most ``max_bytes`` long, for these ``endpoints``.

    tenant, key   of the calls
    """

    def __init__(
        self, endpoints: Collection[str], max_bytes: int = MAX_LINE_BYTES, *, tenant: str = "", key: str = ""
    ) -> None:
        self.max_bytes = max_bytes
        self._endpoints, self._tenant, self._key = endpoints, tenant, key
        self._custom_ids: set[bytes] = set()

    def read(self, line: InputLine) -> LineCall:
        """The call of the line. Raises FieldError, also if an earlier line has its custom_id."""
        fields = decode_line(line, self.max_bytes)
        self._claim(_custom_id(fields))
        declared = BatchLine.read(fields)
        url = declared.url
        if not isinstance(url, str) or url not in self._endpoints:
            *others, last = self._endpoints
            hint = f"Use {', '.join(others)} or {last}." if others else f"All lines of this batch have the url {last}."
            message = f"A batch has no endpoint {describe_name(url)}."
            raise FieldError(message, param="url", code="invalid_url", hint=hint)
        return LineCall(line.key, declared.custom_id, url, declared.body, self._tenant, self._key)

    def custom_id(self, line: InputLine) -> str | None:
        """The caller's name for a line; None if it has no valid one."""
        try:
            return _custom_id(decode_line(line, self.max_bytes))
        except FieldError:
            return None

    def _claim(self, custom_id: str | None) -> None:
        """Records a custom_id. Raises FieldError if an earlier line has it."""
        if custom_id is None:
            return
        digest = digest_of(custom_id)
        if digest in self._custom_ids:
            message = f"An earlier line has the custom_id {quoted(custom_id)} too."
            raise FieldError(message, param="custom_id", code="duplicate_custom_id")
        self._custom_ids.add(digest)


def _custom_id(fields: dict[str, Any]) -> str | None:
    found = fields.get("custom_id")
    return found if isinstance(found, str) and 0 < len(found) <= MAX_CUSTOM_ID_CHARS else None


def read_lines(path: Path, max_bytes: int = MAX_LINE_BYTES) -> Generator[InputLine, None, None]:
    """The lines of a file, in order; of a line longer than ``max_bytes``, only its key. Memory holds all digests."""
    seen: Counter[bytes] = Counter()
    with path.open("rb") as file:
        for number in count(1):
            data = file.readline(max_bytes + 1)
            if not data:
                return
            long = len(data) > max_bytes and not data.endswith(b"\n")
            stripped = (data.removeprefix(_BOM) if number == 1 else data).strip()
            digest = blake2b(stripped, digest_size=KEY_BYTES)
            if long:
                _skip(file, digest.update)
            if not stripped and not long:
                continue
            same = seen[digest.digest()]
            seen[digest.digest()] += 1
            if same:
                digest.update(b"\n%d" % same)
            yield InputLine(number, digest.hexdigest(), None if long else stripped)


def chunked(lines: Iterator[InputLine]) -> Iterator[list[InputLine]]:
    """The lines in lists of at most CHUNK_LINES and about CHUNK_BYTES, which take little time and memory."""
    while found := next_chunk(lines):
        yield found


def next_chunk(lines: Iterator[InputLine]) -> list[InputLine]:
    """The next such list; empty at the end."""
    found: list[InputLine] = []
    size = 0
    for line in islice(lines, CHUNK_LINES):
        found.append(line)
        size += len(line.data or b"")
        if size >= CHUNK_BYTES:
            break
    return found


def _skip(file: BinaryIO, update: Callable[[bytes], None]) -> None:
    """Reads to the end of the line, and passes its bytes to ``update``."""
    while data := file.readline(MAX_LINE_BYTES):
        update(data)
        if data.endswith(b"\n"):
            return


def decode_line(line: InputLine, max_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """The line's object. Raises FieldError unless it is a JSON object in UTF-8 of at most ``max_bytes`` bytes."""
    if line.data is None:
        raise _bad_line(f"it is longer than {max_bytes >> 20} MiB")
    try:
        text = line.data.decode()
    except UnicodeDecodeError as error:
        raise _bad_line(f"it is not UTF-8 at byte {error.start}") from error
    try:
        value = json.loads(text, parse_constant=_no_number, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise _bad_line(f"it is not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise _bad_line("it is nested too deeply") from error
    except ValueError as error:
        raise _bad_line(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _bad_line("it is not a JSON object")
    return value


def digest_of(text: str) -> bytes:
    """16 bytes that identify a text, which may have lone surrogates."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields. Equal names are refused, because JSON does not define which of them counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {twice!r:.60} occurs twice in one object")
    return found


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def _bad_line(reason: str) -> FieldError:
    return FieldError(f"This line is not a valid request: {reason}.", param="line", code="invalid_json_line")


ENDPOINTS: Final[Mapping[str, Callable[[object], DialectRequest]]] = {
    "/v1/chat/completions": ChatRequest.read,
    "/v1/completions": CompletionRequest.read,
    "/v1/embeddings": EmbeddingRequest.read,
}
"""Readers of bodies, by the url of the line."""


def read_body(call: LineCall) -> DialectRequest:
    """The request of a line. Raises FieldError, also if it asks for a stream or a service tier."""
    check_body(call.body)
    request = ENDPOINTS[call.endpoint](call.body)
    if request.stream:
        raise unsupported("stream", "Remove it: batch lines are not streamed.")
    if request.tier not in ("auto", "default"):
        raise unsupported("service_tier", "Remove it: all lines have the batch tier.")
    return request


def check_body(body: object) -> None:
    """Raises FieldError for a body that no request over HTTP could have: nested too deeply, or with lone surrogates."""
    check_depth(body, MAX_DEPTH)
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            "The body holds a lone surrogate, which is not Unicode text.", param="body", hint="Send it as UTF-8."
        ) from error
