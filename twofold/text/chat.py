"""Chat templates: the Jinja text inside a model file that turns messages into a prompt.

The variables and functions are those that Hugging Face's templates expect: ``messages``, ``tools``,
``add_generation_prompt``, ``bos_token``, ``eos_token``, ``raise_exception``, ``strftime_now``, ``tojson``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError

from twofold.core.errors import ParameterError, TemplateError
from twofold.text.messages import plain, texts_of
from twofold.text.sandbox import Meter, Sandbox

MAX_TEMPLATE_CHARACTERS = 64 << 10
MAX_ERROR_CHARACTERS = 500
MAX_DATE_FORMAT = 64
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})


class ChatTemplate:
    """A compiled template. Raises TemplateError for source that is too long or not valid Jinja.

    ``clock`` gives the local time that ``strftime_now`` shows.
    """

    def __init__(self, source: str, *, clock: Callable[[], datetime] = datetime.now) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise _broken(f"has {len(source)} characters; at most {MAX_TEMPLATE_CHARACTERS} are allowed")
        self.source = source
        self._clock = clock
        self._sandbox = Sandbox()
        self._sandbox.filters["tojson"] = self._to_json
        self._sandbox.globals |= {"raise_exception": _refuse, "strftime_now": self._now}
        try:
            self._template = self._sandbox.from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
            raise _broken(f"is not valid: {_shortened(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        special_tokens: Mapping[str, str] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt. ``messages`` are as ``messages.validated`` returns them.

        Raises TemplateError when the template refuses them, fails, or takes too long; ParameterError for a variable
        whose name is taken.
        """
        named = dict(special_tokens or {})
        for name in variables.keys() & (_RESERVED | named.keys() | self._sandbox.globals.keys()):
            raise ParameterError(
                f"The template variable {name!r} is set by the engine.", param=name, hint="Choose another name."
            )
        context = named | {
            "messages": plain(messages),
            "tools": plain(tools),
            "add_generation_prompt": add_generation_prompt,
            **plain(variables),
        }
        meter = Meter(sum(map(len, texts_of(context))))
        try:
            return self._sandbox.metered(meter, lambda: self._template.render(context))
        except _Refusal as refusal:
            raise TemplateError(
                f"The chat template refuses the messages: {_shortened(refusal)}",
                hint="Change the messages, or choose another chat template.",
            ) from refusal
        except SecurityError as error:
            raise _broken(f"was stopped: {_shortened(error)}") from error
        except RecursionError as error:
            raise _broken("recurses too deeply") from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise _broken(f"failed on these messages: {_shortened(error)}") from error

    def _to_json(self, value: Any, indent: int | None = None, **options: Any) -> str:
        """JSON as it stands, without HTML escapes, keys in order of appearance."""
        if not set(options) <= {"ensure_ascii", "separators", "sort_keys"} or (indent is not None and indent > 8):
            raise SecurityError("these options of 'tojson' are not available")
        meter = self._sandbox.meter
        meter.spend(meter.weight(value) * (1 + (indent or 0)))
        text = json.dumps(value, indent=indent, **({"ensure_ascii": False} | options))
        meter.spend(len(text))
        return text

    def _now(self, pattern: str) -> str:
        if len(pattern) > MAX_DATE_FORMAT or any(character.isdigit() for character in pattern):
            raise SecurityError("the date format is too elaborate")
        return self._clock().strftime(pattern)


class _Refusal(jinja2.TemplateError):
    """The template itself called ``raise_exception``."""


def _refuse(message: str = "no reason given") -> NoReturn:
    raise _Refusal(str(message)[:MAX_ERROR_CHARACTERS])


def _shortened(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARACTERS else text[:MAX_ERROR_CHARACTERS] + "…"


def _broken(fault: str) -> TemplateError:
    return TemplateError(
        f"The chat template {fault}.",
        hint="Choose another one with chat_template: the name of a built-in family, or Jinja source.",
    )
