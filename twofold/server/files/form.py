"""Reads the upload of a file, a multipart/form-data body, piece by piece, and writes the file's bytes to a sink.

Invariants
- Only the small fields and one piece are in memory.
- Every field is known and occurs once; ``file`` has a file name.
- The sink gets at most ``max_bytes`` bytes, whatever length the headers declare.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NoReturn, Protocol

from msgspec import Meta
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from twofold.api.body import RequestObject
from twofold.api.fields import MISSING, UNKNOWN, FieldError
from twofold.core.errors import MAX_QUOTED, TooLargeError, closest_match, spelled

MIN_SECONDS: Final = 3600
MAX_SECONDS: Final = 30 * 86400
MAX_NAME_CHARS: Final = 255
MAX_FIELD_BYTES: Final = 1024
MAX_HEADERS: Final = 8
MAX_HEADER_BYTES: Final = 4096
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
KNOWN: Final = ("file", "purpose", _ANCHOR, _SECONDS)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class Sink(Protocol):
    """Takes the file's bytes."""

    def write(self, data: bytes, /) -> int: ...


class FileLifetime(RequestObject):
    """Lifetime of a file after its creation."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=MIN_SECONDS, le=MAX_SECONDS)]


class UploadFields(RequestObject):
    """The small fields of a form."""

    purpose: Literal["batch"]
    expires_after: FileLifetime | None = None


@dataclass(frozen=True, slots=True)
class UploadedForm:
    """The fields of a form. ``lifetime_s`` is None for a file that does not expire."""

    filename: str
    purpose: str
    bytes: int
    lifetime_s: int | None


class UploadForm:
    """Reads one form: ``feed`` its bytes, then ``finish``.

    Raises FieldError for an invalid form, TooLargeError for a file of more than ``max_bytes`` bytes; after an error it
    must not be used.
    """

    def __init__(self, content_type: str | None, sink: Sink, max_bytes: int) -> None:
        self._sink, self._max_bytes = sink, max_bytes
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._on_part,
                "on_header_field": self._on_header_name,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_end": self._on_end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )
        self._headers: dict[bytes, bytes] = {}
        self._header = (bytearray(), bytearray())
        self._values: dict[str, bytearray] = {}
        self._field = ""
        self._filename = ""
        self._bytes = 0
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the body."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _bad(f"it is not multipart/form-data: {error}") from error

    def finish(self) -> UploadedForm:
        """The fields of the form, which must be complete."""
        if not self._ended:
            raise _bad("it ends before its last boundary")
        if "file" not in self._values:
            raise FieldError("file is required.", param="file", code=MISSING)
        fields = UploadFields.read(self._body())
        lifetime_s = None if fields.expires_after is None else fields.expires_after.seconds
        return UploadedForm(self._filename, fields.purpose, self._bytes, lifetime_s)

    def _on_part(self) -> None:
        self._headers = {}

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _on_header(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _on_headers(self) -> None:
        """Begins a part, which must be a known field that has not occurred yet."""
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise _bad("a part of it has no name")
        self._field = _text(options[b"name"], "body")
        if self._field not in KNOWN:
            _refuse_unknown(self._field)
        if self._field in self._values:
            raise FieldError(f"{self._field} is given twice.", param=self._field)
        self._values[self._field] = bytearray()
        if self._field == "file":
            self._filename = _filename(options.get(b"filename"))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._field == "file":
            self._bytes += end - start
            if self._bytes > self._max_bytes:
                limit = f"{self._max_bytes >> 20} MiB"
                raise TooLargeError(f"The maximum file size is {limit}.", hint="Split it into several batches.")
            self._sink.write(data[start:end])
            return
        value = self._values[self._field]
        value.extend(data[start:end])
        if len(value) > MAX_FIELD_BYTES:
            raise FieldError(f"{self._field} is longer than {MAX_FIELD_BYTES} bytes.", param=self._field)

    def _on_end(self) -> None:
        self._ended = True

    def _body(self) -> dict[str, Any]:
        """The small fields as a JSON body."""
        texts = {name: _text(bytes(value), name) for name, value in self._values.items() if name != "file"}
        body: dict[str, Any] = {"purpose": texts.get("purpose")}
        expiry: dict[str, Any] = {}
        if _ANCHOR in texts:
            expiry["anchor"] = texts[_ANCHOR]
        if _SECONDS in texts:
            seconds = texts[_SECONDS]
            expiry["seconds"] = int(seconds) if seconds.isascii() and seconds.isdigit() else seconds
        return body | ({"expires_after": expiry} if expiry else {})


def _boundary(content_type: str | None) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise FieldError(
            "A file is uploaded as multipart/form-data with a boundary.",
            param="content-type",
            hint="Send the fields purpose and file as a form.",
        )
    if len(boundary) > 70:  # RFC 2046, 5.1.1
        raise _bad("its boundary is longer than 70 characters")
    return boundary


def _filename(given: bytes | None) -> str:
    """The file name for display, without folders and control characters; names on disk are other ones."""
    if given is None:
        raise FieldError("file needs a file name.", param="file", hint="Send it as a file part, not as a text field.")
    name = _CONTROL.sub("", _text(given, "file")).replace("\\", "/").rpartition("/")[2]
    return name[:MAX_NAME_CHARS] or "upload"


def _text(data: bytes, param: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FieldError("The form contains text that is not UTF-8.", param=param) from error


def _refuse_unknown(name: str) -> NoReturn:
    close = closest_match(name, KNOWN)
    hint = f"Did you mean {close!r}?" if close else f"Known: {', '.join(KNOWN)}."
    raise FieldError(f"{spelled(name)} is not a known field.", param=name[:MAX_QUOTED], code=UNKNOWN, hint=hint)


def _bad(reason: str) -> FieldError:
    return FieldError(
        f"The body is not a valid upload: {reason}.", param="body", hint="Send it as multipart/form-data."
    )
