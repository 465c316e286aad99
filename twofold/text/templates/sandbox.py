"""Renders an untrusted chat template. Requests arrive on standard input, replies go to standard output.

Started as ``python -m twofold.text.templates.sandbox SECONDS``.

A process of its own, so that a template exceeds limits without harm to the client (``chat``). The kernel ends the
process after SECONDS of processor time for one reply, and limits its memory.
``ImmutableSandboxedEnvironment`` closes the ways to Python's internals and forbids changes to the variables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twofold.core.child import begin, limited, read_message, send_message
from twofold.text.templates.sandbox_messages import (
    DONE,
    EXCEEDED,
    FAILED,
    INVALID,
    REFUSED,
    UNSAFE,
)

MEMORY: Final = 96 << 20
MEMORY_PER_INPUT: Final = 32
"""Maximum bytes of the whole process (about 10 MiB are Python's own), plus bytes for each character of a request."""
MAX_CHARACTERS: Final = 4 << 20
CHARACTERS_PER_INPUT: Final = 16
"""Maximum characters of a rendered text, plus characters for each character of a request."""
MAX_ERROR_CHARACTERS: Final = 500


class _GenerationTag(Extension):
    """``{% generation %}`` marks what the model wrote, for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refusal(jinja2.TemplateError):
    """The template itself called ``raise_exception``."""


class _TooLongError(Exception):
    """The text has too many characters."""


KINDS: Final = {_Refusal: REFUSED, SecurityError: UNSAFE, _TooLongError: EXCEEDED}


def _refuse(message: str = "no reason given") -> NoReturn:
    raise _Refusal(str(message)[:MAX_ERROR_CHARACTERS])


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, with keys in order of insertion."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _written(value: object) -> object:
    """A value for output. Other Python objects would print their address, which differs each time."""
    if isinstance(value, (str, int, float, list, tuple, dict, set, Undefined)) or value is None:
        return value
    raise SecurityError(f"a value of type {type(value).__name__} cannot be written out")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Functions and filters that Hugging Face's templates expect. All give the same output for the same input."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")}
        self.globals["raise_exception"] = _refuse
        self.finalize = _written
        self.filters["tojson"] = _to_json
        del self.filters["random"]


def _rendered(template: jinja2.Template, request: str, max_characters: int) -> str:
    given = json.loads(request)
    now = datetime.fromisoformat(given["now"])
    text = template.render(given["variables"] | {"strftime_now": now.strftime})
    if len(text) > max_characters:
        raise _TooLongError(f"its text is longer than {max_characters} characters")
    return text


def _limited(work: Callable[[], str], seconds: float, memory: int) -> tuple[str, str]:
    """The kind of reply, and the result of ``work`` or why it failed. A timer ends the process if it takes too long."""
    try:
        with limited(seconds, memory) as allowed:
            return DONE, work()
    except MemoryError:
        return EXCEEDED, f"it needs more than {allowed >> 20} MiB of memory"
    except RecursionError:
        return FAILED, "it recurses too deeply"
    except Exception as error:  # templates can raise anything
        kind = next((kind for cause, kind in KINDS.items() if isinstance(error, cause)), FAILED)
        return kind, _shortened(error)


def _shortened(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARACTERS else text[:MAX_ERROR_CHARACTERS] + "…"


def _serve(requests: BinaryIO, replies: BinaryIO, seconds: float) -> None:
    """Compiles the first request, a template, and renders it for each of the others."""
    template: jinja2.Template | None = None

    def compile_(source: str) -> str:
        nonlocal template
        template = _Sandbox().from_string(source)
        return ""

    while (text := read_message(requests)) is not None:
        if template is None:
            kind, reply = _limited(partial(compile_, text), seconds, MEMORY)
            kind = INVALID if kind == FAILED else kind
        else:
            max_characters = MAX_CHARACTERS + CHARACTERS_PER_INPUT * len(text)
            memory = MEMORY + MEMORY_PER_INPUT * len(text)
            kind, reply = _limited(partial(_rendered, template, text, max_characters), seconds, memory)
        send_message(replies, kind + reply)


def main(seconds: float) -> None:
    """Serves until standard input ends."""
    requests, replies = begin()
    _serve(requests, replies, seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]))
