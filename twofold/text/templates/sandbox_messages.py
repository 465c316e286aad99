"""Messages between a process that renders a chat template and its client.

The first request is the template's source, others are JSON objects with ``variables`` and ``now`` (ISO 8601). Each gets
a reply: one letter for its kind, and a text. A message is its length (four bytes, little-endian) and that many bytes
of UTF-8, in which lone surrogates are kept.
"""

from __future__ import annotations

from typing import BinaryIO, Final

DONE: Final = "d"
REFUSED: Final = "r"
FAILED: Final = "f"
UNSAFE: Final = "u"
EXCEEDED: Final = "e"
INVALID: Final = "i"
"""Kinds of replies: the prompt, or an error: the template refused the variables, failed, used a forbidden function,
exceeded a limit, or is not valid."""
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
