"""Claude Code's billing line is no part of a prompt, whichever API a proxy sends it to."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.api.completions import facts_of
from tests.server.compatibility.table import PLAIN
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.ollama.requests import OllamaChatRequest, OllamaGenerateRequest
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.responses.request import ResponsesRequest

FACTS: Final = facts_of(PLAIN)
BILL: Final = "x-anthropic-billing-header: cc_version=2.1.197; cch=0a1b2;"
USER: Final = {"role": "user", "content": "hi"}


def parts(kind: str, *texts: str) -> list[dict[str, str]]:
    return [{"type": kind, "text": text} for text in texts]


def chat(content: Any, role: str = "system") -> tuple[Any, dict[str, Any]]:
    return ChatRequest, {"messages": [{"role": role, "content": content}, USER]}


def response(content: Any) -> tuple[Any, dict[str, Any]]:
    return ResponsesRequest, {"input": [{"role": "system", "content": content}, USER]}


def ollama(content: str) -> tuple[Any, dict[str, Any]]:
    return OllamaChatRequest, {"model": "m", "messages": [{"role": "system", "content": content}, USER]}


def message(content: Any) -> tuple[Any, dict[str, Any]]:
    return MessagesRequest, {"model": "m", "max_tokens": 9, "system": content, "messages": [USER]}


def prompt(given: tuple[Any, dict[str, Any]]) -> str:
    (job,) = given[0].read(given[1]).prepare(FACTS)
    return FACTS.tokenizer.decode(job.token_ids)


@pytest.mark.parametrize(
    ("billed", "plain"),
    [
        (chat(f"{BILL}\nBe brief."), chat("Be brief.")),
        (chat(f"{BILL}\n{BILL}\n\nBe brief.", "developer"), chat("Be brief.", "developer")),
        (chat(parts("text", BILL, "Be brief.", "Now.")), chat(parts("text", "Be brief.", "Now."))),
        (chat([f"{BILL}\nBe brief."]), chat(["Be brief."])),
        (chat(BILL), (ChatRequest, {"messages": [USER]})),
        (response(f"{BILL}\nBe brief."), response("Be brief.")),
        (response(parts("input_text", BILL, "Be brief.")), response(parts("input_text", "Be brief."))),
        (response(BILL), (ResponsesRequest, {"input": [USER]})),
        (
            (ResponsesRequest, {"input": "hi", "instructions": f"{BILL}\nBe brief."}),
            (ResponsesRequest, {"input": "hi", "instructions": "Be brief."}),
        ),
        ((ResponsesRequest, {"input": "hi", "instructions": BILL}), (ResponsesRequest, {"input": "hi"})),
        (ollama(f"{BILL}\nBe brief."), ollama("Be brief.")),
        (ollama(BILL), (OllamaChatRequest, {"model": "m", "messages": [USER]})),
        (
            (OllamaGenerateRequest, {"model": "m", "prompt": "hi", "system": f"{BILL}\nBe brief."}),
            (OllamaGenerateRequest, {"model": "m", "prompt": "hi", "system": "Be brief."}),
        ),
        (message(f"{BILL}\nBe brief."), message("Be brief.")),
        (message(parts("text", BILL, "Be brief.")), message(parts("text", "Be brief."))),
    ],
)
def test_the_billing_line_is_no_part_of_a_system_prompt(billed: Any, plain: Any) -> None:
    assert prompt(billed) == prompt(plain)


def test_elsewhere_it_is_text() -> None:
    for given in (chat(f"{BILL}\nhi", "user"), chat(f"Be brief.\n{BILL}"), response(f"Be brief.\n{BILL}")):
        assert BILL in prompt(given)
    alone = ChatRequest.read({"messages": [{"role": "system", "content": BILL}]})
    assert alone.prepare(FACTS), "a chat has at least one message"


def test_cache_marks_stay_at_their_parts() -> None:
    marked = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    billed = ChatRequest.read(chat([{"type": "text", "text": BILL}, marked])[1]).prepare(FACTS)
    assert billed[0].options.cache_pins == ChatRequest.read(chat([marked])[1]).prepare(FACTS)[0].options.cache_pins
