"""A plain request and its whole response, waited for: how a probe asks, before a load is sent."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from typing import Final

from twofold.bench.client.failures import network_error
from twofold.bench.client.request import head
from twofold.bench.client.response import ProtocolError, ResponseReader
from twofold.bench.client.target import Address, ServerTarget

CONNECT_S: Final = 10.0
MAX_BODY: Final = 64 * 1024 * 1024

Reply = tuple[int, Mapping[str, str], bytes]
"""Status, headers with names in lower case, and body."""


def reachable(target: ServerTarget) -> Address:
    """The first of the host's addresses that takes a connection. Raises NetworkError where none does."""
    failure: OSError = TimeoutError()
    for address in target.addresses():
        try:
            connect(address, CONNECT_S).close()
        except OSError as error:
            failure = error
        else:
            return address
    raise network_error(failure, target) from failure


def exchange(
    target: ServerTarget, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> Reply:
    """Asks once, on a connection of its own. Raises NetworkError where no response came, and says why."""
    start = head(target, method, path, {**headers, "connection": "close"})
    length = b"" if body is None else b"\r\ncontent-length: %d" % len(body)
    request = start + length + b"\r\n\r\n" + (body or b"")
    tls = target.tls  # certificates that cannot be used are told before anyone is asked
    address = reachable(target)
    try:
        with secured(connect(address, CONNECT_S), tls, target.host) as sock:
            return _ask(sock, request, time.monotonic() + timeout_s)
    except (OSError, EOFError, ProtocolError) as error:
        raise network_error(error, target) from error


def connect(address: Address, timeout_s: float) -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(where)
    except OSError:
        sock.close()
        raise
    return sock


def secured(sock: socket.socket, tls: ssl.SSLContext | None, host: str) -> socket.socket:
    if tls is None:
        return sock
    try:
        return tls.wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise


def _ask(sock: socket.socket, request: bytes, deadline: float) -> Reply:
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    sock.sendall(request)
    response, pieces, size = ResponseReader(), [], 0
    while not response.complete:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        data = sock.recv(1 << 16)
        if not data:
            if response.status is None:
                raise EOFError
            response.end()
            break
        pieces.append(response.feed(data))
        size += len(pieces[-1])
        if size > MAX_BODY:
            raise ProtocolError(f"The body of the response is longer than {MAX_BODY} bytes.")
    assert response.status is not None
    return response.status, response.headers, b"".join(pieces)
