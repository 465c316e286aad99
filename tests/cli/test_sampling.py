"""Sources of the sampling parameters of ``run``, ``chat`` and ``batch``: flags, the model file, the fallback."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import Command
from tests.cli.test_batch import lines_of, write_input
from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli.options import SamplingOptions
from twofold.core.sampling_defaults import FALLBACK, SamplingDefaults

OWN: Final = (("general.sampling.temp", 5.0), ("general.sampling.top_p", 1.0), ("general.sampling.top_k", 40))
HOT: Final = ("--temperature", 5, "--top-p", 1, "--top-k", 40)
FLAT: Final = ("--temperature", 0.2, "--top-p", 0.9)


@pytest.fixture
def own(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    """A model whose file has sampling parameters."""
    return tiny_gguf(TinyOptions(extra=OWN)).path


@pytest.mark.parametrize(("model", "same", "other"), [("own", HOT, FLAT), ("tiny", FLAT, HOT)])
def test_run_samples_as_the_model_file_says(
    model: str, same: tuple[object, ...], other: tuple[object, ...], twofold: Command, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(model)

    def ids(*flags: object) -> list[int]:
        fixed = ("-n", 12, "--ignore-eos", "--seed", 1, "--json")
        found: list[int] = json.loads(twofold("run", "in the", "-m", path, *fixed, *flags).out)["token_ids"]
        return found

    assert ids() == ids(*same) != ids(*other)


def test_batch_samples_as_the_model_file_says(twofold: Command, own: Path, tmp_path: Path) -> None:
    def choices(name: str, **body: Any) -> dict[str, Any]:
        given, found = write_input(tmp_path / f"{name}.in", 3, max_tokens=12, seed=1, **body), tmp_path / name
        assert twofold("batch", given, found, "-m", own).code == 0
        return lines_of(found)

    left_out = {"temperature": None, "top_p": None, "top_k": None}
    hot = {"temperature": 5, "top_p": 1, "top_k": 40}
    assert choices("own", **left_out) == choices("hot", **hot) != choices("flat", temperature=0.2, top_p=0.9)


def test_chat_shows_the_defaults_of_the_model(twofold: Command, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("/set temp", "/set min_p", "/set temp 0.5", "/set temp", "/set temp default", "/set top_p hot")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    result = twofold("chat", "-m", own)
    assert result.err.splitlines() == [
        *("5 (default)", "default", "temperature is 0.5.", "0.5", "temperature is 5 (default)."),
        "error: top_p must be a number, not 'hot'.",
    ]


def test_flags_go_before_the_model_file() -> None:
    model = SamplingDefaults(temperature=0.7, top_k=40).over(FALLBACK)
    params = SamplingOptions(temperature=0.0, top_k=0).params(defaults=model)
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 0, 0.9)
