"""Ids of requests (in headers, logs and traces) and of replies."""

from __future__ import annotations

import re
import secrets
from typing import Final

PLAIN: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_request_id() -> str:
    """A unique id: ``req_`` and 96 random bits."""
    return f"req_{secrets.token_hex(12)}"


def new_reply_id() -> str:
    """A unique id of 96 random bits; each API adds its prefix."""
    return secrets.token_hex(12)


def request_id_of(given: bytes | None) -> str:
    """The client's id of its request if it is short and plain, else a new one."""
    if given is not None and PLAIN.fullmatch(given):
        return given.decode("ascii")
    return new_request_id()
