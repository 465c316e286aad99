"""Reads the body of POST /v1/batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Self

from twofold.api.fields import Fields, impossible
from twofold.server.files.form import read_lifetime

WINDOW: Final = "24h"
WINDOW_SECONDS: Final = 86400
MAX_PAIRS: Final = 16
MAX_KEY_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512
MAX_ID_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """What shall be done. ``lifetime_s`` is how long the output files live; None for ever."""

    input_file_id: str
    endpoint: str
    metadata: Mapping[str, str] | None
    lifetime_s: int | None

    @classmethod
    def read(cls, body: object, endpoints: Collection[str]) -> Self:
        """Raises FieldError for an impossible, unknown or unsupported field."""
        fields = Fields(body)
        file_id = fields.require("input_file_id")
        if not isinstance(file_id, str) or len(file_id) > MAX_ID_CHARS:
            raise impossible("input_file_id", file_id, "the id of a file")
        fields.choice("completion_window", (WINDOW,))
        order = cls(
            file_id,
            fields.choice("endpoint", endpoints),
            read_metadata(fields),
            read_lifetime(fields, "output_expires_after"),
        )
        fields.close()
        return order


def read_metadata(fields: Fields) -> Mapping[str, str] | None:
    """Pairs by which the caller sorts batches."""
    given = fields.take("metadata")
    if given is None:
        return None
    if not isinstance(given, dict) or len(given) > MAX_PAIRS:
        raise impossible("metadata", given, f"an object of at most {MAX_PAIRS} texts")
    for key, value in given.items():
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARS or len(key) > MAX_KEY_CHARS:
            raise impossible(
                f"metadata.{key:.64}",
                value,
                f"text of at most {MAX_VALUE_CHARS} characters, its name of {MAX_KEY_CHARS}",
            )
    return given
