"""Anthropic's ``cache_control``: which beginnings of a prompt shall stay cached, and for how long.

Rules of the API: at most four; those of an hour before those of five minutes, in the order tools, system, messages.
"""

from __future__ import annotations

from typing import Final

from twofold.api.fields import FieldError, Fields
from twofold.core.request import MAX_PINS, TimeToLive

TIMES: Final[dict[str, TimeToLive]] = {"5m": "5m", "1h": "1h"}


class CacheControls:
    """Reads the controls of one body; ``take`` is called in the order in which they count."""

    def __init__(self) -> None:
        self._count = 0
        self._shortened = False

    def take(self, owner: Fields) -> TimeToLive | None:
        """The time for which everything up to the end of this object shall stay; None where it says nothing.

        Raises FieldError for a control too many, or one that outlives one before it.
        """
        control = owner.inner("cache_control")
        if control is None:
            return None
        control.choice("type", ("ephemeral",))
        ttl = TIMES[control.choice("ttl", TIMES)] if control.take("ttl") is not None else "5m"
        control.close()
        self._check(owner.name("cache_control"), ttl)
        return ttl

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
