"""Servers as users start them: response cache, prices, several models, records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import TINY
from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions

CHAT = "/v1/chat/completions"
SHEET = """
currency = "EUR"
[default]
input = 1000000
output = 2000000
"""


@pytest.fixture(scope="module")
def shop(
    tiny: TinyModel, tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """Two models, prices, and kept answers."""
    folder = tmp_path_factory.mktemp("shop")
    sheet = folder / "prices.toml"
    sheet.write_text(SHEET)
    other = tiny_gguf(TinyOptions("qwen2", vocab=TINY.vocab, context=TINY.context, seed=1))
    models = (f"tiny={tiny.path}", f"other={other.path}")
    flags = ("--threads", "1", "--price-sheet", str(sheet), "--response-cache", "4")
    with live_server(folder, *models, *flags) as live:
        yield live


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


def mark(response: httpx2.Response) -> str | None:
    assert response.status_code == 200, response.text
    found: str | None = response.headers.get("x-twofold-cache")
    return found


def test_an_exact_repeat_of_a_determined_request_is_answered_from_the_cache(shop: LiveServer) -> None:
    first = shop.post(CHAT, chat("repeat", temperature=0))
    again = shop.post(CHAT, chat("repeat", temperature=0, user="somebody"))
    assert (mark(first), mark(again)) == (None, "hit")
    assert first.json()["choices"] == again.json()["choices"]
    streamed = shop.post(CHAT, chat("repeat", temperature=0, stream=True))
    assert mark(streamed) == "hit"
    assert "[DONE]" in streamed.text
    assert mark(shop.post(CHAT, chat("repeat!", temperature=0))) is None
    skipped = shop.post(CHAT, chat("repeat", temperature=0), headers={"x-twofold-cache": "skip"})
    assert mark(skipped) is None
    page = shop.get("/metrics").text
    assert 'twofold:response_cache_requests_total{engine="0",model_name="tiny",result="hit"} 2.0' in page


def test_a_sampled_request_is_cached_only_by_its_choice(shop: LiveServer) -> None:
    assert [mark(shop.post(CHAT, chat("draw"))) for _ in range(2)] == [None, None]
    keep = {"x-twofold-cache": "keep"}
    assert [mark(shop.post(CHAT, chat("keep"), headers=keep)) for _ in range(2)] == [None, "hit"]
    wrong = shop.post(CHAT, chat("draw"), headers={"x-twofold-cache": "perhaps"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-twofold-cache")


def test_money_and_record_of_a_request(shop: LiveServer) -> None:
    """A million EUR a million tokens: one each."""
    response = shop.post(CHAT, chat("what does this cost?", twofold={"explain": True}, service_tier="flex"))
    reply = response.json()
    prompt, cached = reply["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    record = reply["twofold"]
    assert record["cost"]["currency"] == "EUR"
    assert record["cost"]["total"] == pytest.approx(0.5 * (prompt - cached + 0.1 * cached + 2 * 4))
    assert reply["service_tier"] == record["service_tier"] == "flex"
    (phases,) = record["prompts"]
    assert phases["queue_s"] >= 0
    assert phases["prefill_s"] + phases["decode_s"] <= record["seconds"]
    assert phases["prefill"]["rows"] == prompt - cached
    assert phases["decode"]["rows"] == 3
    assert phases["decode"]["roofline_share"] > 0
    afterwards = shop.get(f"/v1/twofold/requests/{response.headers['x-request-id']}").json()
    assert (afterwards["cost"], afterwards["tokens"]) == (record["cost"], record["tokens"])
    assert shop.get("/v1/twofold/requests/req_nobody").status_code == 404
    sums = shop.get("/v1/twofold/usage", params={"by": "tier"}).json()["data"]
    assert any(entry["tier"] == "flex" and entry["cost"] > 0 for entry in sums)


def test_a_streamed_reply_may_carry_its_record(shop: LiveServer) -> None:
    text = shop.post(CHAT, chat("stream", stream=True, twofold={"explain": True})).text
    assert '"twofold":{"id":"req_' in text


def test_models_are_loaded_when_they_are_asked_for(shop: LiveServer) -> None:
    states = {model["id"]: model["state"] for model in shop.get("/v1/models").json()["data"]}
    assert states == {"tiny": "ready", "other": "unloaded"}
    reply = shop.post(CHAT, chat("hello", model="other")).json()
    assert reply["model"] == "other"
    assert shop.get("/v1/models/other").json()["state"] == "ready"
    missing = shop.post(CHAT, chat("hello", model="othr"))
    assert missing.status_code == 404
    assert "Did you mean 'other'?" in missing.json()["error"]["message"]


def test_texts_become_tokens_and_texts_again(shop: LiveServer) -> None:
    reply = shop.post("/tokenize", {"prompt": "hello there", "return_token_strs": True}).json()
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert reply["max_model_len"] == TINY.context
    assert shop.post("/detokenize", {"tokens": reply["tokens"]}).json() == {"prompt": "hello there"}
    templated = shop.post("/tokenize", {"messages": [{"role": "user", "content": "hello"}]}).json()
    assert templated["tokens"][0] == 1
    body = {"messages": [{"role": "user", "content": "hello"}], "add_generation_prompt": True}
    assert shop.post("/tokenize", {**body, "add_special_tokens": False}).json() == templated
    assert shop.post("/detokenize", {"tokens": [TINY.vocab]}).status_code == 400


def test_a_server_says_what_it_is(shop: LiveServer) -> None:
    assert shop.get("/health").json() == {"status": "ok"}
    assert shop.get("/ready").status_code == 200
    assert set(shop.get("/version").json()) == {"version"}
    nowhere = shop.get("/v1/modls")
    assert nowhere.status_code == 404
    assert "/v1/models" in nowhere.json()["error"]["message"]
    with shop.client() as client:
        wrong = client.put("/v1/models")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")


def test_the_server_shuts_down_on_request(tiny: TinyModel, tmp_path: Path) -> None:
    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1") as live:
        assert live.post(CHAT, chat("hello")).status_code == 200
        assert live.end() == 0
    assert b"Traceback" not in live.log.read_bytes()


def test_a_second_server_starts_with_the_same_defaults(tiny: TinyModel, tmp_path: Path) -> None:
    """Each finds what it keeps again; nothing is locked."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    flags = ("--threads", "1", "--response-cache", "4")
    environment = {"XDG_DATA_HOME": str(tmp_path / "share")}
    with (
        live_server(folders[0], f"tiny={tiny.path}", *flags, environment=environment, own_data=False) as one,
        live_server(folders[1], f"tiny={tiny.path}", *flags, environment=environment, own_data=False) as two,
    ):
        made = [server.post("/v1/responses", {"model": "tiny", "input": "hi"}).json()["id"] for server in (one, two)]
        assert [one.get(f"/v1/responses/{id}").status_code for id in made] == [200, 404]
        assert [two.get(f"/v1/responses/{id}").status_code for id in made] == [404, 200]
        assert "Another server uses" in two.log.read_text()
        assert "Another server uses" not in one.log.read_text()


def test_omitted_fields_are_named_in_a_header_and_in_the_log(server: LiveServer) -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {"type": "object"}}]
    body = {"model": "tiny", "input": "hi", "tools": tools, "max_output_tokens": 16, "client_metadata": {"a": "b"}}
    for more in ({}, {"stream": True}):
        answer = server.post("/v1/responses", {**body, **more})
        assert answer.status_code == 200, answer.text
        omitted = answer.headers["x-twofold-warning"]
        assert omitted.startswith("omitted: tools[0] of type web_search")
        assert "client_metadata" in omitted
    assert "omitted: tools[0]" in server.log.read_text()
    assert "type web_search" not in server.log.read_text(), "no word of a caller is logged"
    assert "x-twofold-warning" not in server.post(CHAT, chat("plain")).headers
    assert server.post(CHAT, chat("typo", temprature=1)).status_code == 400


def test_moved_system_messages_are_told_in_a_header(tiny: TinyModel, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    late = [*turns, {"role": "system", "content": "Be kind."}, turns[0]]
    counted = {"model": "tiny", "messages": late}
    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--chat-template", "gemma") as live:
        asked: list[tuple[str, dict[str, Any]]] = [
            (CHAT, {**counted, "max_tokens": 2}),
            (CHAT, {**counted, "max_tokens": 2, "stream": True}),
            ("/v1/messages", {**counted, "max_tokens": 2}),
            ("/v1/messages/count_tokens", counted),
            ("/v1/responses", {"model": "tiny", "input": late, "max_output_tokens": 16}),
            ("/api/chat", {**counted, "stream": False, "options": {"num_predict": 2}}),
            ("/tokenize", counted),
        ]
        for path, body in asked:
            answer = live.post(path, body)
            assert answer.status_code == 200, answer.text
            assert "system messages joined" in answer.headers["x-twofold-warning"], path
        assert "x-twofold-warning" not in live.post(CHAT, {**counted, "messages": turns[:1], "max_tokens": 2}).headers


def test_what_of_a_schema_cannot_be_enforced_is_named_in_a_header(server: LiveServer) -> None:
    """In a tool that is not strict, and in a format."""
    schema = {"properties": {"b": {"type": "string", "pattern": "(?!x)", "format": "money", "maxLength": 1}}, "not": {}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "format": "money"}}}
    asked = {"tools": [tool], "tool_choice": "required", "max_tokens": 200}
    for more, named in (
        (asked, [f"{part} in the schema of f is not enforced" for part in ("format money", "pattern", "not")]),
        ({"response_format": form, "max_tokens": 20}, ["format money in the schema of the completion is not enforced"]),
    ):
        answer = server.post(CHAT, chat("Hi", **more))
        assert answer.status_code == 200, answer.text
        assert all(name in answer.headers["x-twofold-warning"] for name in named), answer.headers


def test_a_structured_output_that_its_limit_may_cut_is_told_in_a_header_and_in_the_record(server: LiveServer) -> None:
    schema = {"type": "string", "minLength": 100_000}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for more in ({}, {"stream": True}):
        answer = server.post(CHAT, chat("Hi", response_format=form, max_tokens=20, **more))
        assert answer.status_code == 200, answer.text
        assert "max_tokens may cut the structured output" in answer.headers["x-twofold-warning"]
        assert '"finish_reason":"length"' in answer.text.replace(" ", "")
        record = server.get(f"/v1/twofold/requests/{answer.headers['x-request-id']}").json()
        assert [prompt["open_ended"] for prompt in record["prompts"]] == [True]
    form["json_schema"]["schema"] = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}  # type: ignore[index]
    assert "no complete output" in server.post(CHAT, chat("Hi", response_format=form, max_tokens=20)).text
    answer = server.post(CHAT, chat("Hi", response_format={"type": "json_object"}, max_tokens=20))
    assert "x-twofold-warning" not in answer.headers


def test_a_server_may_ignore_unknown_fields(tiny: TinyModel, tmp_path: Path) -> None:
    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--unknown-fields", "warn") as live:
        answer = live.post(CHAT, chat("typo", **{"temprature": 1, "\u00fc\r\n": 2}))
        assert answer.status_code == 200
        assert answer.headers["x-twofold-warning"] == "omitted: temprature, '\\xfc\\r\\n'"
