"""Warnings in summaries: when they appear, and when not."""

from __future__ import annotations

from dataclasses import replace

from tests.bench.metrics.samples import record, sample, steady
from twofold.bench.load.base import PromptMessage, Shared
from twofold.bench.metrics.summary import Summary, summarise
from twofold.bench.record import UNKNOWN, RequestSample


def kinds(summary: Summary) -> dict[str, str]:
    return {note.kind: note.text for note in summary.notes}


def test_percentiles_of_too_few_requests_are_one_note() -> None:
    few = kinds(summarise(record(steady(100, 0.01, 0.1), 1.0)))["few_requests"]
    assert few == "P99 and P99.9 are unreliable with 100 requests: a 95% confidence bound needs 299 and 2,995"
    more = kinds(summarise(record(steady(400, 0.01, 0.1), 4.0)))["few_requests"]
    assert more.startswith("P99.9 is unreliable with 400 requests")


def test_as_many_chunks_as_tokens_are_one_each() -> None:
    """Then nothing is assumed, although the server reports no chunk's tokens."""
    silent = [UNKNOWN] * 3
    even = summarise(record([sample(0.0, [1.0, 1.1, 1.2], tokens=silent, usage=3)], 2.0))
    assert even.itl.assumed_share == 0
    assert "assumed_tokens" not in kinds(even)
    assert even.itl.token_s.n == 2
    for usage in (6, None):
        parts = summarise(record([sample(0.0, [1.0, 1.1, 1.2], tokens=silent, usage=usage)], 2.0))
        assert parts.itl.assumed_share == 1
        assert "100%" in kinds(parts)["assumed_tokens"]


def cached(tokens: int) -> RequestSample:
    return sample(0.0, [1.0, 1.1], asked=(100, 4), response={"prompt_tokens": 100, "cached_tokens": tokens})


def test_prompts_in_the_cache_of_the_server() -> None:
    assert "80%" in kinds(summarise(record([cached(80)], 2.0)))["seen_before"]
    assert "seen_before" not in kinds(summarise(record([cached(10)], 2.0)))


def test_a_cached_chat_template_is_no_warning() -> None:
    """25 of 32 tokens that all prompts share, whether they are known beforehand or only the server counts them."""
    short = sample(0.0, [1.0, 1.1], asked=(32, 4), response={"prompt_tokens": 32, "cached_tokens": 25})
    assert "seen_before" in kinds(summarise(record([short], 2.0)))
    assert "seen_before" not in kinds(summarise(record([short], 2.0), template=25))
    uncounted = sample(0.0, [1.0, 1.1], asked=(7, 4), response={"prompt_tokens": 32, "cached_tokens": 25})
    assert "seen_before" not in kinds(summarise(record([uncounted], 2.0)))
    seen = sample(0.0, [1.0, 1.1], asked=(32, 4), response={"prompt_tokens": 32, "cached_tokens": 31})
    assert "86%" in kinds(summarise(record([seen], 2.0), template=25))["seen_before"]


def test_shared_prefixes_may_be_cached() -> None:
    ask = cached(80).ask
    for common in (
        {"shared": (Shared(0, 8),)},
        {"history": (PromptMessage("user", "a"),)},
        {"messages": (PromptMessage("user", "a"),)},
    ):
        given = cached(80)
        given.ask = replace(ask, **common)
        assert "seen_before" not in kinds(summarise(record([given], 2.0)))
