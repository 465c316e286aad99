"""Public chat templates: rendered as the reference renders them, and conversations adapted where it refuses them.

The reference is Jinja as Hugging Face's transformers use it (``apply_chat_template``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
import pytest
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.core.errors import TemplateError
from twofold.text.parsers.format import CompletionFormat
from twofold.text.parsers.template_support import TemplateSupport, moves_system
from twofold.text.templates.chat import ChatTemplate
from twofold.text.templates.messages import texts_of
from twofold.text.tokenizers.tokenizer import Tokenizer

Messages = list[dict[str, Any]]
NOW: Final = datetime(2026, 1, 2)
TOKENS: Final = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": ""}
MAX_PROBES: Final = 30

CLASSIFIERS: Final = frozenset({"hf-granite3-guardian-2b", "hf-llama-guard3-1b", "hf-shieldgemma-27b"})
"""They show parts of a conversation only."""
WITH_TOOLS: Final = frozenset(
    {"lc-CohereForAI-c4ai-command-r-plus-tool_use", "lc-NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"}
)
"""They render nothing without tools."""
WITH_FUNCTIONS: Final = frozenset({"hf-firefunction-v2-70b", "lc-fireworks-ai-llama-3-firefunction-v2"})
"""They need a variable of their own."""


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def reference(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": NOW.strftime}
    return environment.from_string(source)


def rendered(template: jinja2.Template, variables: Mapping[str, Any]) -> str | None:
    """None if the template refuses or fails."""
    try:
        return template.render(variables)
    except Exception:  # templates can raise anything
        return None


def said(text: str) -> dict[str, Any]:
    """A message whose role is given by its first letter."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return {"role": roles[text[0]], "content": f"Q{text}"}


def talk(texts: str) -> Messages:
    return [said(text) for text in texts.split()]


def calling(text: str, *values: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {
                "id": value.rjust(9, "c"),
                "type": "function",
                "function": {"name": "tide", "arguments": {"at": f"Q{value}"}},
            }
            for value in values
        ],
    }


def result(value: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": value.rjust(9, "c"), "content": f"Qr{value}"}


def long_ids(messages: Messages) -> Messages:
    text = re.sub(r'"(c+x\w)"', r'"call_0123456789abcdef_0_\1"', json.dumps(messages))
    loaded: Messages = json.loads(text)
    return loaded


TOOLS: Final[Messages] = [
    {
        "type": "function",
        "function": {
            "name": "tide",
            "description": "Tells the tide.",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string", "description": "x"}},
                "required": ["at"],
            },
        },
    }
]
CALL: Final = [*talk("ua"), calling("", "xa"), result("xa")]
TALKS: Final[dict[str, Messages]] = {
    "one": talk("ua"),
    "several turns": talk("ua ab uc"),
    "empty": [said("ua"), {"role": "assistant", "content": ""}, said("ub")],
    "lines": [{"role": "user", "content": "  Qa\n\n{{ Qb }} <b>'\"é\n"}],
    "system": talk("sa ub"),
    "system and turns": talk("sa ub ac ud"),
    "two systems": talk("sa sb uc"),
    "late system": talk("ua ab sc ud"),
    "late systems": talk("sa ub ac sd se uf ag sh ui"),
    "late system, then the assistant": talk("sa ub sc ad ue"),
    "system and the assistant": talk("sa ab uc"),
    "system last": talk("ua sb"),
    "system alone": talk("sa"),
    "two users": talk("ua ub"),
    "three users": talk("ua ab uc ud ue"),
    "two assistants": talk("ua ab ac ud"),
    "assistant first": talk("aa ub"),
    "assistant last": talk("ua ab"),
    "call": [*CALL, said("ab"), said("uc")],
    "call and text": [said("ua"), calling("Qt", "xa"), result("xa"), said("ac")],
    "call and system": [said("sa"), *CALL, said("ab"), said("uc")],
    "result last": CALL,
    "user after a result": [*CALL, said("uc")],
    "two calls": [said("ua"), calling("", "xa", "xb"), result("xa"), result("xb"), said("ac")],
    "two calls, results swapped": [said("ua"), calling("", "xa", "xb"), result("xb"), result("xa"), said("ac")],
    "two calls, no results": [said("ua"), calling("", "xa", "xb"), said("uc")],
    "call after call": [*CALL, calling("", "xb"), result("xb"), said("ac"), said("ud")],
    "long ids": long_ids([*CALL, said("ab")]),
    "result first": [result("xa"), said("ub")],
}
MOVES_TEXT: Final = frozenset({"lc-deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "lc-llama-cpp-deepseek-r1"})
"""They write the text beside a call after it, or not at all."""
ACCIDENTAL: Final = frozenset({"system last"})
"""Templates that refuse all other late system messages render this one, as a turn of a role that they do not know."""


def words(messages: Messages) -> list[str]:
    texts = [text.replace("\\n", " ") for text in texts_of(messages)]  # arguments may be JSON
    return re.findall(r"\bQ\w+\b", " ".join(texts))


def found(text: str, wanted: Sequence[str]) -> list[str]:
    return re.findall(rf"\b(?:{'|'.join(wanted)})\b", text)


def sources(folder: Path) -> Iterator[tuple[str, str]]:
    files = sorted((folder / "templates").glob("*.jinja"))
    assert len(files) > 100
    for file in files:
        yield file.stem, file.read_text()


@pytest.mark.data
def test_the_text_is_the_references(test_data: Path) -> None:
    differs, compared, shown = [], 0, 0
    for name, source in sources(test_data):
        template, plain = ChatTemplate(source, clock=lambda: NOW), reference(source)
        for talk_name, messages in TALKS.items():
            for tools, prompted in ((None, True), (TOOLS, True), (None, False)):
                if tools is None and not prompted and any(message.get("tool_calls") for message in messages):
                    continue
                given: dict[str, Any] = {"messages": messages, "tools": tools, "add_generation_prompt": prompted}
                expected = rendered(plain, given | TOKENS)
                try:
                    text = template.render(messages, tools=tools, add_generation_prompt=prompted, special_tokens=TOKENS)
                except TemplateError:
                    text = None
                compared, shown = compared + 1, shown + (text is not None)
                differs += [] if text == expected else [(name, talk_name, tools is None, prompted)]
        template.close()
    assert not differs
    assert compared > 70 * 150
    assert shown > compared * 3 // 4


class Adapted:
    """A template with a tokenizer, which the reference renders in this process."""

    def __init__(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plain = reference(source)
        self.renderings = 0
        monkeypatch.setattr(ChatTemplate, "_ask", self.ask)
        self.tokenizer: Tokenizer = tokenizer_of({**tokenizer_metadata(300), "tokenizer.chat_template": source})
        self.form = CompletionFormat.of(self.tokenizer)
        self.probes = self.renderings

    def ask(self, request: str | None) -> str:
        assert request is not None
        self.renderings += 1
        text = rendered(self.plain, json.loads(request)["variables"])
        if text is None:
            raise TemplateError("refused")
        return text

    def text(self, messages: Messages, *, prompted: bool = True) -> tuple[str | None, Messages, TemplateSupport]:
        """The prompt, the messages that the template got, and the support with which it accepted them."""
        tools = tools_of(messages)
        for support in (self.form._support, *self.form._support.stricter):
            shown, left = self.form.shown(messages, tools, support)
            try:
                text = self.tokenizer.apply_chat_template(
                    shown, tools=left, tokenize=False, exact_content=True, add_generation_prompt=prompted
                )
            except TemplateError:
                continue
            return text, [dict(message) for message in shown], support
        return None, messages, self.form._support

    def expected(self, messages: Messages, *, prompted: bool = True) -> str | None:
        given = {"messages": messages, "tools": tools_of(messages), "add_generation_prompt": prompted}
        return rendered(self.plain, given | TOKENS)


def tools_of(messages: Messages) -> Messages | None:
    return TOOLS if any(message.get("tool_calls") for message in messages) else None


@pytest.mark.data
def test_what_the_reference_shows_stays_and_the_rest_is_adapted(
    test_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, kept, changed = [], 0, 0
    for name, source in sources(test_data):
        if name in CLASSIFIERS | WITH_TOOLS | WITH_FUNCTIONS:
            continue
        template = Adapted(source, monkeypatch)
        assert template.probes <= MAX_PROBES, (name, template.probes)
        for talk_name, messages in TALKS.items():
            wanted = words(messages)
            expected = template.expected(messages)
            text, shown, support = template.text(messages)
            shows_all = expected is not None and sorted(found(expected, wanted)) == sorted(wanted)
            has_instructions = tools_of(messages) and not support.tools
            moved = talk_name in ACCIDENTAL and moves_system(messages, support)
            if shows_all and not has_instructions and not moved:
                kept += 1
                faults += [] if text == expected else [(name, talk_name, "changed")]
                continue
            changed += 1
            if text is None:
                faults.append((name, talk_name, "refused"))
            elif expected is None or has_instructions or moved:
                in_turn = [word for word in words(shown) if word in wanted and not word.startswith("Qs")]
                once = sorted(found(text, wanted)) == sorted(wanted)
                in_order = [word for word in found(text, wanted) if not word.startswith("Qs")] == in_turn
                its_own = name in MOVES_TEXT and talk_name == "call and text"
                faults += [] if (once and in_order) or its_own else [(name, talk_name, "incomplete")]
    assert faults == []
    assert kept > 2500
    assert changed > 500


@pytest.mark.data
def test_a_longer_conversation_begins_as_the_shorter_one(test_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the template does so itself."""
    growing = (
        talk("sa ub ac ud ae"),
        talk("ua ab sc ud ae uf ag"),
        talk("sa ub ac sd se uf ag sh ui aj"),
        talk("ua ub ac ud ue af"),
        talk("aa ub ac"),
        talk("ua sb ac ud ae"),
    )
    faults, compared = [], 0
    for name, source in sources(test_data):
        if name in CLASSIFIERS | WITH_TOOLS | WITH_FUNCTIONS:
            continue
        template = Adapted(source, monkeypatch)
        short, long = (template.expected(talk(texts), prompted=False) for texts in ("ua ab", "ua ab uc ad"))
        led, leading = (template.expected(talk(texts), prompted=False) for texts in ("sa ub ac", "sa ub ac ud ae"))
        if short is None or long is None or not long.startswith(short):
            continue
        for messages in growing:
            if messages[0]["role"] == "system" and led is not None and not str(leading).startswith(led):
                continue
            if template.text(messages, prompted=False)[0] == template.expected(messages, prompted=False):
                continue  # if it is not so, that is the template's own
            ends = [place + 1 for place, message in enumerate(messages) if message["role"] == "assistant"]
            texts = [template.text(messages[:end], prompted=False)[0] or "" for end in ends]
            compared += 1
            if not all(texts[place + 1].startswith(text) for place, text in enumerate(texts[:-1])):
                faults.append((name, [message["content"] for message in messages]))
    assert faults == []
    assert compared > 200
