"""LangChain's standard tests of its clients of OpenAI's, Anthropic's and Ollama's APIs, against a live server.

They run in an environment of their own, which ``make langchain`` makes. The model is tiny: where the grammar allows it,
it writes ``x`` after ``"``, and else the first of ``"``, ``}``, ``3`` and the end. So a call that it must make is short
and right, whatever processor it runs on, and what it writes of its own will is not. Tests for a model that understands
are listed with the reason; all others must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.server.live import live_server
from tests.support.tiny import TinyModel, TinyOptions
from tests.support.vocabulary import byte_token

ROOT: Final = Path(__file__).parents[3]
SUITE: Final = Path(__file__).with_name("suite.py")
PATIENCE_S: Final = 900.0
QUOTE, LETTER, BRACE, DIGIT, *SIGNS = map(byte_token, '"x}3{:,')
FAVOURED: Final = (QUOTE, BRACE, DIGIT, 2, *SIGNS)
MODEL: Final = TinyOptions("llama", vocab=300, context=8192, tied=False, favours=FAVOURED, then=(QUOTE, LETTER))
OPTIONS: Final = (
    f"-q -c {os.devnull} -p no:cacheprovider -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=session "
    "-o asyncio_default_test_loop_scope=session"
).split()
CHATS: Final = ("TestOpenAI", "TestResponses", "TestAnthropic", "TestOllama")
UNABLE: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "calls no tool unless it must": {
        "test_agent_loop[model0]": CHATS,
        "test_agent_loop[model1]": CHATS,
        "test_tool_calling_with_no_arguments": CHATS,
        "test_unicode_tool_call_integration": CHATS,
        # Ollama's API cannot require a call.
        "test_bind_runnables_as_tools": ("TestOllama",),
        "test_tool_calling[model0]": ("TestOllama",),
        "test_tool_calling[model1]": ("TestOllama",),
        "test_tool_calling_async": ("TestOllama",),
        "test_tool_choice": ("TestOllama",),
    },
    "writes any object where none is described": {"test_json_mode": ("TestOpenAI", "TestResponses", "TestOllama")},
}
"""Tests that such a model fails, by the reason: their names, and the clients."""
SKIPPED: Final = {
    *("test_pdf_inputs", "test_audio_inputs", "test_image_inputs", "test_image_tool_message", "test_pdf_tool_message"),
    *("test_json_mode", "test_anthropic_inputs", "test_stream_time"),
}
"""Tests for what models of text lack, of another API, and of speed."""


@pytest.fixture(scope="module")
def results(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, ET.Element]:
    """The results of all tests of the suite, by class and name."""
    python = Path(os.environ.get("TWOFOLD_LANGCHAIN", ROOT / ".venv-langchain/bin/python"))
    if not python.is_file():
        pytest.skip("needs LangChain's standard tests: make langchain, or a Python that has them in TWOFOLD_LANGCHAIN")
    folder = tmp_path_factory.mktemp("langchain")
    report, suite = folder / "report.xml", shutil.copy(SUITE, folder)  # away from the other tests' conftest.py
    command: list[str | Path] = [python, "-m", "pytest", *OPTIONS, "--rootdir", folder, "--junitxml", report, suite]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with live_server(folder, f"tiny={tiny_gguf(MODEL).path}", "--threads", "1") as live:
        ran = subprocess.run(
            command,
            cwd=folder,
            env={**own, "SUITE_URL": live.url, "SUITE_MODEL": "tiny", "LANGSMITH_TRACING": "false"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert report.is_file(), ran.stdout[-4000:]
    cases = ET.parse(report).getroot().iter("testcase")
    return {f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}": case for case in cases}


def failure(case: ET.Element) -> ET.Element | None:
    return case.find("failure") if case.find("error") is None else case.find("error")


def test_every_client_passes_what_needs_no_understanding(results: dict[str, ET.Element]) -> None:
    unable = {f"{name}.{test}" for tests in UNABLE.values() for test, names in tests.items() for name in names}
    failed = {name: found.text for name, case in results.items() if (found := failure(case)) is not None}
    new = failed.keys() - unable
    assert not new, "\n\n".join(f"{name}\n{failed[name]}" for name in sorted(new))
    assert unable <= failed.keys(), "these pass now: strike them off the list"


def test_only_what_the_server_lacks_is_skipped(results: dict[str, ET.Element]) -> None:
    skipped = {name for name, case in results.items() if case.find("skipped") is not None}
    assert {name.partition(".")[2].partition("[")[0] for name in skipped} <= SKIPPED
    assert len(results) - len(skipped) > 170
    assert {name.partition(".")[0] for name in results} == {*CHATS, "TestOpenAIEmbeddings", "TestOllamaEmbeddings"}
