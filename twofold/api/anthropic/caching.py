"""Anthropic's ``cache_control``: which beginnings of a prompt shall stay cached, and for how long.

Rules of the API: at most four; those of an hour before those of five minutes, in the order tools, system, messages.
"""

from __future__ import annotations

from typing import Literal

from twofold.api.body import RequestObject
from twofold.api.fields import FieldError
from twofold.core.request import MAX_PINS, TimeToLive


class CacheControl(RequestObject):
    """The prompt up to the end of the object that has it stays cached."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class CacheControls:
    """Checks the controls of one body; ``take`` is called in the order in which they count."""

    def __init__(self) -> None:
        self._count = 0
        self._shortened = False

    def take(self, control: CacheControl | None, owner: str) -> TimeToLive | None:
        """The time for which everything up to the end of the object at ``owner`` stays; None without a control.

        Raises FieldError for a control too many, or one that outlives one before it.
        """
        if control is None:
            return None
        self._check(f"{owner}.cache_control".lstrip("."), control.ttl)
        return control.ttl

    def _check(self, name: str, ttl: TimeToLive) -> None:
        self._count += 1
        if self._count > MAX_PINS:
            raise FieldError(f"There are more than {MAX_PINS} cache_control blocks.", param=name)
        if ttl == "1h" and self._shortened:
            raise FieldError(
                f"{name} has ttl 1h, but one before it has 5m.",
                param=name,
                hint="Put 1h blocks first; the order is tools, system, messages.",
            )
        self._shortened = ttl == "5m"
