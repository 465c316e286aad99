"""Texts of callers in fields, headers and paths appear in no log, metric or sum, and in errors only as short, useful
names."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server.live import live_server
from tests.server.trust.client import CHAT, MESSAGES, Client, Reply, chat, message
from tests.server.trust.keyed import KeyedServer, keyed_server
from tests.support.tiny import TinyModel
from twofold.api.names import UNDECLARED, declared_name
from twofold.server.routes import known_path

FIELDS: Final = (
    *("model", "user", "service_tier", "cache_salt", "tool_choice", "reasoning_effort", "response_format", "stop"),
    *("logit_bias", "metadata", "structured_outputs", "chat_template_kwargs", "seed", "n", "temperature"),
    *("stream_options", "priority", "tools", "twofold", "prompt_cache_key"),
)
HEADERS: Final = (
    *("authorization", "x-api-key", "traceparent", "tracestate", "user-agent", "cookie", "referer", "accept", "origin"),
    *("x-forwarded-for", "anthropic-version", "anthropic-beta", "openai-organization", "x-twofold-cache", "host"),
    *("content-type", "x-stainless-lang", "baggage", "forwarded", "content-encoding", "expect", "range"),
)
QUOTED: Final = 64


class Canaries:
    """Unique words, to be searched."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def new(self, place: str, secret: str = " secret") -> str:
        word = f"CANARY{len(self.places):04}ZZ{secret}"
        self.places[word.partition(" ")[0]] = place
        return word

    def found(self, text: str) -> set[str]:
        return {place for word, place in self.places.items() if word in text}


@pytest.fixture(scope="module")
def keyed(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    folder = tmp_path_factory.mktemp("canaries")
    with keyed_server(folder, f"tiny={tiny.path}", "--log-level", "debug", "--log-format", "json") as server:
        yield server


def _shapes(word: str) -> list[Any]:
    return [word, {word: 1}, [word], {"type": word}, {"regex": "(" + word}, {"json": {"$ref": "#/" + word}}, word * 50]


async def _ask_with(client: Client, canaries: Canaries) -> list[tuple[str, Reply]]:
    """Requests with a canary in every place; the place and the answer of each."""
    told: list[tuple[str, Reply]] = []
    for name in FIELDS:
        shapes = _shapes(canaries.new(name))
        told += [(name, await client.ask("POST", CHAT, chat("x", max_tokens=1) | {name: value})) for value in shapes]
    for name in HEADERS:
        for method, path, body in (("GET", "/v1/models", None), ("POST", CHAT, chat("x", max_tokens=1))):
            reply = await client.ask(method, path, body, **{_header(name): canaries.new(f"header {name}")})
            told.append((f"header {name}", reply))
    word = canaries.new("role").replace(" ", "_")
    bodies: tuple[tuple[str, Any], ...] = (
        (CHAT, chat() | {"messages": [{"role": word * 20, "content": "x"}]}),
        (CHAT, chat(canaries.new("prompt") * 200)),
        (MESSAGES, message() | {"messages": [{"role": word * 20, "content": "x"}]}),
        (MESSAGES, message() | {canaries.new("field of messages") * 20: 1}),
        ("/v1/completions", {"model": "tiny", "prompt": {canaries.new("prompt object"): 1}}),
        ("/v1/embeddings", {"model": "tiny", "input": canaries.new("input"), "dimensions": canaries.new("dimensions")}),
        ("/tokenize", {"prompt": canaries.new("tokenize"), "x" * 65 + canaries.new("field"): 1}),
        (CHAT, ('{"a": "' + canaries.new("broken JSON")).encode()),
    )
    told += [("body", await client.ask("POST", path, body)) for path, body in bodies]
    paths = ("/{}", "/v1/{}", "/v1/files/{}", "/v1/batches/{}", "/v1/models/{}", "/v1/responses/{}", "/health?{}")
    told += [("path", await client.get(path.format(canaries.new("path").replace(" ", "-") * 8))) for path in paths]
    plain = canaries.new("field", "")  # as a plain name
    for more in ({plain: 1}, {"logit_bias": {plain: 1}}, {"twofold": {plain: 1}}, {"structured_outputs": {plain: 1}}):
        told.append(("plain field", await client.ask("POST", CHAT, chat("x", max_tokens=1) | more)))
    for given in (canaries.new("request id", ""), f"req_{canaries.new('own request id', '')}"):
        told.append(("id", await client.ask("POST", CHAT, chat("x", max_tokens=1), x_request_id=given)))
        told.append(("id", await client.ask("POST", CHAT, chat("x", temperature=-1), x_request_id=given)))
    field = canaries.new("field of a form", "")
    part = f'--bb\r\nContent-Disposition: form-data; name="{field}"\r\n\r\nx\r\n--bb--\r\n'
    form = {"content_type": "multipart/form-data; boundary=bb"}
    told.append(("form", await client.ask("POST", "/v1/files", part.encode(), **form)))
    told.append(("method", await client.ask(canaries.new("method").replace(" ", ""), "/v1/models")))
    return told


def _header(name: str) -> str:
    return (
        name.title().replace("-", "_") if name in {"host", "content-type", "authorization"} else name.replace("-", "_")
    )


def test_canaries_appear_nowhere(keyed: KeyedServer) -> None:
    canaries = Canaries()

    async def ask() -> tuple[list[tuple[str, Reply]], list[Reply]]:
        client = keyed.client("alice")
        told = await _ask_with(client, canaries)
        other = keyed.client("bob")
        return told, [await other.get(path) for path in ("/metrics", "/v1/twofold/usage", "/v1/models")]

    told, pages = asyncio.run(ask())
    assert len(canaries.places) > 80
    for place, reply in told:
        text = reply.body.decode()
        if reply.status >= 400 and canaries.found(text):
            assert not place.startswith(("header", "method")), (place, text)
            assert len(text) <= 1200, (place, text)
            assert all(text.count(word) <= 2 + QUOTED // len(word) * 2 for word in canaries.places), (place, text)
        assert reply.status < 500 or reply.status == 503, (place, text)
    for page in pages:
        assert page.status == 200
        assert not canaries.found(page.body.decode())
    assert not canaries.found(keyed.live.log.read_text())


def test_a_request_id_is_taken_only_where_it_is_short_and_plain(keyed: KeyedServer) -> None:
    async def ask(name: str) -> str:
        reply = await keyed.client("alice").get("/v1/models", x_request_id=name)
        return reply.headers["x-request-id"]

    for name in ("a" * 65, "a b", "<script>", "ümlaut", "-a", "a/b"):
        assert asyncio.run(ask(name)).startswith("req_")
    assert asyncio.run(ask("trace-1.2_3")) in {"trace-1.2_3"} or asyncio.run(ask("trace-1.2_3")).startswith("req_")


def test_the_log_says_why_a_request_was_refused(keyed: KeyedServer) -> None:
    async def ask() -> None:
        client = keyed.client("alice")
        await client.chat(temprature=1)
        await client.chat(temperature=-1)
        await client.ask("POST", CHAT, chat() | {"a secret sentence": 1})
        await client.ask("POST", CHAT, chat() | {"stream": True, "stream_options": {"CANARY": 1}})
        await client.get("/v1/nowhere/at-all")
        await client.get("/v1/files/file-none/CANARY/x")
        await client.get("/CANARY")
        await client.get("/v1/files/file-none")
        await client.ask("POST", CHAT, chat() | {"model": "nobody"})

    asyncio.run(ask())
    expected = [
        (CHAT, 400, "unknown_parameter", UNDECLARED),
        (CHAT, 400, "invalid_value", "temperature"),
        (CHAT, 400, "unknown_parameter", UNDECLARED),
        (CHAT, 400, "unknown_parameter", f"stream_options.{UNDECLARED}"),
        ("unmatched /v1/…", 404, "not_found", None),
        ("unmatched /v1/files/{file_id}/…", 404, "not_found", None),
        ("unmatched /…", 404, "not_found", None),
        ("/v1/files/{file_id}", 404, "not_found", None),
        (CHAT, 404, "model_not_found", None),
    ]
    for _ in range(100):
        lines = [json.loads(line) for line in keyed.live.log.read_text().splitlines() if '"request"' in line]
        told = [
            (" ".join(filter(None, (line["endpoint"], line.get("path")))), *map(line.get, ("status", "error", "field")))
            for line in lines
        ]
        if told[-len(expected) :] == expected:
            break
        time.sleep(0.05)
    assert told[-len(expected) :] == expected


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("messages[3].content[0].text", None),
        ("tools[12].function.parameters", None),
        ("logit_bias.50", None),
        ("logit_bias.word", f"logit_bias.{UNDECLARED}"),
        ("logit_bias.123456789012", f"logit_bias.{UNDECLARED}"),
        ("a word", UNDECLARED),
        ("messages[0].word[1].content", f"messages[0].{UNDECLARED}"),
        ("", UNDECLARED),
        ("..", UNDECLARED),
        ("temperature." * 40, UNDECLARED),
    ],
)
def test_logs_repeat_declared_names_only(path: str, logged: str | None) -> None:
    assert declared_name(path) == (path if logged is None else logged)


def test_logs_show_the_part_of_a_path_that_a_route_begins_with() -> None:
    routes = ["/", "/health", "/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content", "/v1/chat/completions"]
    for path, shown in (
        ("/v1/chat/completion", "/v1/chat/…"),
        ("/v2/chat", "/…"),
        ("/v1/files/CANARY/x", "/v1/files/{file_id}/…"),
        ("/v1/files//x", "/v1/files/{file_id}/…"),
        ("CANARY", "/…"),
        ("/" * 99, "/…"),
    ):
        assert known_path(routes, path) == shown


def test_fields_left_out_are_logged_by_declared_names_alone(tiny: TinyModel, tmp_path: Path) -> None:
    arguments = (f"tiny={tiny.path}", "--unknown-fields", "warn", "--log-level", "debug")
    with live_server(tmp_path, *arguments, "--threads", "1") as live:
        field, kind = "CANARY0\n\x1b[2J forged line", "CANARY1 \x1b[2J"
        body = chat(max_tokens=1) | {field: 1, "plain_one": 1, "tools": [{"type": kind}]}
        reply = live.post(CHAT, body)
        assert reply.status_code == 200, reply.text
        assert "plain_one" in reply.headers["x-twofold-warning"]
    log = live.log.read_text()
    assert "omitted: " in log
    (line,) = (line for line in log.splitlines() if "omitted: " in line)
    assert set(line.partition("omitted: ")[2].partition('"')[0].split(", ")) == {UNDECLARED, "tools[0]"}, line
    assert "plain_one" not in log
    assert "CANARY" not in log
    assert "\x1b[2J" not in log
