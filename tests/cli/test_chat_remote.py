"""``run`` and ``chat`` through a Twofold server, and through others that report less."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import Command, Result
from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions

CONTEXT: Final = 128
SAID: Final = {"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]}
END: Final = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def server(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    path = tiny_gguf(TinyOptions(context=CONTEXT)).path
    with live_server(tmp_path_factory.mktemp("served"), f"tiny={path}", "--threads", "1") as live:
        yield live


@pytest.fixture
def chat(twofold: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    def talk(url: str, *lines: str, flags: tuple[object, ...] = ()) -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
        return twofold("chat", "--url", url, "--temperature", 0, *flags)

    return talk


def test_run_completes_as_the_local_model(
    server: LiveServer, twofold: Command, tiny_gguf: Callable[[TinyOptions], TinyModel]
) -> None:
    path = tiny_gguf(TinyOptions(context=CONTEXT)).path
    flags = ("run", "in the", "-n", 6, "--temperature", 0, "--ignore-eos")
    here, there = twofold(*flags, "-m", path), twofold(*flags, "--url", server.url)
    assert (there.code, there.out) == (0, here.out)
    for said in ("Stopped at 6 tokens", "prompt tokens: TTFT", "6 output tokens: TPOT", "of the "):
        assert said in there.err
    raw = json.loads(twofold(*flags, "--url", server.url, "--raw", "--json").out)
    assert raw["usage"]["completion_tokens"] == 6
    assert raw["twofold"]["endpoint"] == "/v1/completions"


def test_structured_output_reaches_the_server(server: LiveServer, twofold: Command) -> None:
    assert twofold("run", "x", "--url", server.url, "--choice", "yes", "--choice", "no", "-q").out in ("yes\n", "no\n")
    schema = '{"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": false}'
    assert json.loads(twofold("run", "x", "--url", server.url, "--json-schema", schema).out) == {"a": 1}


def test_a_repetition_is_named_and_ended_by_the_server(
    server: LiveServer,
    twofold: Command,
    tiny_gguf: Callable[[TinyOptions], TinyModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path, flags = tiny_gguf(TinyOptions(context=CONTEXT)).path, ("--logit-bias", "40=100", "-n", 80, "--temperature", 0)
    plain = twofold("run", "in the", "--url", server.url, *flags).err
    assert "Stopped at 80 tokens" in plain
    assert "The answer repeats itself: 1 token, 80 times; --stop-loops ends that." in plain
    with live_server(tmp_path_factory.mktemp("loops"), f"tiny={path}", "--threads", "1", "--stop-loops") as live:
        ended = twofold("run", "in the", "--url", live.url, *flags).err
        found = json.loads(twofold("run", "in the", "--url", live.url, *flags, "--json").out)
        counted = live.get("/metrics").text
    assert "The answer repeats itself: 1 token, 64 times.\n" in ended
    assert "Stopped" not in ended
    record = found["twofold"]
    assert (found["finish_reason"], record["prompts"][0]["finish_reasons"]) == ("length", ["repetition"])
    assert record["repeats"] == {"tokens": 1, "times": 64}
    assert re.search(r'vllm:request_success_total\{[^}]*finished_reason="repetition"[^}]*\} 2\.0', counted)


def test_a_chat_goes_through_the_server(server: LiveServer, chat: Command) -> None:
    result = chat(
        server.url, "in the", "on the", "/models", "/timeline", "/model gone", flags=("-n", 4, "--ignore-eos")
    )
    assert result.code == 0
    assert result.out.count("\n") >= 2
    assert "* tiny" in result.err
    assert re.search(r"prefill .* rows? in 1 step;", result.err)
    assert "has no model 'gone'" in result.err


def test_a_full_context_drops_the_oldest_turns(server: LiveServer, chat: Command) -> None:
    result = chat(server.url, *["in the on the"] * 8, flags=("-n", 8, "--ignore-eos"))
    assert (result.code, "error" in result.err) == (0, False)
    assert "The context is full: the oldest " in result.err
    assert result.err.count("TTFT") == 8


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--threads", 2), 2, "--threads has no effect with --url"),
        (("--trace", "x.json"), 2, "--trace has no effect with --url"),
        (("-m", "tyni"), 2, "It has tiny."),
        (("--url", "http://127.0.0.1:1"), 5, "refused the connection"),
    ],
)
def test_errors_are_explained(
    flags: tuple[str, ...], code: int, said: str, server: LiveServer, twofold: Command
) -> None:
    url = () if "--url" in flags else ("--url", server.url)
    result = twofold("run", "x", *url, *flags)
    assert (result.code, result.out) == (code, "")
    assert said in result.err


class Other:
    """A server that sends fixed responses, and records requests."""

    def __init__(self, status: int, *events: object, models: object = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self._status, self._events, self._models = status, events, models

    def handler(self) -> type[BaseHTTPRequestHandler]:
        other = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(404 if other._models is None else 200, "application/json", json.dumps(other._models or {}))

            def do_POST(self) -> None:
                other.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                other.keys.append(self.headers["authorization"])
                if other._status != 200:
                    self._reply(other._status, "application/json", json.dumps(other._events[0]))
                    return
                body = "".join(
                    f"data: {event if event == '[DONE]' else json.dumps(event)}\n\n" for event in other._events
                )
                self._reply(200, "text/event-stream", body)

            def _reply(self, status: int, kind: str, body: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: ARG002
                return

        return Handler


@pytest.fixture
def serve() -> Iterator[Callable[[Other], str]]:
    opened: list[ThreadingHTTPServer] = []

    def start(other: Other) -> str:
        opened.append(ThreadingHTTPServer(("127.0.0.1", 0), other.handler()))
        threading.Thread(target=opened[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{opened[-1].server_port}/v1"

    yield start
    for each in opened:
        each.shutdown()
        each.server_close()


def test_a_server_that_reports_little(serve: Callable[[Other], str], twofold: Command) -> None:
    other = Other(200, SAID, END, "[DONE]")
    url = serve(other)
    result = twofold("run", "x", "--url", url, "-m", "theirs", "--api-key", "secret", "--top-k", 3)
    assert (result.code, result.out) == (0, "Hello\n")
    assert result.err.startswith("TTFT ")
    (asked,) = other.asked
    assert other.keys == ["Bearer secret"]
    assert (asked["model"], asked["top_k"], asked["stream"]) == ("theirs", 3, True)
    assert not {"temperature", "top_p", "min_p", "seed", "twofold", "repetition_penalty"} & asked.keys()
    assert twofold("run", "x", "--url", url, "-m", "theirs", "--temperature", 0.2, "--top-k", 0).code == 0
    assert (other.asked[1]["temperature"], other.asked[1]["top_k"]) == (0.2, 0), "what is given is sent"


def test_thinking_is_shown_but_not_sent_again(serve: Callable[[Other], str], chat: Command) -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm."}, "finish_reason": None}]}
    other = Other(200, thought, SAID, END, models={"data": [{"id": "theirs"}]})
    result = chat(serve(other), "x", "y", flags=("-q",))
    assert result.out == "<think>\nHm.\n</think>\n\nHello\n" * 2
    assert [message["content"] for message in other.asked[1]["messages"]] == ["x", "Hello", "y"]


@pytest.mark.parametrize(
    ("other", "code", "said"),
    [
        (Other(401, {"error": {"message": "No key."}}), 2, "--api-key"),
        (Other(404, {"error": {"message": "No such path."}}), 2, "No such path."),
        (Other(429, {"error": {"message": "Wait."}}), 4, "The server is busy: Wait."),
        (Other(500, {"error": {"message": "Broken."}}), 5, "status 500: Broken."),
        (Other(200, SAID), 5, "ended the stream before the completion was finished"),
        (Other(200, {"error": {"message": "Out of memory."}}), 5, "Out of memory."),
        (Other(200, "not JSON"), 5, "cannot be read"),
    ],
    ids=["401", "404", "429", "500", "cut", "error", "garbage"],
)
def test_failures_of_other_servers(
    other: Other, code: int, said: str, serve: Callable[[Other], str], twofold: Command
) -> None:
    result = twofold("run", "x", "--url", serve(other), "-m", "theirs")
    assert result.code == code
    assert said in result.err
    assert "Traceback" not in result.err


def test_the_engine_is_not_imported(tmp_path: Path) -> None:

    code = "import sys, twofold.cli.chat.remote; print({'numpy', 'llvmlite', 'tokenizers'} & sys.modules.keys() or '')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.strip() == ""
