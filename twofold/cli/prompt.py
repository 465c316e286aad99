"""From what was typed to a prompt: through the model's chat template, or as it stands."""

from __future__ import annotations

from collections.abc import Sequence

from twofold.cli.console import note
from twofold.core.errors import UsageError
from twofold.engine.prompts import GivenPrompt, Message
from twofold.text.tokenizer import Tokenizer


def prompt_for(tokenizer: Tokenizer, text: str, system: str | None, *, raw: bool) -> GivenPrompt:
    """The prompt of one question. A model without a chat template completes the text, and a note says so."""
    if raw:
        return GivenPrompt(text=text)
    if not tokenizer.has_chat_template:
        if system is not None:
            raise UsageError(
                "The model has no chat template, so it takes no system message.",
                hint="Leave out --system, or choose a template with --chat-template.",
            )
        note("The model has no chat template: it completes the prompt as it stands.")
        return GivenPrompt(text=text)
    system_message = [] if system is None else [{"role": "system", "content": system}]
    return conversation(tokenizer, [*system_message, {"role": "user", "content": text}])


def conversation(tokenizer: Tokenizer, messages: Sequence[Message]) -> GivenPrompt:
    """The prompt of a conversation. TemplateError where the template refuses it."""
    return GivenPrompt(token_ids=tuple(tokenizer.apply_chat_template(messages)))
