"""README's examples that need a model: its Python, its answers, its server and the commands that speak to it."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import orjson
import pytest

from tests.docs.blocks import REPOSITORY, Block, Command, blocks, cells, commands, loosely
from tests.server.live import LiveServer, live_server
from twofold.backends.cpu.kernels.isa import TABLES
from twofold.backends.cpu.kernels.jit import host_features
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


def shown_run() -> Command:
    (command,) = (each for each in README if each.line.startswith("make run ARGS="))
    return command


@pytest.mark.parametrize("isa", [isa.name for isa in TABLES if isa.needs <= host_features() and isa.needs])
def test_make_run_answers_what_the_readme_shows(isa: str, capsys: pytest.CaptureFixture[str]) -> None:
    """To the letter, on each processor: its bits are promised."""
    found = re.search(r"^PROMPT \?= (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    for more in ([], ["--temperature", "0"]):
        assert main(["run", "--prompt", found[1], "--model", "smollm2-135m", "--isa", isa, *more]) == 0
        assert shown_run().output.startswith(capsys.readouterr().out)


def test_make_run_explains_as_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Up to numbers: which drafts are tried and which limit is the nearer one depends on the machine's speed."""
    assert (
        main(["run", "--prompt", "What is a prime number? Answer in one sentence.", *shown_run().words[2][5:].split()])
        == 0
    )
    printed = capsys.readouterr()
    answer, _, shown = shown_run().output.partition(printed.out)
    assert answer == ""
    found, wanted = (
        [each for each in map(loosely, text.splitlines()) if not each.startswith("drafted")]
        for text in (printed.err, shown)
    )
    limits = re.compile(r"(?:0 of|at) the (?:measured )?(?:memory|arithmetic) limit|\((?:memory|arithmetic)\)")
    assert limits.sub("limit", " ".join(found)) == limits.sub("limit", " ".join(wanted))


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path]]:
    """What README's bench prints, with fewer requests, and the results of two of them."""
    folder, printed = tmp_path_factory.mktemp("bench"), ""
    words = line_of("twofold bench run --model")
    for name, number in (("rate", "20"), ("duration", "2"), ("input-tokens", "32"), ("output-tokens", "8")):
        words = re.sub(rf"--{name} \S+", f"--{name} {number}", words)
    files = [folder / "a.json", folder / "b.json"]
    for file in files:
        command = [sys.executable, "-m", *shlex.split(words), "--output", str(file)]
        done = subprocess.run(
            command, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True, timeout=600
        )
        printed = done.stdout
    return printed, files


@pytest.mark.parametrize("page", ["README.md", "bench.md"])
def test_a_bench_prints_what_is_shown(page: str, benches: tuple[str, list[Path]]) -> None:
    """Sentences up to numbers, and the rows of tables; notes at its end depend on the machine."""
    of_page = [each for each in commands() if each.block.page == page and each.output]
    (shown,) = (each for each in of_page if each.line.startswith("twofold bench run --model"))
    sentences, rows = loosely(benches[0]), {(cells(line)[0], len(cells(line))) for line in benches[0].splitlines()}
    for line in filter(str.strip, shown.output.splitlines()):
        if line.startswith(("queue (estimate)", "!")) or " at http" in line:
            continue
        parts = cells(line)
        assert loosely(line) in sentences if len(parts) == 1 else (parts[0], len(parts)) in rows, line


def test_a_comparison_prints_what_is_shown(benches: tuple[str, list[Path]], capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = (each for each in commands() if each.line.startswith("twofold bench compare a.json"))
    assert main(["bench", "compare", *map(str, benches[1])]) in (0, 1)
    printed = list(map(cells, capsys.readouterr().out.splitlines()))
    names, counts = {row[0] for row in printed}, set(map(len, printed))  # on a busy machine a row may have no interval
    for line in shown.output.splitlines():
        assert cells(line)[0] in names, line
        assert len(cells(line)) in counts, line


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
