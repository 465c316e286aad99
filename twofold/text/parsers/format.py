"""The format of a model's completions: the marks of its sections, and how its prompts show tools.

It is derived from the chat template and the vocabulary, so users need not choose a parser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Self, Unpack

from twofold.core.errors import ParameterError, TemplateError, TemplateLimitError
from twofold.core.json_formats import WHITE_SPACE, output_schema
from twofold.core.params import StructuredOutputsParams
from twofold.text.parsers.base import PlainParser, SectionParser
from twofold.text.parsers.family import Tool, ToolFamily
from twofold.text.parsers.gemma import FUNCTION_GEMMA, GEMMA4
from twofold.text.parsers.json_calls import HERMES, LLAMA3, MISTRAL
from twofold.text.parsers.pythonic import PYTHONIC
from twofold.text.parsers.tagged import TAGGED
from twofold.text.parsers.template_support import (
    Note,
    TemplateProber,
    TemplateSupport,
    for_template,
    moves_system,
    with_instructions,
)
from twofold.text.parsers.thinking import PROBE, ThinkingMarks, ThinkingParser, thinking_marks
from twofold.text.templates.messages import Message
from twofold.text.tokenizers.tokenizer import ChatOptions, Tokenizer

MAX_REMEMBERED: Final = 256
"""Maximum sets of template variables with a cached result of ``opened``."""

_SIGNS: Final[tuple[tuple[str, ToolFamily], ...]] = (
    (FUNCTION_GEMMA.opens, FUNCTION_GEMMA),
    (GEMMA4.opens, GEMMA4),
    ("<|python_start|>", PYTHONIC),
    ("<function=", TAGGED),
    ("<tool_call>", HERMES),
    ("[TOOL_CALLS]", MISTRAL),
    ("<|python_tag|>", LLAMA3),
    ("<|start_header_id|>", LLAMA3),
)
"""Texts in the chat templates of each family; the first text that is found selects the family."""


@dataclass(frozen=True, slots=True)
class CompletionFormat:
    """The sections of a model's completions.

    family          how it calls tools
    thinking        the marks of its reasoning section; None if it has none
    keeps_special   marks are control tokens, so the text must include them (``skip_special_tokens`` off)
    stop_token_ids  tokens that end a completion with tool calls, in addition to the model's own
    """

    family: ToolFamily
    thinking: ThinkingMarks | None
    keeps_special: bool
    stop_token_ids: tuple[int, ...]
    _tokenizer: Tokenizer = field(repr=False)
    _prober: TemplateProber = field(repr=False)
    _support: TemplateSupport
    _tool_support: TemplateSupport
    _opened: dict[bytes, bool] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """The format of the model that a tokenizer belongs to. Renders a few short conversations."""
        prober = TemplateProber(tokenizer)
        support = tool_support = TemplateSupport.of(prober)
        if prober.has_tool_template and (found := TemplateSupport.of(prober, with_tools=True)).tools:
            tool_support = found
        family = _family(tokenizer.tool_template or tokenizer.chat_template or "", tool_support)
        thinking = thinking_marks(tokenizer, prober)
        marks = (*family.marks, *((thinking.start, thinking.end) if thinking else ()))
        keeps = any(tokenizer.token_id(mark) is not None for mark in marks)
        stops = tuple(token for stop in family.stops if (token := tokenizer.token_id(stop)) is not None)
        return cls(family, thinking, keeps, stops, tokenizer, prober, support, tool_support)

    def shown(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        support: TemplateSupport | None = None,
        note: Note = lambda _: None,
    ) -> tuple[list[Message], Sequence[Tool] | None]:
        """Messages and tools for the chat template, which is rendered with ``exact_content``; the messages describe
        tools and calls that it does not show.

        Tools precede the caller's system text, so that the prefix cache has both. ``support`` replaces what was found
        out about the template, ``note`` is told of changes that callers would not expect. Raises TemplateError for
        calls whose arguments are not a JSON object.
        """
        support = support or (self._tool_support if tools else self._support)
        if moves_system(messages, support):
            note("system messages joined messages of the user, because the chat template has no place for them")
        if tools and not support.tools:
            messages, tools = with_instructions(messages, self.family.instructions(tools)), None
        return for_template(messages, self.family, support, note), tools

    def tokenized(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        note: Note = lambda _: None,
        **options: Unpack[ChatOptions],
    ) -> tuple[list[int], TemplateSupport]:
        """The prompt as ``shown`` adapts it, and the ``support`` with which the template accepts it: if it refuses the
        messages, those of a stricter one are tried. ``options`` are those of ``apply_chat_template``.

        Raises the TemplateError of the first try if the template refuses all of them, and the tokenizer's errors.
        """
        refusal: TemplateError | None = None
        first = self._tool_support if tools else self._support
        for support in (first, *first.stricter):
            notes: list[str] = []
            try:
                shown, shown_tools = self.shown(messages, tools, support, notes.append)
                ids = tokenizer.apply_chat_template(shown, tools=shown_tools, exact_content=True, **options)
            except TemplateLimitError:
                raise
            except TemplateError as error:
                refusal = refusal or error
                continue
            for text in dict.fromkeys(notes):
                note(text)
            return ids, support
        assert refusal is not None, "the loop has returned or failed"
        raise refusal

    def parser(self, tools: Sequence[Tool] | None, *, opened: bool, parallel: bool = True) -> SectionParser:
        """A parser of one completion.

        tools     the tools it may call; without any, all text is content
        opened    whether the prompt ends inside the thinking section
        parallel  False drops all text after the first call
        """
        rest = self.family.parser(tools, parallel=parallel) if tools else PlainParser()
        if self.thinking is None:
            return rest
        return ThinkingParser(self.thinking.start, self.thinking.end, opened=opened, then=rest)

    def opened(self, variables: Mapping[str, Any]) -> bool:
        """Whether a prompt with these variables ends inside the thinking section.

        Renders the template, if the result is not cached.
        """
        if self.thinking is None:
            return False
        key = blake2b(json.dumps(variables, sort_keys=True).encode()).digest()
        known = self._opened.get(key)
        if known is None:
            known = self._prober.rendered(PROBE, variables=variables).rstrip().endswith(self.thinking.start)
            if len(self._opened) >= MAX_REMEMBERED:
                self._opened.clear()
            self._opened[key] = known
        return known

    def call_grammar(self, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutputsParams:
        """Structured output that is one call of any of ``tools``, or several calls if ``parallel``."""
        return StructuredOutputsParams(grammar=self.family.rules(tools, self._term, parallel=parallel))

    def calls_or(
        self, tools: Sequence[Tool], content: StructuredOutputsParams, *, parallel: bool
    ) -> StructuredOutputsParams:
        """Structured output that is either calls or the JSON of ``content``.

        Raises ParameterError if ``content`` is not JSON.
        """
        if content.json is None and not content.json_object:
            raise ParameterError(
                "Beside tools, structured output must be JSON.",
                param="structured_outputs",
                hint='Leave the tools out, or set tool_choice to "none".',
            )
        schema = content.json if content.json is not None else {"type": "object"}
        options = {"x-guidance": {"whitespace_pattern": WHITE_SPACE}}
        text = schema if isinstance(schema, str) else json.dumps(output_schema(schema) | options, ensure_ascii=False)
        calls = self.family.rules(tools, self._term, parallel=parallel).replace("start:", "calls:", 1)
        return StructuredOutputsParams(grammar=f"start: calls | content\ncontent: %json {text}\n{calls}")

    def _term(self, text: str) -> str:
        token = self._tokenizer.token_id(text)
        return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"


def _family(template: str, support: TemplateSupport) -> ToolFamily:
    if not support.tools:
        return PYTHONIC if "<start_of_turn>" in template else HERMES
    return next((family for sign, family in _SIGNS if sign in template), HERMES)
