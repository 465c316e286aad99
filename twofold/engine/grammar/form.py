"""Structured output as a caller asks for it: its form, what is refused without compiling it, and errors of both sides.
The engine needs no more of a grammar than this; processes of their own compile it (``host``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from twofold.core.errors import ParameterError
from twofold.core.params import StructuredOutputsParams
from twofold.core.step import TokenConstraint

WORD_BITS: Final = 32
"""Tokens of a word of a mask."""
MAX_SOURCE_BYTES: Final = 262_144
MAX_LEVELS: Final = 124
"""Nested objects and lists that llguidance reads in any schema; TOO_DEEP is what it says of more."""
TOO_DEEP: Final = "recursion limit exceeded"


class OutputGrammar(Protocol):
    """A compiled grammar. ``ends``: a valid output of ``min_tokens`` tokens is known; else the limit of a completion
    may cut it."""

    @property
    def min_tokens(self) -> int: ...

    @property
    def ends(self) -> bool | None: ...

    def start(self, max_tokens: int) -> TokenConstraint:
        """The constraint of one completion of at most ``max_tokens`` tokens, which is valid whenever it ends if
        ``ends``.

        Raises ParameterError if the grammar needs more tokens than that.
        """
        ...


def form_of(params: StructuredOutputsParams) -> str:
    """The caller's name for the kind of the structured output."""
    names = ("json", "regex", "choice", "grammar")
    return next((name for name in names if getattr(params, name) is not None), "json_object")


def portable(params: StructuredOutputsParams) -> StructuredOutputsParams:
    """The same form with its schema as text, for other processes. Raises ParameterError for a form that is too long or
    not Unicode text."""
    if isinstance(params.json, Mapping):
        with json_errors():
            params = StructuredOutputsParams(json=json.dumps(params.json))
    form = form_of(params)
    if form != "json_object":
        text = getattr(params, form)
        _check_size(form, text if isinstance(text, str) else "".join(text))
    return params


@contextmanager
def json_errors() -> Iterator[None]:
    """Turns the errors of reading or writing JSON in the block into ParameterError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        line = str(error).split("\n")[0][:120]
        if TOO_DEEP in line:
            raise too_deep("json") from error
        raise impossible("json", f"is not JSON: {line}", "Send a JSON schema.") from error
    except RecursionError as error:
        raise too_deep("json") from error


def too_deep(form: str) -> ParameterError:
    """The error for a schema with more levels than llguidance reads."""
    what = f"is nested too deeply: a schema has at most {MAX_LEVELS} levels of objects and lists"
    return impossible(form, what, "Use $defs and $ref for what repeats.")


def impossible(form: str, why: str, hint: str) -> ParameterError:
    """The error for a grammar that cannot be used."""
    return ParameterError(f"The structured output's {form} {why}.", param=f"structured_outputs.{form}", hint=hint)


def _check_size(form: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise impossible(form, "holds a lone surrogate, which is not Unicode text", "Send it as UTF-8.") from error
    if size > MAX_SOURCE_BYTES:
        raise impossible(form, f"takes {size} bytes, at most {MAX_SOURCE_BYTES} are possible", "Make it smaller.")
    if "\0" in text:
        raise impossible(form, "holds a NUL character", "Write it as an escape.")


def too_much(form: str, why: str) -> ParameterError:
    """The error for a grammar that exceeds a limit."""
    return impossible(form, why, "Make it smaller: fewer alternatives, properties, repetitions or levels.")


def check_room(min_tokens: int, max_tokens: int) -> None:
    """Raises ParameterError if the shortest known output is longer than ``max_tokens``."""
    if max_tokens < min_tokens:
        raise ParameterError(
            f"The structured output needs at least {min_tokens} tokens; max_tokens is {max_tokens}.",
            param="max_tokens",
            hint=f"Set max_tokens to well above {min_tokens}.",
        )
