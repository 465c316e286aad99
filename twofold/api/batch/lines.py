"""The lines of a batch file, in OpenAI's format: {"custom_id", "method", "url", "body"}, one JSON object each.

A line is known by its key, a digest of its bytes, so a batch can be taken up again after its file got more lines, or
other ones in between; a line that was edited is another line. Equal lines have different keys: the second is a
duplicate of the first, not the first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

from msgspec import Meta

from twofold.api.body import RequestObject
from twofold.api.fields import FieldError
from twofold.core.errors import describe_name

MAX_LINE_BYTES: Final = 32 << 20
MAX_CUSTOM_ID_CHARS: Final = 512
KEY_BYTES: Final = 16
MAX_DEPTH: Final = 64
"""Objects and lists inside each other in a body, as over HTTP."""
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is not blank. ``number`` counts from 1; ``data`` is None where it is longer than a line may be."""

    number: int
    key: str
    data: bytes | None


def read_lines(path: Path, most: int = MAX_LINE_BYTES) -> Generator[InputLine, None, None]:
    """The lines of a file, one after the other; in memory stays only a digest of each.

    ``most`` is how many bytes a line may have; of a longer one only its key is known.
    """
    seen: Counter[bytes] = Counter()
    with path.open("rb") as file:
        for number in count(1):
            data = file.readline(most + 1)
            if not data:
                return
            if number == 1:
                data = data.removeprefix(_BOM)
            stripped = data.strip()
            digest = blake2b(stripped, digest_size=KEY_BYTES)
            long = len(data) > most and not data.endswith(b"\n")
            if long:
                _skip(file, digest.update)
            if not stripped and not long:
                continue
            same = seen[digest.digest()]
            seen[digest.digest()] += 1
            if same:
                digest.update(b"\n%d" % same)
            yield InputLine(number, digest.hexdigest(), None if long else stripped)


def _skip(file: BinaryIO, hear: Callable[[bytes], None]) -> None:
    """Reads to the end of the line."""
    while data := file.readline(MAX_LINE_BYTES):
        hear(data)
        if data.endswith(b"\n"):
            return


def decode_line(line: InputLine, most: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """The line's object. Raises FieldError for a line that is not a JSON object in UTF-8 of at most ``most`` bytes."""
    if line.data is None:
        raise _bad_line(f"it is longer than {most >> 20} MiB")
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


class LineName(RequestObject):
    """The caller's name for a line."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_CUSTOM_ID_CHARS)]


class BatchLine(RequestObject):
    """The fields of a line; its ``custom_id`` is read as a ``LineName``."""

    method: Any
    url: Any
    body: Any
    custom_id: Any = None


def custom_id_of(line: dict[str, Any]) -> str:
    """The caller's name for the line. Raises FieldError."""
    return LineName.read({"custom_id": line.get("custom_id")}).custom_id


def target_of(line: dict[str, Any], endpoints: Collection[str]) -> tuple[str, object]:
    """The line's url, which is one of the ``endpoints``, and its body."""
    fields = BatchLine.read(line)
    method, url, body = fields.method, fields.url, fields.body
    if method != "POST":
        raise FieldError(f"method must be POST, not {describe_name(method)}.", param="method")
    if not isinstance(url, str) or url not in endpoints:
        *most, last = endpoints
        hint = f"Use {', '.join(most)} or {last}." if most else f"All lines of this batch have the url {last}."
        raise FieldError(f"A batch has no endpoint {describe_name(url)}.", param="url", code="invalid_url", hint=hint)
    return url, body


def check_body(body: object) -> None:
    """Raises FieldError for a body that no request over HTTP could have: nested too deeply, or with lone surrogates."""
    layer: list[Any] = [body] if isinstance(body, dict | list) else []
    for _ in range(MAX_DEPTH):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if layer:
        raise FieldError(f"The body has more than {MAX_DEPTH} objects and lists inside each other.", param="body")
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            "The body holds a lone surrogate, which is not Unicode text.", param="body", hint="Send it as UTF-8."
        ) from error


def digest_of(text: str) -> bytes:
    """What tells texts apart in 16 bytes; lone surrogates are taken too."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields; JSON does not say which of two equal names counts, so they are refused."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {twice!r:.60} occurs twice in one object")
    return found


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def _bad_line(reason: str) -> FieldError:
    return FieldError(f"This line is not a valid request: {reason}.", param="line", code="invalid_json_line")
