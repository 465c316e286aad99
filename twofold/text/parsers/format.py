"""How a model writes its answers: which marks divide them, and what its chat template can show of tools.

All of it comes from the chat template and the vocabulary, which every file has; nobody has to choose a parser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal, Self

from twofold.core.errors import ParameterError
from twofold.core.json_schema import closed_schema
from twofold.core.params import StructuredOutputsParams
from twofold.text.parsers.base import SectionParser
from twofold.text.parsers.family import Tool, ToolFamily, name_of
from twofold.text.parsers.gemma import FUNCTION_GEMMA, GEMMA4
from twofold.text.parsers.json_family import HERMES, LLAMA3, MISTRAL
from twofold.text.parsers.pieces import PlainParser
from twofold.text.parsers.prober import TemplateProber
from twofold.text.parsers.pythonic import PYTHONIC
from twofold.text.parsers.shown import TemplateSupport, for_template, with_tools_told
from twofold.text.parsers.tagged import TAGGED
from twofold.text.parsers.thinking import PROBE, ThinkingMarks, ThinkingParser, thinking_marks
from twofold.text.templates.messages import Message
from twofold.text.tokenizers.tokenizer import Tokenizer

MAX_REMEMBERED: Final = 256
"""Sets of variables whose prompts were asked about."""

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
"""What stands in the chat templates of each family; the first that is found counts."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The sections of one model's answers.

    family          how it calls tools
    thinking        the marks of the section in which it thinks; None where it has none
    keeps_special   marks are control tokens: they have to stay in the text (``skip_special_tokens`` off)
    stop_token_ids  tokens that end an answer which calls tools, beside the model's own
    """

    family: ToolFamily
    thinking: ThinkingMarks | None
    keeps_special: bool
    stop_token_ids: tuple[int, ...]
    _tokenizer: Tokenizer = field(repr=False)
    _prober: TemplateProber = field(repr=False)
    _sight: TemplateSupport
    _opened: dict[bytes, bool] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """The format of the model that a tokenizer belongs to. Renders a few short conversations."""
        prober = TemplateProber(tokenizer)
        sight = TemplateSupport.of(prober)
        family = _family(tokenizer.chat_template or "", sight)
        thinking = thinking_marks(tokenizer, prober)
        marks = (*family.marks, *((thinking.start, thinking.end) if thinking else ()))
        keeps = any(tokenizer.token_id(mark) is not None for mark in marks)
        stops = tuple(token for stop in family.stops if (token := tokenizer.token_id(stop)) is not None)
        return cls(family, thinking, keeps, stops, tokenizer, prober, sight)

    def shown(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None
    ) -> tuple[list[Message], Sequence[Tool] | None]:
        """Messages and tools for the chat template: what it cannot show itself is told in the messages.

        Tools come before the caller's system text, so that both are found again in the prefix cache. Raises
        TemplateError for calls whose arguments are no JSON object.
        """
        ready = for_template(messages, self.family, self._sight)
        if not tools or self._sight.tools:
            return ready, tools
        return with_tools_told(ready, self.family.told(tools), self._sight), None

    def parser(
        self, tools: Sequence[Tool] | None, *, thinking: bool = True, parallel: bool = True, opened: bool | None = None
    ) -> SectionParser:
        """Divides one answer.

        tools     what the answer may call; without any, all is content
        thinking  False where the template was told not to let the model think: the prompt opens no section
        parallel  False leaves out all that follows the first call
        opened    whether the prompt ends inside the section; None for what the template does unless it is told
        """

        def calls() -> SectionParser:
            return self.family.parser(tools, parallel=parallel) if tools else PlainParser()

        marks = self.thinking
        if marks is None:
            return calls()
        inside = thinking and (marks.opened if opened is None else opened)
        return ThinkingParser(marks.start, marks.end, opened=inside, then=calls)

    def opened(self, variables: Mapping[str, Any]) -> bool:
        """Whether a prompt with these variables ends inside the thinking section.

        The template is rendered for variables that were not asked about lately.
        """
        if self.thinking is None:
            return False
        key = blake2b(json.dumps(variables, sort_keys=True).encode()).digest()
        known = self._opened.get(key)
        if known is None:
            known = self.thinking.opened_by(self._prober.rendered(PROBE, variables=variables))
            if len(self._opened) >= MAX_REMEMBERED:
                self._opened.clear()
            self._opened[key] = known
        return known

    def form(self, tools: Sequence[Tool], choice: str | Literal["required"], parallel: bool) -> StructuredOutputsParams:
        """The form of an answer that is one call, or where ``parallel`` one or more: of any tool, or of the one that
        ``choice`` names."""
        chosen = [tool for tool in tools if choice in ("required", name_of(tool))]
        assert chosen, "a named tool is one of the tools"
        return StructuredOutputsParams(grammar=self.family.rules(chosen, self._term, parallel=parallel))

    def form_or(
        self, tools: Sequence[Tool], content: StructuredOutputsParams, parallel: bool
    ) -> StructuredOutputsParams:
        """The form of an answer that is one or more calls, or else has the form of ``content``, which is JSON.

        Raises ParameterError for a form that is not.
        """
        if content.json is None and not content.json_object:
            raise ParameterError(
                "Beside tools, structured output must be JSON.",
                param="structured_outputs",
                hint='Leave the tools out, or set tool_choice to "none".',
            )
        schema = content.json if content.json is not None else {"type": "object"}
        text = schema if isinstance(schema, str) else json.dumps(closed_schema(schema), ensure_ascii=False)
        calls = self.family.rules(tools, self._term, parallel=parallel).replace("start:", "calls:", 1)
        return StructuredOutputsParams(grammar=f"start: calls | content\ncontent: %json {text}\n{calls}")

    def _term(self, text: str) -> str:
        token = self._tokenizer.token_id(text)
        return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"


def _family(template: str, sight: TemplateSupport) -> ToolFamily:
    if not sight.tools:
        return PYTHONIC if "<start_of_turn>" in template else HERMES
    return next((family for sign, family in _SIGNS if sign in template), HERMES)
