"""Conversations that a template has no place for: adapted, with each text once and in its place."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.text.parsers.test_format import CHAT, CHATML, HERMES, TOOLS, tokenizer
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import ModelFacts
from twofold.api.fields import ignoring
from twofold.api.ollama.requests import OllamaChatRequest
from twofold.api.openai.chat import ChatRequest
from twofold.core.errors import TemplateError
from twofold.text.parsers.format import CompletionFormat
from twofold.text.templates.chat import ChatTemplate

TURN: Final = "{{ m.role }}: {{ m.content }}\n"
REFUSES_SYSTEM: Final = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    + TURN
    + "{% endfor %}"
)
DROPS_SYSTEM: Final = "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}"
REFUSES_LATE: Final = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    + TURN
    + "{% endfor %}"
)
ALTERNATING: Final = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}" + TURN + "{% endfor %}"
)
PARTS: Final = "{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}\n{% endfor %}"
EITHER: Final = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}"
)
ONE_CALL: Final = HERMES.replace(
    "{% for call in m.tool_calls or [] %}",
    "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% for call in m.tool_calls or [] %}",
)
NULL_CONTENT: Final = HERMES.replace(
    "{{ m.content }}{% for call in m.tool_calls or [] %}",
    "{{ m.content or '' }}{% for call in (m.tool_calls or []) if m.content is none %}",
)
SHORT_IDS: Final = HERMES.replace(
    "<tool_call>'",
    "'{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ call.id }}<tool_call>'",
).replace(
    "{% for call in m.tool_calls or [] %}<tool_call>",
    "{{ m.tool_call_id }}{% for call in m.tool_calls or [] %}"
    "{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ call.id }}<tool_call>",
)


def talk(*texts: str) -> list[dict[str, Any]]:
    """Messages, each given as its role's first letter and its text."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[text[0]], "content": text} for text in texts]


def prompt(template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    model = tokenizer(template)
    ids, _ = CompletionFormat.of(model).tokenized(model, messages, tools, add_generation_prompt=False)
    return model.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (REFUSES_SYSTEM, talk("s1", "u1", "a1"), "user: s1\n\nu1\nassistant: a1\n"),
        (DROPS_SYSTEM, talk("s1", "u1"), "user: s1\n\nu1\n"),
        (REFUSES_SYSTEM, talk("s1", "s2", "u1"), "user: s1\n\ns2\n\nu1\n"),
        (REFUSES_SYSTEM, talk("s1", "a1", "u1"), "user: s1\nassistant: a1\nuser: u1\n"),
        (REFUSES_SYSTEM, talk("s1"), "user: s1\n"),
        (REFUSES_SYSTEM, talk("u1", "a1", "s1", "u2"), "user: u1\nassistant: a1\nuser: s1\n\nu2\n"),
        (REFUSES_LATE, talk("s1", "u1", "a1", "s2", "u2"), "system: s1\nuser: u1\nassistant: a1\nuser: s2\n\nu2\n"),
        (REFUSES_LATE, talk("s1", "s2", "u1"), "system: s1\n\ns2\nuser: u1\n"),
        (REFUSES_LATE, talk("u1", "s1"), "user: u1\nuser: s1\n"),
        (REFUSES_LATE, talk("u1", "s1", "a1", "u2"), "user: u1\nuser: s1\nassistant: a1\nuser: u2\n"),
        (ALTERNATING, talk("u1", "s1", "a1", "u2"), "user: u1\ns1\nassistant: a1\nuser: u2\n"),
        (ALTERNATING, talk("u1", "u2", "a1", "a2", "u3"), "user: u1\nu2\nassistant: a1\na2\nuser: u3\n"),
        (ALTERNATING, talk("a1", "u1"), "user: \nassistant: a1\nuser: u1\n"),
        (CHATML, talk("u1", "u2"), "<|im_start|>user\nu1<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n"),
        (PARTS, talk("s1", "u1", "a1"), "system: s1\nuser: u1\nassistant: a1\n"),
        (EITHER, talk("s1", "u1"), "system: s1\nuser: u1\n"),
    ],
)
def test_messages_without_a_place(template: str, messages: list[dict[str, Any]], text: str) -> None:
    assert prompt(template, messages) == text


def test_a_list_of_parts_goes_to_templates_that_read_it() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert prompt(EITHER, parts) == "user: ab\n"
    assert prompt(CHATML, parts) == "<|im_start|>user\na\nb<|im_end|>\n"
    assert prompt(PARTS, parts) == "user: a\nb\n", "it reads the first part only"
    model = tokenizer(EITHER)
    asked = [*parts, {"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]}]
    ids, _ = CompletionFormat.of(model).tokenized(
        model, asked, None, add_generation_prompt=False, continue_final_message=True
    )
    assert model.decode(ids) == "user: ab\nassistant: cd"


def calls(*names: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"id": f"call_{name}_0123456789", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in names
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result of {call['function']['name']}"}
        for call in made
    ]
    return [*talk("u1"), {"role": "assistant", "content": "note", "tool_calls": made}, *reversed(results)]


def test_calls_are_split_where_a_template_shows_one() -> None:
    text = prompt(ONE_CALL, calls("get", "put"), TOOLS)
    marks = ["note", '"name": "get"', "result of get", '"name": "put"', "result of put"]
    assert sorted(marks, key=text.rindex) == marks
    assert all(text.count(mark) == 1 for mark in ("note", "result of get", "result of put"))
    whole = prompt(HERMES, calls("get", "put"), TOOLS)
    assert whole.index("result of put") < whole.index("result of get")


def test_a_template_may_want_no_text_beside_calls() -> None:
    text = prompt(NULL_CONTENT, calls("get"), TOOLS)
    assert "assistant\nnote<|im_end|>\n<|im_start|>assistant\n<tool_call>" in text
    assert "None" not in text


def test_a_template_may_want_short_ids() -> None:
    form = CompletionFormat.of(tokenizer(SHORT_IDS))
    shown, _ = form.shown(calls("get", "put"), TOOLS)
    ids = [call["id"] for call in shown[1]["tool_calls"]]
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert [message["tool_call_id"] for message in shown[2:]] == ids[::-1]
    assert "note" in prompt(SHORT_IDS, calls("get"), TOOLS)
    kept = [{**CHAT[2], "tool_calls": [{**CHAT[2]["tool_calls"][0], "id": "abcdef123"}]}]
    assert form.shown(kept, TOOLS)[0][0]["tool_calls"][0]["id"] == "abcdef123"


def test_results_without_a_call_are_text_where_the_template_refuses_them() -> None:
    refuses = HERMES.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if loop.first and m.role == 'tool' %}{{ raise_exception('no call') }}{% endif %}",
    )
    result = [{"role": "tool", "content": "found"}, *talk("u1")]
    assert "user\n<tool_response>\nfound\n</tool_response><|im_end|>\n<|im_start|>user\nu1" in prompt(refuses, result)
    assert "<|im_start|>tool\nfound<|im_end|>\n<|im_start|>user\nu1" in prompt(HERMES, result)


def test_what_a_template_refuses_is_tried_as_alternating_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's message after a result, as in Mistral's templates."""
    picky = HERMES.replace(
        "{% for m in messages %}",
        "{% for m in messages %}"
        "{% if m.role == 'user' and not loop.first and messages[loop.index0 - 1].role == 'tool' %}"
        "{{ raise_exception('answer first') }}{% endif %}",
    )
    text = prompt(picky, [*calls("get"), *talk("u2")], TOOLS)
    assert "user\n<tool_response>\nresult of get\n</tool_response>\nu2<|im_end|>" in text
    model = tokenizer(picky)
    form = CompletionFormat.of(model)
    asked = []
    ask = ChatTemplate._ask

    def noted(template: ChatTemplate, request: str | None) -> str:
        asked.append(request)
        return ask(template, request)

    monkeypatch.setattr(ChatTemplate, "_ask", noted)
    form.tokenized(model, calls("get"), TOOLS)
    assert len(asked) == 1, "an accepted conversation is rendered once"
    refusing = CompletionFormat.of(tokenizer("{{ raise_exception('never') }}"))
    with pytest.raises(TemplateError, match="never"):
        refusing.tokenized(tokenizer("{{ raise_exception('never') }}"), talk("u1"), None)


SAID: Final = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"messages": SAID}),
        (MessagesRequest, {"model": "m", "max_tokens": 8, "system": "Be kind.", "messages": SAID[1:]}),
        (OllamaChatRequest, {"model": "m", "messages": SAID}),
    ],
)
def test_the_caller_is_told(kind: Any, body: dict[str, Any]) -> None:
    for template, warned in ((REFUSES_SYSTEM, True), (CHATML, False)):
        model = tokenizer(template)
        facts = ModelFacts(model, CompletionFormat.of(model), context=4096, hidden_size=8)
        with ignoring(unknown=False) as ignored:
            (job,) = kind.read(body).prepare(facts)
        assert "Be kind." in model.decode(job.token_ids)
        assert any("system messages joined" in note for note in ignored.notes) is warned
