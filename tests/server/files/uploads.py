"""Forms as clients send them."""

from __future__ import annotations

from collections.abc import AsyncIterator

BOUNDARY = "a-boundary"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, value: bytes | str, filename: str | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    named = "" if filename is None else f'; filename="{filename}"'
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + data + b"\r\n"


def form(
    data: bytes = b"{}\n", filename: str = "in.jsonl", *, purpose: str = "batch", anchor: str = "", seconds: str = ""
) -> bytes:
    """A whole form; its small fields come before the file."""
    fields = {"purpose": purpose, "expires_after[anchor]": anchor, "expires_after[seconds]": seconds}
    small = b"".join(part(name, value) for name, value in fields.items() if value)
    return small + part("file", data, filename) + ending()


def ending() -> bytes:
    return f"--{BOUNDARY}--\r\n".encode()


async def pieces(data: bytes, size: int = 1 << 16) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
