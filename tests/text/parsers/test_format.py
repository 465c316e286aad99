"""The format of a model's completions, read from its chat template; and messages that any template can show."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from tests.text.parsers.checks import parse_whole
from tests.text.vocabularies import bytelevel_metadata
from twofold.core.errors import TemplateError
from twofold.text.parsers.base import Content, Reasoning, ToolCall
from twofold.text.parsers.family import ToolFamily
from twofold.text.parsers.format import CompletionFormat
from twofold.text.parsers.gemma import FUNCTION_GEMMA, GEMMA4
from twofold.text.parsers.tagged import TAGGED
from twofold.text.templates.builtin_templates import BUILTIN_TEMPLATES
from twofold.text.templates.chat import ChatTemplate
from twofold.text.tokenizers.tokenizer import Tokenizer

CHATML: Final = BUILTIN_TEMPLATES["chatml"]
HERMES: Final = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Answer with <tool_call>.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT_ARGUMENTS: Final = HERMES.replace("{{ call.function.arguments | tojson }}", "{{ '' + call.function.arguments }}")
SWITCHED: Final = CHATML.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}",
)
OPENING: Final = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}{# </think> #}")
ASKED: Final = CHATML.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if thinking %}<think>\n{% else %}<think></think>{% endif %}{% endif %}",
)
TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": {"name": "get", "description": "Gets it", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "put"}},
]
CHAT: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": "Well,",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "get", "arguments": '{"a": "b"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "found"},
    {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "more"}]},
    {"role": "user", "content": "Thanks"},
]


def tokenizer(template: str | None, *controls: str) -> Tokenizer:
    metadata: dict[str, Any] = dict(tokenizer_metadata(320))
    tokens = list(metadata["tokenizer.ggml.tokens"])
    for place, control in enumerate(controls):
        tokens[-1 - place] = control
    metadata["tokenizer.ggml.tokens"] = tokens
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return tokenizer_of(metadata)


def prompt(template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    tokens = tokenizer(template)
    shown, left = CompletionFormat.of(tokens).shown(messages, tools)
    return tokens.apply_chat_template(shown, tools=left, tokenize=False, exact_content=True)


def test_a_template_that_shows_tools_gets_them() -> None:
    form = CompletionFormat.of(tokenizer(HERMES))
    assert form.family.name == "hermes"
    shown, tools = form.shown(CHAT, TOOLS)
    assert tools is TOOLS
    assert shown[2]["tool_calls"][0]["function"]["arguments"] == {"a": "b"}
    assert shown[0] == CHAT[0]
    assert '"arguments": {"a": "b"}' in prompt(HERMES, CHAT, TOOLS)


def test_a_template_may_want_arguments_as_text() -> None:
    form = CompletionFormat.of(tokenizer(TEXT_ARGUMENTS))
    given = [CHAT[1], {**CHAT[2], "tool_calls": [{"function": {"name": "get", "arguments": {"a": "b"}}}]}]
    assert form.shown(given, None)[0][1]["tool_calls"][0]["function"]["arguments"] == '{"a": "b"}'


def test_a_template_without_tools_gets_them_as_instructions() -> None:
    text = prompt(CHATML, CHAT, TOOLS)
    assert text.count("<|im_start|>system") == 1
    assert text.index('"name": "get"') < text.index("Be kind.")
    assert 'Well,\n<tool_call>\n{"name": "get", "arguments": {"a": "b"}}\n</tool_call><|im_end|>' in text
    assert (
        "<|im_start|>user\n<tool_response>\nfound\n</tool_response>\n<tool_response>\nmore\n</tool_response>"
        "<|im_end|>\n<|im_start|>user\nThanks<|im_end|>" in text
    )
    assert "<|im_start|>tool" not in text


def test_instructions_are_first_without_a_system_message() -> None:
    text = prompt(CHATML, [{"role": "user", "content": "Hi"}], TOOLS)
    assert text.startswith("<|im_start|>system\n# Tools")
    parts = [{"role": "system", "content": [{"type": "text", "text": "Be kind."}]}, CHAT[1]]
    assert "\n\nBe kind." in prompt(CHATML, parts, TOOLS)


def test_gemma_calls_as_python_and_its_turns_alternate() -> None:
    text = prompt(BUILTIN_TEMPLATES["gemma"], CHAT, TOOLS)
    assert '[get(a="b")]' in text
    assert text.count("<start_of_turn>user") == 2


@pytest.mark.parametrize("name", [name for name in BUILTIN_TEMPLATES if name != "chatml"])
def test_every_built_in_template_can_show_tools(name: str) -> None:
    text = prompt(BUILTIN_TEMPLATES[name], CHAT, TOOLS)
    for part in ("Gets it", "Be kind.", "found", "Thanks"):
        assert part in text


def test_without_a_system_role_tools_go_to_the_first_message() -> None:
    refuses = "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    picky = "{% for m in messages %}" + refuses + "{{ m.content }}{% endfor %}"
    assert prompt(picky, [CHAT[1]], TOOLS).endswith("\n\nHi")


def test_a_developer_is_a_system_where_the_template_does_not_know_one() -> None:
    assert "<|im_start|>system\nGo" in prompt(CHATML, [{"role": "developer", "content": "Go"}, CHAT[1]])
    knows = CHATML + "{# developer #}"
    assert "<|im_start|>developer\nGo" in prompt(knows, [{"role": "developer", "content": "Go"}, CHAT[1]])


@pytest.mark.parametrize("template", [CHATML, HERMES])
@pytest.mark.parametrize("arguments", ["{", "[1]", "nothing", "[" * 5000])
def test_arguments_that_are_no_object_are_refused(template: str, arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get", "arguments": arguments}}
    messages = [CHAT[1], {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(TemplateError, match="arguments"):
        CompletionFormat.of(tokenizer(template)).shown(messages, TOOLS)


def test_thinking_is_found_in_the_template() -> None:
    assert CompletionFormat.of(tokenizer(CHATML)).thinking is None
    switched = CompletionFormat.of(tokenizer(SWITCHED)).thinking
    assert switched is not None
    assert (switched.opened, switched.switch) == (False, "enable_thinking")
    opening = CompletionFormat.of(tokenizer(OPENING)).thinking
    assert opening is not None
    assert (opening.opened, opening.switch) == (True, None)
    asked = CompletionFormat.of(tokenizer(ASKED)).thinking
    assert asked is not None
    assert (asked.opened, asked.switch) == (False, "thinking")


def test_a_parser_knows_who_opened_the_section() -> None:
    form = CompletionFormat.of(tokenizer(OPENING))
    assert parse_whole(form.parser(None, opened=True), "a</think>b") == [Reasoning("a"), Content("b")]
    assert parse_whole(form.parser(None, opened=False), "b") == [Content("b")]
    calls = parse_whole(form.parser(TOOLS, opened=True), '</think><tool_call>{"name": "x"}</tool_call>')
    assert calls[0] == ToolCall(0, "x")


def test_marks_that_are_control_tokens_stay_in_the_text() -> None:
    assert not CompletionFormat.of(tokenizer(HERMES)).keeps_special
    tokens = tokenizer(HERMES, "<tool_call>", "</tool_call>")
    form = CompletionFormat.of(tokens)
    assert form.keeps_special
    opening = tokens.token_id("<tool_call>")
    assert f"<[{opening}]>" in str(form.call_grammar(TOOLS, parallel=True).grammar)
    assert f"<[{opening}]>" not in str(
        CompletionFormat.of(tokenizer(HERMES)).call_grammar(TOOLS, parallel=False).grammar
    )


def test_a_named_form_allows_that_tool_alone() -> None:
    grammar = str(CompletionFormat.of(tokenizer(HERMES)).call_grammar(TOOLS[1:], parallel=False).grammar)
    assert "put" in grammar
    assert "get" not in grammar


def test_gemma_with_control_tokens_for_calls_stops_before_results() -> None:
    template = HERMES.replace("<tool_call>", "<start_function_call>")
    tokens = tokenizer(template, "<start_function_call>", "<start_function_response>")
    form = CompletionFormat.of(tokens)
    assert form.family is FUNCTION_GEMMA
    assert form.stop_token_ids == (tokens.token_id("<start_function_response>"),)


def test_a_model_without_a_template_has_a_format() -> None:
    metadata: dict[str, Any] = dict(tokenizer_metadata(300))
    metadata["tokenizer.ggml.tokens"] = [text.replace("im_", "x_") for text in metadata["tokenizer.ggml.tokens"]]
    form = CompletionFormat.of(tokenizer_of(metadata))
    assert form.thinking is None
    assert parse_whole(form.parser(None, opened=False), "text") == [Content("text")]


def test_a_template_that_exceeds_a_limit_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a model file stays a matter of a second, whatever its template does."""
    loops = "{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2 + "<think></think>{{ enable_thinking }}"
    hostile = tokenizer_of(bytelevel_metadata(), chat_template="{{ messages }}")
    hostile._chat_template = ChatTemplate(loops, seconds=0.1)
    asked = []
    ask = ChatTemplate._ask

    def noted(template: ChatTemplate, request: str | None) -> str:
        asked.append(request)
        return ask(template, request)

    monkeypatch.setattr(ChatTemplate, "_ask", noted)
    model = CompletionFormat.of(hostile)
    assert model.thinking is not None
    assert not model.opened({"enable_thinking": True})
    assert len(asked) == 1


def test_whether_thinking_is_opened_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}{# </think> #}"
    model = CompletionFormat.of(tokenizer_of(bytelevel_metadata(), chat_template=source))
    assert model.opened({"enable_thinking": True})
    assert not model.opened({"enable_thinking": False})
    monkeypatch.setattr(ChatTemplate, "_ask", None)
    assert model.opened({"enable_thinking": True})
    assert not model.opened({"enable_thinking": False})


@pytest.mark.parametrize("enum", [1.5, "abc", {"a": 1}, [], ["a", 1], [None], True])
@pytest.mark.parametrize("family", [FUNCTION_GEMMA, GEMMA4, TAGGED], ids=["function-gemma", "gemma-4", "tagged"])
def test_choices_that_are_no_list_of_texts(family: ToolFamily, enum: object) -> None:
    """As if the schema had none: what a schema holds need not make sense."""

    def rules(schema: object) -> str:
        function = {"name": "f", "parameters": {"properties": {"a": schema}}}
        return family.rules([{"type": "function", "function": function}], json.dumps, parallel=True)

    if family is not TAGGED:
        assert rules({"enum": enum}) == rules({})
    assert "text" in rules({"enum": enum, "type": "string"})


NAMED: Final = {
    "tokenizer.chat_template": CHATML,
    "tokenizer.chat_template.tool_use": HERMES.replace("<|im_start|>", "<|tool|>"),
    "tokenizer.chat_template.rag": "{{ messages | length }} documents",
}


def test_a_template_for_tools_is_used_with_tools() -> None:
    tokens = tokenizer_of({**tokenizer_metadata(320), **NAMED})
    form = CompletionFormat.of(tokens)
    for tools, mark, other in ((None, "<|im_start|>", "<|tool|>"), (TOOLS, "<|tool|>", "<|im_start|>")):
        ids, _ = form.tokenized(tokens, CHAT, tools)
        text = tokens.decode(ids, skip_special_tokens=False)
        assert mark in text
        assert other not in text
        assert "found" in text
    shown, left = form.shown(CHAT, TOOLS)
    assert left is TOOLS
    assert shown[2]["tool_calls"]
    assert "tool_calls" not in form.shown(CHAT, None)[0][2]


def test_a_template_of_the_file_may_be_chosen_by_name() -> None:
    chosen = tokenizer_of({**tokenizer_metadata(320), **NAMED}, chat_template="rag")
    assert chosen.apply_chat_template(CHAT, tools=TOOLS, tokenize=False) == f"{len(CHAT)} documents"


def test_a_template_for_tools_may_be_the_only_one() -> None:
    named = {"tokenizer.chat_template.tool_use": HERMES}
    alone = tokenizer_of({**tokenizer_metadata(320), **named})
    assert alone.has_chat_template
    assert "Thanks" in alone.apply_chat_template(CHAT, tokenize=False)
