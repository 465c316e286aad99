"""Names of requests, in headers, logs and traces, and of replies."""

from __future__ import annotations

import re
import secrets
from typing import Final

SANE: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_request_id() -> str:
    """A name that nothing else has: ``req_`` and 96 random bits."""
    return f"req_{new_reply_id()}"


def new_reply_id() -> str:
    """96 random bits: a name that nothing else has, before the prefix that a dialect gives it."""
    return secrets.token_hex(12)


def request_id_of(given: bytes | None) -> str:
    """The client's own name for its request where it is short and plain, or a new one."""
    if given is not None and SANE.fullmatch(given):
        return given.decode("ascii")
    return new_request_id()
