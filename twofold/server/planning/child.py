"""The helper process of a server: computes one task after another at low priority, within limits.

Started as ``python -m twofold.server.planning.child SECONDS``. A request is a JSON object with ``task`` and ``values``;
the text of a reply is the document in JSON, or for an error an object with its words.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import msgspec
import orjson

from twofold.core.child import begin, limited, read_message, send_message
from twofold.core.errors import ModelNotFoundError, ParameterError, ResourceError, TwofoldError
from twofold.planner.price.catalog import known_catalog
from twofold.server.planning.work import TASKS

DONE: Final = "d"
REFUSED: Final = "r"
TOO_LARGE: Final = "m"
FAILED: Final = "f"
"""Kinds of replies: the document; an error of the request; too much memory; a fault of the program."""
NICENESS: Final = 10
MEMORY: Final = 768 << 20
"""Maximum bytes of the whole process; the largest plans take a tenth."""
MAX_REPLY: Final = 8 << 20
ENCODER: Final = msgspec.json.Encoder(enc_hook=float)
"""Cited numbers and decimals are written as floats."""


def reply_to(text: str, seconds: float) -> str:
    """The kind of the reply, and its text."""
    asked = orjson.loads(text)
    if asked["task"] == "price":
        known_catalog()  # read once, in seconds that no caller pays for
    try:
        with limited(seconds, MEMORY):
            found = ENCODER.encode(TASKS[asked["task"]](asked["values"])).decode()
    except MemoryError:
        return TOO_LARGE
    except TwofoldError as error:
        return REFUSED + orjson.dumps(_described(error)).decode()
    except Exception as error:
        return FAILED + type(error).__name__
    return DONE + found if len(found) <= MAX_REPLY else TOO_LARGE


def _described(error: TwofoldError) -> dict[str, Any]:
    param = error.param if isinstance(error, ParameterError) else None
    return {
        "message": str(error),
        "hint": error.hint,
        "param": "own" if isinstance(error, ResourceError) else param,  # of the hardware in a price, not of this one
        "unknown_model": isinstance(error, ModelNotFoundError),
    }


def main(seconds: float) -> None:
    """Serves until standard input ends."""
    os.nice(NICENESS)
    requests, replies = begin()
    while (text := read_message(requests)) is not None:
        send_message(replies, reply_to(text, seconds))


if __name__ == "__main__":
    main(float(sys.argv[1]))
