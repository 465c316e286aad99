"""Chat templates: the Jinja text inside a model file that turns messages into a prompt.

The variables and functions are those that Hugging Face's templates expect: ``messages``, ``tools``,
``add_generation_prompt``, ``bos_token``, ``eos_token``, ``raise_exception``, ``strftime_now``, ``tojson``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from twofold.core.errors import ParameterError, TemplateError, TemplateLimitError
from twofold.text.templates.messages import plain
from twofold.text.templates.sandbox_messages import DONE, EXCEEDED, FAILED, INVALID, REFUSED
from twofold.text.templates.template_process import TemplateProcesses
from twofold.text.tokenizers.names import names

SECONDS: Final = 1.0
MAX_TEMPLATE_CHARACTERS: Final = 64 << 10
MAX_VARIABLE_CHARACTERS: Final = 64
RESERVED_VARIABLES: Final = names(
    "messages tools add_generation_prompt continue_final_message special_tokens tokenize trust_content "
    "bos_token eos_token pad_token range dict namespace cycler joiner raise_exception strftime_now "
    "self super loop caller varargs kwargs true false none True False None not and or in is if else"
)
"""What a caller's template variable cannot be called: the engine sets it, or Jinja has a use for it."""
OTHER_TEMPLATE: Final = "Choose another one with chat_template: the name of a built-in family, or Jinja source."


class ChatTemplate:
    """A template, rendered in a process of its own. Raises TemplateError for source that is too long.

    The process starts when it is first needed.

    clock    gives the local time that ``strftime_now`` shows
    seconds  the limit on processor time of compiling it, and of each rendering
    """

    def __init__(self, source: str, *, clock: Callable[[], datetime] = datetime.now, seconds: float = SECONDS) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise _broken(f"has {len(source)} characters; at most {MAX_TEMPLATE_CHARACTERS} are allowed")
        self.source = source
        self._clock = clock
        self._processes = TemplateProcesses(source, seconds)

    @property
    def processes(self) -> int:
        """How many processes of it run."""
        return self._processes.count

    def start(self) -> None:
        """Starts the process without waiting for it. Raises ResourceError."""
        self._processes.start()

    def check(self) -> None:
        """Raises TemplateError for a template that is not valid, TemplateLimitError for one that compiles too long."""
        self._ask(None)

    def close(self) -> None:
        """Ends the process until the next rendering."""
        self._processes.close()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        special_tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. ``messages`` are as ``messages.validated`` returns them.

        Raises TemplateError when the template refuses them or fails, TemplateLimitError when it takes too much time
        or memory, ParameterError for a variable whose name is taken, ResourceError where its process cannot be started.
        """
        named, own = dict(special_tokens or {}), plain(variables or {})
        check_variables(own, taken=named)
        context = named | {
            "messages": plain(messages),
            "tools": plain(tools),
            "add_generation_prompt": add_generation_prompt,
            **own,
        }
        try:
            request = json.dumps({"variables": context, "now": self._clock().isoformat()}, ensure_ascii=False)
        except ValueError as error:
            raise _broken(f"failed on these messages: {error}") from error
        return self._ask(request)

    def _ask(self, request: str | None) -> str:
        kind, text = self._processes.ask(request)
        if kind == DONE:
            return text
        if kind == REFUSED:
            raise TemplateError(
                f"The chat template refuses the messages: {text}",
                hint="Change the messages, or choose another chat template.",
            )
        if kind == EXCEEDED:
            raise TemplateLimitError(f"The chat template was stopped: {text}.", hint=OTHER_TEMPLATE)
        faults = {FAILED: "failed on these messages", INVALID: "is not valid"}
        raise _broken(f"{faults.get(kind, 'was stopped')}: {text.rstrip('.')}")


def check_variables(variables: Iterable[str], taken: Iterable[str] = ()) -> None:
    """Raises ParameterError for a name that a template variable cannot have; ``taken`` are more of them."""
    for name in variables:
        if name in RESERVED_VARIABLES or name in taken:
            raise _unusable(name, f"The template variable {name!r} is set by the engine.", "Remove it.")
        if not (name.isascii() and name.isidentifier()) or len(name) > MAX_VARIABLE_CHARACTERS:
            said = f"{name[:MAX_VARIABLE_CHARACTERS]!r}"
            hint = f"Use ASCII letters, digits and underscores, at most {MAX_VARIABLE_CHARACTERS}."
            raise _unusable(name, f"A template variable cannot be named {said}.", hint)


def _unusable(name: str, fault: str, hint: str) -> ParameterError:
    return ParameterError(fault, param=f"chat_template_kwargs.{name[:MAX_VARIABLE_CHARACTERS]}", hint=hint)


def _broken(fault: str) -> TemplateError:
    return TemplateError(
        f"The chat template {fault}.",
        hint=OTHER_TEMPLATE,
    )
