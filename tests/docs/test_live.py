"""README's examples that need a model: its Python, its answers, its server and the commands that speak to it."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import orjson
import pytest

from tests.docs.blocks import REPOSITORY, Block, Command, blocks, commands
from tests.server.live import LiveServer, live_server
from twofold.cli.main import main

pytestmark = pytest.mark.model

PYTHON = [block for block in blocks() if block.page == "README.md" and block.language == "python"]
README = [command for command in commands() if command.block.page == "README.md"]


def line_of(start: str) -> str:
    """The only command of README that begins so."""
    (line,) = (command.line for command in README if command.line.startswith(start))
    return line


@pytest.fixture(scope="module")
def server(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("docs"), f"smollm2-135m={default_model}") as live:
        yield live


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_python_of_the_readme_runs(block: Block, tmp_path: Path) -> None:
    """Each block alone, as a script in the folder above the clone."""
    (tmp_path / "twofold").symlink_to(REPOSITORY)
    (tmp_path / "script.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{done.stderr}\nIs the package installed as `make setup` does?"
    assert done.stderr == ""
    assert bool(done.stdout) == ("print(" in block.text)


def test_the_first_commands_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main([*shlex.split(line_of('twofold run "Why'))[1:], "-n", "24"]) == 0
    told = capsys.readouterr()
    assert len(told.out.split()) > 10
    assert re.search(r"\d+ prompt tokens: TTFT .* tok/s", told.err.replace("\n", " "))
    assert main(shlex.split(line_of("twofold run --choice"))[1:]) == 0
    assert capsys.readouterr().out.strip() in ("yes", "no")


def test_the_server_prints_what_the_readme_shows(server: LiveServer) -> None:
    (shown,) = (command for command in README if command.line == "make serve" and "Ready" in command.output)
    printed = server.log.read_text().splitlines()
    assert [_shape(line) for line in shown.output.strip().splitlines()] == [_shape(line) for line in printed[:6]]


def test_the_request_of_the_readme_is_answered_and_explained(server: LiveServer) -> None:
    line = shlex.split(line_of("curl"))
    body = orjson.loads(line[line.index("-d") + 1])
    url = line[2].replace("localhost:8000", server.url.removeprefix("http://"))
    done = subprocess.run(
        ["curl", "-s", f"http://{url.removeprefix('http://')}", *line[3:5], "-d", orjson.dumps(body).decode()],
        capture_output=True,
        check=True,
        timeout=300,
    )
    reply = orjson.loads(done.stdout)
    assert "Paris" in reply["choices"][0]["message"]["content"]
    assert reply["twofold"]["prompts"][0]["decode"]["bound"] == "memory"


@pytest.mark.parametrize("action", ["ps", "unload", "load", "stop"])
def test_commands_that_speak_to_a_server(server: LiveServer, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert action in shlex.split(line_of("twofold ps"))
    model = [] if action == "ps" else ["smollm2-135m"]
    assert main([action, *model, "--url", server.url]) == 0
    assert "smollm2-135m" in "".join(capsys.readouterr())


def test_a_chat_through_the_server(server: LiveServer) -> None:
    line = shlex.split(line_of("twofold chat --url").replace("http://127.0.0.1:8000", server.url))
    done = subprocess.run(
        [sys.executable, "-m", *line],
        check=False,
        input="What is the capital of France? Answer in one sentence.\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_pages_that_the_server_links_are_there(server: LiveServer) -> None:
    with httpx2.Client(base_url=server.url, headers={"accept": "text/html"}) as client:
        page = client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        links = set(re.findall(r'href="(/[^"]*)"', page.text))
        assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def _shape(line: str) -> str:
    return re.sub(r"\d[\d,.]*", "0", line).replace("threads", "thread")


def test_commands_are_found() -> None:
    assert all(isinstance(command, Command) for command in README)
    assert len(README) > 20
