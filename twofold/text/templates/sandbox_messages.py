"""Kinds of replies of the process that renders a chat template. The first request is the template's source, others are
JSON objects with ``variables`` and ``now`` (ISO 8601)."""

from __future__ import annotations

from typing import Final

DONE: Final = "d"
REFUSED: Final = "r"
FAILED: Final = "f"
UNSAFE: Final = "u"
EXCEEDED: Final = "e"
INVALID: Final = "i"
"""Kinds of replies: the prompt, or an error: the template refused the variables, failed, used a forbidden function,
exceeded a limit, or is not valid."""
