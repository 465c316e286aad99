"""/v1/compress, and chats whose messages are compressed first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients.conftest import LONG, TINY
from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold.server.edge.keys import add_key
from twofold.server.edge.quotas import Quota

TEXT = "The river the. And one of it. Then two is the. Here in three. Now comes a four. Last a five."
FENCE = "```\ncode. More code.\n```"
ASK = {"role": "user", "content": "What is one? And two?"}


def compressed(server: LiveServer, **body: Any) -> Any:
    reply = server.post("/v1/compress", {"model": TINY, "text": TEXT, "force": True, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_text_keeps_half_of_its_tokens(server: LiveServer) -> None:
    response = compressed(server, twofold={"explain": True})
    report = response["compression"]
    assert response["text"] == "".join(TEXT[start:end] for start, end in response["kept"])
    assert report["applied"]
    assert 0 < report["tokens_after"] <= report["tokens_before"] / 2
    assert report["seconds"] > 0
    assert response["usage"]["prompt_tokens"] == response["twofold"]["tokens"]["prompt"] > report["tokens_before"]
    assert response["twofold"]["endpoint"] == "/v1/compress"


def test_questions_and_protected_parts(server: LiveServer) -> None:
    asked = compressed(server, question="What is one?")
    assert asked["usage"]["prompt_tokens"] > 2 * asked["compression"]["tokens_before"]
    kept = compressed(server, keep=0.2, protect=["Now comes a four.", [0, 14]])["text"]
    assert "Now comes a four." in kept
    assert kept.startswith(TEXT[:14])
    assert FENCE in compressed(server, text=f"{TEXT}\n{FENCE}\n{TEXT}", keep=0.1)["text"]


def test_it_declines_where_the_same_model_reads_the_text(server: LiveServer) -> None:
    for _ in range(8):  # so that its step times are known
        server.post("/v1/completions", {"model": TINY, "prompt": "the", "max_tokens": 8})
    for _ in range(40):
        response = compressed(server, force=False)
        if response["compression"]["cost_s"] is not None:
            break
    report = response["compression"]
    assert not report["applied"]
    assert report["saving_s"] <= report["cost_s"]
    assert "no more than" in report["reason"]
    assert response["text"] == TEXT
    assert response["kept"] == [[0, len(TEXT)]]
    assert response["usage"]["prompt_tokens"] == 0
    assert compressed(server, force=False, target="coder")["compression"]["reason"]


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"text": ""}, "text", "text"),
        ({"text": "  "}, "text", "is empty"),
        ({"text": "One sentence"}, "text", "single sentence"),
        ({"text": "\x00\x01\x02 abc"}, "text", "binary"),
        ({"text": FENCE + "\n\n" + FENCE}, "text", "protected"),
        ({"keep": 0}, "keep", "above 0"),
        ({"keep": 1}, "keep", "between 0 and 1"),
        ({"keep": "half"}, "keep", "number"),
        ({"question": " "}, "question", "question"),
        ({"question": "why " * 300}, "question", "tokens"),
        ({"protect": [[0, 1000]]}, "protect", "is no range"),
        ({"protect": [[0, 9], [5, 12]]}, "protect", "overlap"),
        ({"protect": ["absent"]}, "protect", "does not occur"),
        ({"protect": [[1, 2, 3]]}, "protect[0]", "a list of 2 entries"),
        ({"kept": 0.5}, "kept", "keep"),
    ],
)
def test_impossible_requests(server: LiveServer, body: dict[str, Any], param: str, says: str) -> None:
    reply = server.post("/v1/compress", {"model": TINY, "text": TEXT, **body})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_unknown_models_and_large_bodies(server: LiveServer) -> None:
    for field in ("model", "target"):
        assert server.post("/v1/compress", {"text": TEXT, field: "nothing"}).status_code == 404
    assert server.post("/v1/compress", {"model": TINY, "text": "a. " * 3_400_000}).status_code == 413


def chat(server: LiveServer, compress: Any, **body: Any) -> Any:
    messages = [
        {"role": "system", "content": TEXT},
        {"role": "user", "content": f"{TEXT}\n{FENCE}\n{TEXT}"},
        {"role": "assistant", "content": [{"type": "text", "text": TEXT}]},
        ASK,
    ]
    default = {"model": TINY, "messages": messages, "max_tokens": 4, "compress": compress}
    return server.post("/v1/chat/completions", default | body)


def test_a_chat_is_compressed_only_where_it_asks(server: LiveServer) -> None:
    plain = chat(server, None)
    whole = plain.json()["usage"]["prompt_tokens"]
    assert "compression" not in plain.json()["usage"]
    assert "x-twofold-compression" not in plain.headers
    for roles in (["user"], ["user", "assistant"]):
        reply = chat(server, {"keep": 0.5, "roles": roles, "force": True}, twofold={"explain": True})
        used, record = reply.json()["usage"], reply.json()["twofold"]
        report = used["compression"]
        assert record["compression"] == report
        assert report["applied"]
        assert report["tokens_after"] <= report["tokens_before"] / 2 + 2
        saved = report["tokens_before"] - report["tokens_after"]
        assert used["prompt_tokens"] == pytest.approx(whole - saved, abs=4)
        counts = f"applied; tokens={report['tokens_before']}, {report['tokens_after']}"
        assert reply.headers["x-twofold-compression"] == counts
        scored = server.get(f"/v1/twofold/requests/{reply.headers['x-request-id']}-compress").json()
        assert scored["endpoint"] == "/v1/compress"
        assert scored["tokens"]["prompt"] > report["tokens_before"]


def test_what_a_chat_sends_is_the_compressed_text(server: LiveServer) -> None:
    """Its completion is that of a chat with the text that /v1/compress returns."""
    messages = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "one"}, ASK]
    asked = {"model": TINY, "max_tokens": 8, "temperature": 0}
    compress = {"roles": ["user"], "force": True, "keep": 0.4}
    one = server.post("/v1/chat/completions", asked | {"messages": messages, "compress": compress}).json()
    messages[0] = {"role": "user", "content": compressed(server, keep=0.4, question=ASK["content"])["text"]}
    other = server.post("/v1/chat/completions", asked | {"messages": messages}).json()
    assert one["choices"] == other["choices"]
    assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]


def test_a_streamed_chat_reports_it_too(server: LiveServer) -> None:
    reply = chat(server, {"roles": ["user"], "force": True}, stream=True, stream_options={"include_usage": True})
    assert '"compression":{"applied":true' in reply.text
    assert reply.headers["x-twofold-compression"].startswith("applied")


@pytest.mark.parametrize(
    ("compress", "says"),
    [
        ({"roles": ["user"], "min_tokens": 5000}, "fewer than min_tokens 5,000"),
        ({"roles": ["tool"], "force": True}, "No message has a sentence"),
    ],
)
def test_a_chat_says_why_it_is_not_compressed(server: LiveServer, compress: Any, says: str) -> None:
    reply = chat(server, compress)
    report = reply.json()["usage"]["compression"]
    assert not report["applied"]
    assert says in report["reason"]
    assert report["tokens_before"] == report["tokens_after"]
    assert reply.json()["usage"]["prompt_tokens"] == chat(server, None).json()["usage"]["prompt_tokens"]
    assert reply.headers["x-twofold-compression"].startswith("declined")


@pytest.mark.parametrize(
    ("compress", "param", "status"),
    [
        ({}, "compress.roles", 400),
        ({"roles": []}, "compress.roles", 400),
        ({"roles": ["system"]}, "compress.roles[0]", 400),
        ({"roles": ["user"], "keep": 1.5}, "keep", 400),
        ({"roles": ["user"], "min_tokens": -1}, "compress.min_tokens", 400),
        ({"roles": ["user"], "ratio": 2}, "compress.ratio", 400),
        ({"roles": ["user"], "model": "nothing"}, None, 404),
    ],
)
def test_impossible_compression_of_chats(server: LiveServer, compress: Any, param: str | None, status: int) -> None:
    reply = chat(server, compress)
    assert reply.status_code == status, reply.text
    if param is not None:
        assert reply.json()["error"]["param"] == param


def test_scoring_counts_for_the_quota_of_the_key(
    server: LiveServer, tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path
) -> None:
    """A quota that holds the scoring of a chat, or the chat, does not hold both."""
    compress = {"roles": ["user"], "force": True}
    free = chat(server, compress)
    scored = server.get(f"/v1/twofold/requests/{free.headers['x-request-id']}-compress").json()["tokens"]["prompt"]
    assert free.json()["usage"]["total_tokens"] > 100
    keys, now, quota = tmp_path / "keys.toml", datetime.now(UTC), Quota(tokens_per_minute=scored + 20)
    plain, asking = (add_key(keys, name, now=now, quota=quota)[1] for name in ("plain", "asking"))
    models = (f"{TINY}={tiny_gguf(LONG).path}", "--threads", "1", "--api-keys", str(keys))
    with live_server(tmp_path, *models) as live:
        assert live.post("/v1/compress", {"text": TEXT}).status_code == 401
        messages = [{"role": "user", "content": TEXT}, ASK]
        for key, field, status in ((plain, None, 200), (asking, compress, 429)):
            headers = {"authorization": f"Bearer {key}"}
            body = {"model": TINY, "max_tokens": 4, "compress": field}
            text = [{"role": "user", "content": f"{TEXT}\n{FENCE}\n{TEXT}"}, messages[1]]
            assert live.post("/v1/chat/completions", body | {"messages": text}, headers=headers).status_code == status
        (total,) = live.get("/v1/twofold/usage", headers={"authorization": f"Bearer {asking}"}).json()["data"]
        assert total["fresh"] + total["cached"] >= scored
