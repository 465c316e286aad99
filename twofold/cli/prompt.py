"""From what was typed to a prompt: a conversation, or a text as it stands."""

from __future__ import annotations

from twofold.cli.chat.base import ChatModel, Prompt
from twofold.cli.console import note
from twofold.core.errors import UsageError


def prompt_for(model: ChatModel, text: str, system: str | None, *, raw: bool, quiet: bool = False) -> Prompt:
    """The prompt of one question. A model without a chat template completes the text, and a note says so."""
    if raw:
        return text
    if not model.has_template:
        if system is not None:
            raise UsageError(
                "The model has no chat template, so it takes no system message.",
                hint="Leave out --system, or choose a template with --chat-template.",
            )
        if not quiet:
            note("The model has no chat template: it completes the raw prompt.")
        return text
    system_message = [] if system is None else [{"role": "system", "content": system}]
    return [*system_message, {"role": "user", "content": text}]
