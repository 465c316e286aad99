"""POST /v1/twofold/estimate: the forecast is close to what follows, and the request changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.live import LiveServer
from twofold.core.report import RequestMetrics
from twofold.server.estimates import Estimates

PATH = "/v1/twofold/estimate"


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "ignore_eos": True, **more}


def estimate(server: LiveServer, body: dict[str, Any]) -> dict[str, Any]:
    reply = server.post(PATH, body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def usage(server: LiveServer, body: dict[str, Any]) -> tuple[int, int]:
    """Tokens of a chat's prompt, and how many of them were cached."""
    counts = server.post("/v1/chat/completions", body).json()["usage"]
    return counts["prompt_tokens"], counts["prompt_tokens_details"]["cached_tokens"]


def test_an_estimate_tells_the_tokens_that_then_come_and_changes_nothing(server: LiveServer) -> None:
    body = chat("A text that is longer than some blocks of the cache, and that no other test sends: estimate.")
    first, second = estimate(server, body), estimate(server, body)
    assert first["cached_tokens"] == second["cached_tokens"], "looking caches nothing"
    assert usage(server, body) == (first["prompt_tokens"], first["cached_tokens"])
    again = estimate(server, body)
    assert again["cached_tokens"] > first["cached_tokens"]
    assert usage(server, body) == (again["prompt_tokens"], again["cached_tokens"])
    assert estimate(server, {**body, "cache_salt": "another"})["cached_tokens"] == 0
    assert (again["ahead"], again["output_tokens"] <= 8) == (0, True)


def test_times_add_up_and_the_error_is_that_of_estimates_whose_requests_followed(server: LiveServer) -> None:
    for number in range(3):
        body = chat(f"Estimate number {number}")
        response = estimate(server, body)
        server.post("/v1/chat/completions", body)
    response = estimate(server, chat("one more", twofold={"compare_prices": ["openai/gpt-5"]}))
    assert (response["schema"], response["error_of"]) == ("twofold.estimate/1", "ttft")
    assert response["error"] >= 0
    assert response["ttft_s"] >= response["queue_s"] >= 0
    assert response["e2e_s"] == pytest.approx(response["ttft_s"] + response["tpot_s"] * (response["output_tokens"] - 1))
    assert response["cost"] is None, "the server has no price sheet"
    (other,) = response["at_prices"]
    tokens = 1.25 * response["prompt_tokens"] + 10 * response["output_tokens"]
    assert (other["model"], other["total"]) == ("openai/gpt-5", pytest.approx(tokens / 1e6))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        (chat("a", model="nothing"), 404),
        (chat("a" * 4000), 400),
        (chat("a", compress={"roles": ["user"]}), 400),
    ],
    ids=["empty", "model", "long", "compress"],
)
def test_what_a_chat_may_not_say_an_estimate_may_not(server: LiveServer, body: dict[str, Any], status: int) -> None:
    assert server.post(PATH, body).status_code == status


def test_the_error_counts_only_requests_that_were_estimated() -> None:
    estimates = Estimates()
    report = RequestMetrics(1.0, 1.0, 1.5, 2.0, ((1.5, 2.0),), 3)
    estimates.expect("key", "m", [1, 2, 3], 0.25)
    assert estimates.match("key", "m", [1, 2]) is None
    assert estimates.match("other", "m", [1, 2, 3]) is None
    found = estimates.match("key", "m", [1, 2, 3])
    assert found == 0.25
    assert estimates.match("key", "m", [1, 2, 3]) is None, "it counts once"
    estimates.learn("m", [report], None)
    assert (estimates.error("m"), estimates.output_tokens("m")) == (None, 2.0)
    estimates.learn("m", [report], found)
    assert estimates.error("m") == pytest.approx(0.5)
