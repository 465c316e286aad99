"""``expires_after``: how long a file lives, as OpenAI's bodies say it."""

from __future__ import annotations

from typing import Final

from twofold.api.fields import MISSING, FieldError, Fields

LEAST_SECONDS: Final = 3600
MOST_SECONDS: Final = 30 * 86400


def read_lifetime(fields: Fields, name: str) -> int | None:
    """Seconds that a file lives after it was made: the field ``name`` is {"anchor": "created_at", "seconds": …}.

    None where it is left out. Raises FieldError.
    """
    inner = fields.inner(name)
    if inner is None:
        return None
    inner.choice("anchor", ("created_at",))
    seconds = inner.whole("seconds", LEAST_SECONDS, MOST_SECONDS)
    inner.close()
    if seconds is None:
        raise FieldError(f"{name}.seconds is required.", param=f"{name}.seconds", code=MISSING)
    return seconds
