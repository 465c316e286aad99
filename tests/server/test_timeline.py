"""Tokens by time in chats: the chunks, the record of the last chunk, and the record that is kept agree."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec import UNSET

from tests.server.live import LiveServer
from twofold.core.errors import ParameterError
from twofold.core.report import RequestMetrics
from twofold.core.timeline import RequestSteps, RequestTimeline
from twofold.observe.served import ServedRequest
from twofold.planner.price.catalog import read_table
from twofold.server.accounting import RecentRequests
from twofold.server.reference_prices import ReferencePrices

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi there"}], "max_tokens": 12, "seed": 7}
TOKENS = {"tokens": True}


def streamed(server: LiveServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = server.post("/v1/chat/completions", {**body, "stream": True})
    assert reply.status_code == 200, reply.text
    events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [orjson.loads(event) for event in events[:-1]]


@pytest.mark.parametrize(
    "more",
    [{"n": 2}, {"logprobs": True, "top_logprobs": 3}, {"structured_outputs": {"regex": "[a-c]{3}:7=[0-9]"}}],
    ids=["n", "logprobs", "grammar"],
)
def test_chunks_record_and_reply_agree_token_by_token(server: LiveServer, more: dict[str, Any]) -> None:
    body = {**CHAT, **more, "twofold": TOKENS}
    *chunks, last = streamed(server, body)
    record = last["twofold"]
    timeline = record["timeline"]
    whole = server.post("/v1/chat/completions", {**body, "return_token_ids": True}).json()
    assert len(whole["choices"]) == more.get("n", 1)
    for choice in whole["choices"]:
        index = choice["index"]
        mine = [c for c in chunks if c["choices"][0]["index"] == index and "twofold" in c]
        assert [token for c in mine for token in c["choices"][0]["token_ids"]] == choice["token_ids"]
        assert [at for c in mine for at in c["twofold"]["t_ms"]] == timeline["token_ms"][index]
        assert [c["twofold"]["step"] for c in mine for _ in c["twofold"]["t_ms"]] == timeline["step"][index]
        assert "".join(c["twofold"]["from"] for c in mine) == timeline["from"][index]
        assert len(timeline["from"][index]) == len(choice["token_ids"])
        assert whole["twofold"]["timeline"]["from"][index].replace("s", "d") == timeline["from"][index].replace(
            "s", "d"
        )
    (prompt,) = record["prompts"]
    steps = timeline["steps"]
    assert sum(steps["own_prompt_rows"]) == prompt["prefill"]["rows"]
    assert sum(steps["own_answer_rows"]) == prompt["decode"]["rows"]
    first, ends = min(times[0] for times in timeline["token_ms"]), max(times[-1] for times in timeline["token_ms"])
    assert first == pytest.approx(prompt["ttft_s"] * 1000, abs=0.001)
    assert ends - first == pytest.approx(prompt["decode_s"] * 1000, abs=0.002)
    if "structured_outputs" in more:
        assert "ggg" in timeline["from"][0]


def test_the_kept_record_is_that_of_the_last_chunk(server: LiveServer) -> None:
    body = {**CHAT, "stream": True, "twofold": {**TOKENS, "compare_prices": ["claude-sonnet-4-6", "openai/gpt-5"]}}
    reply = server.post("/v1/chat/completions", body)
    told = orjson.loads(reply.text.split("\n\n")[-3].removeprefix("data: "))["twofold"]
    kept = server.get(f"/v1/twofold/requests/{reply.headers['x-request-id']}").json()
    assert kept | {"seconds": 0} == told | {"seconds": 0}
    first, second = told["at_prices"]
    assert (first["model"], first["currency"]) == ("anthropic/claude-sonnet-4-6", "USD")
    by_kind = {line["kind"]: line for line in first["lines"]}
    tokens = told["tokens"]
    assert by_kind["input"]["quantity"] == tokens["prompt"], "the prefix is too short for that model's cache"
    assert first["total"] == pytest.approx((3 * tokens["prompt"] + 15 * tokens["output"]) / 1e6)
    assert second["model"] == "openai/gpt-5"


def test_a_token_is_made_at_the_end_of_its_step_on_the_clock_of_the_live_stream(server: LiveServer) -> None:
    timeline = streamed(server, {**CHAT, "twofold": TOKENS})[-1]["twofold"]["timeline"]
    with server.client() as client, client.stream("GET", "/v1/twofold/live") as live:
        hello = next(orjson.loads(line[6:]) for line in live.iter_lines() if line.startswith('data: {"schema"'))
    arrival_ms = 1e3 * (timeline["arrival_s"] - hello["zero"])
    ends: dict[int, float] = {}
    for number, times, end in zip(*(hello["steps"][name] for name in ("n", "times", "end")), strict=True):
        ends |= dict.fromkeys(range(number, number + times), end)
    for number, at in zip(timeline["step"][0], timeline["token_ms"][0], strict=True):
        assert arrival_ms + at <= ends[number] + 0.01
    assert arrival_ms + timeline["token_ms"][0][-1] == pytest.approx(ends[timeline["step"][0][-1]], abs=0.01)


def test_nothing_is_told_that_was_not_asked_for(server: LiveServer) -> None:
    assert not any("twofold" in chunk for chunk in streamed(server, CHAT))
    record = server.post("/v1/chat/completions", {**CHAT, "twofold": {"explain": True}}).json()["twofold"]
    assert not {"timeline", "at_prices"} & record.keys()


def test_an_unknown_model_to_compare_with_is_refused_with_the_closest_name(server: LiveServer) -> None:
    refused = server.post("/v1/chat/completions", {**CHAT, "twofold": {"compare_prices": ["claude-sonet-4-6"]}})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "twofold.compare_prices"
    assert "claude-sonnet-4-6" in error["message"]
    references = ReferencePrices(read_table())
    with pytest.raises(ParameterError):
        references.find(["nothing like that"])
    assert "openai/gpt-5" in server.get("/v1/twofold/server").json()["prices"]["reference"]


def test_recent_requests_are_listed_newest_first(server: LiveServer) -> None:
    ids = [server.post("/v1/chat/completions", CHAT).headers["x-request-id"] for _ in range(3)]
    first = server.get("/v1/twofold/requests?limit=2").json()
    assert [one["id"] for one in first["data"]] == [ids[2], ids[1]]
    assert first["has_more"]
    second = server.get(f"/v1/twofold/requests?limit=1&before={ids[1]}").json()
    assert [one["id"] for one in second["data"]] == [ids[0]]
    (prompt,) = server.get(f"/v1/twofold/requests/{ids[0]}").json()["prompts"]
    listed = second["data"][0]
    same = ("prompt_tokens", "cached_tokens", "output_tokens", "queue_s", "prefill_s", "decode_s", "ttft_s")
    assert {name: listed[name] for name in same} == {name: prompt[name] for name in same}
    for phase, share in listed["shares"].items():
        assert share == pytest.approx(prompt[phase]["roofline_share"])
    for query, param in (("before=never", "before"), ("limit=0", "limit"), ("after=1", "after")):
        refused = server.get(f"/v1/twofold/requests?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_old_timelines_are_dropped_and_records_stay() -> None:
    recent = RecentRequests(max_timed=10)
    for number in range(4):
        steps = RequestSteps(number=[1, 2])
        made = RequestTimeline(steps, ((1, 2),), ("dd",))
        report = RequestMetrics(0.0, 0.0, 0.1, 0.2, ((0.1, 0.2),), 1, timeline=made)
        recent.add(ServedRequest(f"r{number}", "/v1", "openai", "t", "k", 0.0, model="m", reports=(report,)))
    timed = [recent.data("t", f"r{number}").timeline is not UNSET for number in range(4)]
    assert timed == [False, False, True, True]
    assert recent.page("t", 9, None).data[0].id == "r3"
    assert not recent.page("other", 9, None).data
