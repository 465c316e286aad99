"""The lines of a batch file, in OpenAI's format: {"custom_id", "method", "url", "body"}, one JSON object each.

A line is known by its key, a digest of its bytes, so a batch can be taken up again after its file got more lines, or
other ones in between; a line that was edited is another line. Equal lines have different keys: the second is a
duplicate of the first, not the first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final

from twofold.engine.offline.bodies import OpenAIRequest
from twofold.engine.offline.embeddings import EmbeddingRequest
from twofold.engine.offline.fields import FieldError, Fields, impossible
from twofold.engine.offline.openai import ChatRequest, CompletionRequest

MAX_LINE_BYTES: Final = 32 << 20
MAX_CUSTOM_ID_CHARS: Final = 512
KEY_BYTES: Final = 16
_BOM: Final = b"\xef\xbb\xbf"

ENDPOINTS: Final[Mapping[str, Callable[[object], OpenAIRequest]]] = {
    "/v1/chat/completions": ChatRequest.read,
    "/v1/completions": CompletionRequest.read,
    "/v1/embeddings": EmbeddingRequest.read,
}
"""What reads the body of a line, by the line's url."""


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is not blank. ``number`` counts from 1; ``data`` is None where it is longer than MAX_LINE_BYTES."""

    number: int
    key: str
    data: bytes | None


def read_lines(path: Path) -> Iterator[InputLine]:
    """The lines of a file, one after the other; in memory stays only a digest of each."""
    seen: Counter[bytes] = Counter()
    with path.open("rb") as file:
        for number in count(1):
            data = file.readline(MAX_LINE_BYTES + 1)
            if not data:
                return
            if number == 1:
                data = data.removeprefix(_BOM)
            stripped = data.strip()
            digest = blake2b(stripped, digest_size=KEY_BYTES)
            long = len(data) > MAX_LINE_BYTES and not data.endswith(b"\n")
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


def decode_line(line: InputLine) -> Fields:
    """The line's fields. Raises FieldError for a line that is no JSON object in UTF-8."""
    if line.data is None:
        raise _bad_line(f"it is longer than {MAX_LINE_BYTES >> 20} MiB")
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
        raise _bad_line("it is no JSON object")
    return Fields(value)


def custom_id_of(fields: Fields) -> str:
    """The caller's name for the line."""
    found = fields.require("custom_id")
    if not isinstance(found, str) or not 0 < len(found) <= MAX_CUSTOM_ID_CHARS:
        raise impossible("custom_id", found, f"text of 1 to {MAX_CUSTOM_ID_CHARS} characters")
    return found


def endpoint_of(fields: Fields) -> tuple[Callable[[object], OpenAIRequest], object]:
    """What reads the line's body, and the body."""
    method, url, body = fields.require("method"), fields.require("url"), fields.require("body")
    fields.take("custom_id")
    fields.close()
    if method != "POST":
        raise FieldError(f"method must be POST, not {method!r:.60}.", param="method")
    read = ENDPOINTS.get(url) if isinstance(url, str) else None
    if read is None:
        *most, last = ENDPOINTS
        hint = f"Use {', '.join(most)} or {last}."
        raise FieldError(f"A batch has no endpoint {url!r:.60}.", param="url", code="invalid_url", hint=hint)
    return read, body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields; JSON does not say which of two equal names counts, so they are refused."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {twice!r:.60} stands twice in one object")
    return found


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _bad_line(reason: str) -> FieldError:
    return FieldError(f"This line is no request: {reason}.", param="line", code="invalid_json_line")
