"""What a process that renders a chat template and the one that asks it send each other.

The template's source goes to it first, then a JSON object for each rendering: ``variables`` and ``now`` (ISO 8601). For
each of them a letter comes back, and a text. A message is its length, four bytes, little-endian, and that many bytes of
UTF-8, in which lone surrogates stay what they are.
"""

from __future__ import annotations

from typing import BinaryIO, Final

DONE: Final = "d"
REFUSED: Final = "r"
FAILED: Final = "f"
UNSAFE: Final = "u"
EXCEEDED: Final = "e"
INVALID: Final = "i"
"""What a text is: the prompt, or why there is none. The template refused the variables, failed on them, reached for
what is closed to it, exceeded a limit, or is not valid."""
HEAD_BYTES: Final = 4


def read_message(stream: BinaryIO) -> str | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(HEAD_BYTES)
    return decoded(stream.read(int.from_bytes(head, "little"))) if len(head) == HEAD_BYTES else None


def message(text: str) -> bytes:
    """A text as it is sent."""
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(HEAD_BYTES, "little") + data


def decoded(data: bytes) -> str:
    """The text of a message, without its length."""
    return data.decode("utf-8", "surrogatepass")
