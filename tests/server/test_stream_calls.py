"""Calls of a streamed token in the HTTP process: its event is sent where its step's message is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from tests.structure.__main__ import functions_of_a_chat
from tests.support.tiny import TinyModel

FEW: Final = 8
MANY: Final = 72
MOST_CALLS: Final = 21
"""Of the package's functions for a step with one token, metrics of the step excepted: 16, and four that read a message
which has one token. Messages that are read together need fewer."""


@pytest.fixture(scope="module")
def added(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, float]:
    """Calls that each further token costs, by function."""
    few, many = (
        {
            function.partition(":")[0]: calls
            for file, function, calls in functions_of_a_chat(tiny.path, folder, tokens)
            if not file.startswith("observe/")
        }
        for folder, tokens in ((tmp_path_factory.mktemp("chat"), tokens) for tokens in (FEW, MANY))
    )
    return {name: (calls - few.get(name, 0)) / (MANY - FEW) for name, calls in many.items()}


def test_a_token_wakes_no_task(added: Mapping[str, float]) -> None:
    assert added["RequestStream.push"] == pytest.approx(1, abs=0.1)
    assert added["StreamWriter.write"] > 0.5
    waking = (
        "OutputStream.take",
        "OutputStream._wake",
        "GenerationRun._job",
        "Reply._send",
        "_outward.<locals>.outward",
    )
    assert max(added[name] for name in waking) < 0.5  # deltas that come before the opening is sent are queued


def test_a_token_takes_few_calls(added: Mapping[str, float]) -> None:
    assert sum(added.values()) < MOST_CALLS, sorted(added.items(), key=lambda item: -item[1])[:MOST_CALLS]
