"""Tests what a chat template shows, by rendering small conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twofold.core.errors import TemplateLimitError, UsageError
from twofold.text.templates.messages import Message
from twofold.text.tokenizers.tokenizer import Tokenizer


class TemplateProber:
    """Renders a tokenizer's template. One that exceeds a limit, which takes a second, is not rendered again.

    ``source`` is empty without a template.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._exceeded = not tokenizer.has_chat_template
        self.source = tokenizer.chat_template or ""

    def rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, or "" if the template refuses or fails. Raises ResourceError if no process can be started."""
        if self._exceeded:
            return ""
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, chat_template_kwargs=variables
            )
        except TemplateLimitError:
            self._exceeded = True
        except UsageError:
            pass
        return ""
