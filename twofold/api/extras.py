"""Fields of Twofold's own, which every dialect takes under one key: ``"twofold": {"explain": true}``."""

from __future__ import annotations

from twofold.api.fields import Fields


def read_explain(fields: Fields) -> bool:
    """Whether the reply shall carry the request's record."""
    ours = fields.inner("twofold")
    if ours is None:
        return False
    explain = ours.flag("explain")
    ours.close()
    return explain
