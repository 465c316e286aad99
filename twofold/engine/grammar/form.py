"""What the engine asks of a form, wherever its masks are made."""

from __future__ import annotations

from typing import Protocol

from twofold.core.step import TokenConstraint


class FormConstraint(TokenConstraint, Protocol):
    """The constraint of an answer that has a form: there is always a mask."""

    def mask(self) -> memoryview:
        """``TokenConstraint.mask``."""
        ...

    def fork(self) -> FormConstraint:
        """``TokenConstraint.fork``."""
        ...


class AnswerForm(Protocol):
    """A form, compiled. ``enough_tokens`` is how many tokens are known to be enough for an answer."""

    @property
    def enough_tokens(self) -> int: ...

    def start(self, max_tokens: int) -> FormConstraint:
        """The constraint of one answer of at most ``max_tokens`` tokens, valid wherever it ends.

        Raises ParameterError if the form needs more tokens than that.
        """
        ...
