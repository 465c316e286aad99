"""Anthropic's client and cache_control: written prefixes are read again, counted to the token."""

from __future__ import annotations

import time
from itertools import count, takewhile
from typing import Any, Final

import anthropic
import pytest

from tests.server.clients.conftest import TINY
from tests.server.live import LiveServer

NUMBERS: Final = count()


def text(words: int = 100) -> str:
    """A text that no other prompt begins with."""
    return f"{next(NUMBERS)} of these: " + "the river and the sea; " * (words // 5)


def block(said: str, ttl: str | None = None) -> dict[str, Any]:
    control = {} if ttl is None else {"cache_control": {"type": "ephemeral", "ttl": ttl}}
    return {"type": "text", "text": said, **control}


def ask(*content: Any, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": list(content) or "go on"}]
    return {"model": TINY, "max_tokens": 2, "extra_body": {"temperature": 0}, "messages": messages, **more}


def prompt_tokens(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens)


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_written_prefixes_are_read_from_the_cache(claude: Any, server: LiveServer, ttl: str) -> None:
    """Whole blocks up to the mark are written. Later the common prefix of both prompts is read."""
    system = [block(text(), ttl)]
    asked = [ask(block(question), system=system) for question in ("what is it?", "say more!")]
    first, second = (claude.messages.create(**each).usage for each in asked)
    held = first.cache_creation_input_tokens + first.cache_read_input_tokens
    shared = shared_tokens(server, system[0]["text"], "what is it?", "say more!")
    assert held % 16 == 0
    assert shared - 32 < held <= shared
    assert _written(first) == {"5m": 0, "1h": 0} | {ttl: first.cache_creation_input_tokens}
    assert _written(second) == {"5m": 0, "1h": 0}
    assert second.cache_read_input_tokens == shared
    for each, usage in zip(asked, (first, second), strict=True):
        counted = claude.messages.count_tokens(model=TINY, messages=each["messages"], system=system)
        assert counted.input_tokens == prompt_tokens(usage)


def shared_tokens(server: LiveServer, system: str, *questions: str) -> int:
    """How many tokens prompts with these questions begin with alike."""
    prompts = []
    for question in questions:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        prompts.append(server.post("/tokenize", {"model": TINY, "messages": messages}).json()["tokens"])
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*prompts, strict=False)))


def _written(usage: Any) -> dict[str, int]:
    told = usage.cache_creation
    return {"5m": told.ephemeral_5m_input_tokens, "1h": told.ephemeral_1h_input_tokens}


def test_a_longer_prompt_reads_the_cached_prefix(claude: Any) -> None:
    system, question = [block(text(), "1h")], block(text(), "5m")
    first = claude.messages.create(**ask(system=system)).usage
    second = claude.messages.create(**ask(question, system=system)).usage
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens
    assert second.cache_creation.ephemeral_5m_input_tokens > 50
    assert second.cache_creation.ephemeral_1h_input_tokens == 0


def test_two_times_to_live_in_one_prompt(claude: Any) -> None:
    usage = claude.messages.create(**ask(block(text(), "5m"), system=[block(text(), "1h")])).usage
    written = usage.cache_creation
    assert min(written.ephemeral_1h_input_tokens, written.ephemeral_5m_input_tokens) > 50
    total = written.ephemeral_1h_input_tokens + written.ephemeral_5m_input_tokens
    assert total == usage.cache_creation_input_tokens


def test_streams_report_the_same_usage(claude: Any) -> None:
    asked = ask(system=[block(text(), "5m")])
    with claude.messages.stream(**asked) as stream:
        first = stream.get_final_message().usage
    with claude.messages.stream(**asked) as stream:
        (start,) = [event.message.usage for event in stream if event.type == "message_start"]
    second = claude.messages.create(**asked).usage
    assert start.cache_read_input_tokens == second.cache_read_input_tokens
    assert first.cache_creation_input_tokens > 50
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens + first.cache_read_input_tokens


def test_a_changing_billing_header_does_not_prevent_cache_hits(claude: Any) -> None:
    said = text()

    def usage(number: int) -> Any:
        header = block(f"x-anthropic-billing-header: cc_version=2.1; cch={number:05x};")
        return claude.messages.create(**ask(system=[header, block(said, "5m")])).usage

    first, second = usage(1), usage(2)
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens > 50


def test_tools_can_be_marked(claude: Any) -> None:
    tool = {"name": f"tool{next(NUMBERS)}", "description": text(), "input_schema": {"type": "object"}}
    marked = tool | {"cache_control": {"type": "ephemeral"}}
    first, second = (claude.messages.create(**ask(tools=[marked])).usage for _ in range(2))
    assert first.cache_creation.ephemeral_5m_input_tokens > 50
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens


def test_the_metrics_count_what_was_written(claude: Any, server: LiveServer) -> None:
    def written() -> float:
        told = "twofold:cache_pin_tokens_total{"
        lines = [
            line for line in server.get("/metrics").text.splitlines() if line.startswith(told) and 'ttl="1h"' in line
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines if 'event="written"' in line)

    before = written()
    usage = claude.messages.create(**ask(system=[block(text(), "1h")])).usage
    until = time.monotonic() + 60
    while written() == before and time.monotonic() < until:  # rendered once a second
        time.sleep(0.1)
    held = usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    assert written() - before == held, "pins hold whole blocks, of which a few tokens were known before"


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (ask(block("a", "1h"), system=[block("b", "5m")]), "1h"),
        (ask(*(block(str(number), "5m") for number in range(5))), "more than 4"),
        (ask(block("a", "2h")), "ttl"),
    ],
)
def test_impossible_controls(claude: Any, asked: Any, named: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=named):
        claude.messages.create(**asked)
