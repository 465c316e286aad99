"""Bytes that are not valid HTTP or JSON, and connections that are reset: each gets one response, without harm."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from pathlib import Path
from typing import Final

import pytest

from tests.server.live import LiveServer
from tests.server.trust.client import Client

BODY: Final = b'{"model":"tiny","prompt":"a","max_tokens":1}'
MANY: Final = 2_000_000
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"


def _post(extra: bytes = b"", body: bytes = BODY, *, length: bool = True, host: bytes = b"localhost") -> bytes:
    counted = b"Content-Length: %d\r\n" % len(body) if length else b""
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nConnection: close\r\n" % host
    )
    return head + counted + extra + b"\r\n" + body


def _get(path: bytes = b"/health", extra: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"GET %b HTTP/%b\r\nHost: localhost\r\n%bConnection: close\r\n\r\n" % (path, version, extra)


def _chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


RAW: Final[dict[str, tuple[bytes, set[int]]]] = {
    "plain": (_post(), {200}),
    "chunked": (_post(CHUNKED, _chunks(BODY), length=False), {200}),
    "two framings": (_post(CHUNKED, _chunks(BODY)), {400}),
    "odd coding": (_post(b"Transfer-Encoding: xchunked\r\n", _chunks(BODY), length=False), {400, 501}),
    "space before colon": (_post(b"Transfer-Encoding : chunked\r\n", _chunks(BODY), length=False), {400}),
    "gzip, chunked": (_post(b"Transfer-Encoding: gzip, chunked\r\n", _chunks(BODY), length=False), {400, 501}),
    "tab before coding": (_post(b"Transfer-Encoding:\tchunked\r\n", _chunks(BODY), length=False), {200}),
    "coding twice": (_post(CHUNKED * 2, _chunks(BODY), length=False), {400}),
    "identity": (_post(b"Transfer-Encoding: identity\r\n"), {400}),
    "folded coding": (_post(b"X: a\r\n " + CHUNKED, _chunks(BODY), length=False), {400}),
    "same length twice": (_post(b"Content-Length: %d\r\n" % len(BODY)), {200, 400}),
    "two lengths": (_post(b"Content-Length: 1\r\n"), {400}),
    "signed length": (_post(b"Content-Length: +10\r\n", length=False), {400}),
    "huge length": (_post(b"Content-Length: " + b"9" * 4000 + b"\r\n", length=False), {400, 413}),
    "negative length": (_post(b"Content-Length: -1\r\n", length=False), {400}),
    "length in other digits": (_post("Content-Length: ١٢\r\n".encode(), length=False), {400}),
    "hexadecimal length": (_post(b"Content-Length: 0x10\r\n", length=False), {400}),
    "negative chunk": (_post(CHUNKED, b"-1\r\n\r\n", length=False), {400}),
    "hexadecimal chunk": (_post(CHUNKED, b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY), length=False), {400}),
    "chunk extension": (
        _post(CHUNKED, b"%x;a=%b\r\n%b\r\n0\r\n\r\n" % (len(BODY), b"b" * 999, BODY), length=False),
        {200},
    ),
    "long chunk extension": (_post(CHUNKED, b"5;a=" + b"b" * 300_000, length=False), {431}),
    "trailers": (_post(CHUNKED, _chunks(BODY)[:-2] + b"X-A: b\r\n\r\n", length=False), {200}),
    "many trailers": (_post(CHUNKED, _chunks(BODY)[:-2] + b"X-A: bbbb\r\n" * 9999 + b"\r\n", length=False), {200, 431}),
    "bad end of a chunk": (_post(CHUNKED, b"%x\r\n%bXX0\r\n\r\n" % (len(BODY), BODY), length=False), {400}),
    "hidden request": (_post(b"Content-Length: 0\r\n", _get(), length=False), {400}),
    "long head": (_get(extra=b"X: " + b"a" * 60_000 + b"\r\n"), {200}),
    "endless path": (b"GET /" + b"a" * 200_000, {431}),
    "path of another server": (_get(b"http://evil.example/health"), {404}),
    "path outside of ASCII": (_get("/héalth".encode()), {400}),
    "path with a null": (_get(b"/health%00"), {404}),
    "path with dots": (_get(b"/v1/files/..%2f..%2fetc%2fpasswd/content"), {404}),
    "bad escapes": (_get(b"/%zz%ff%c0%af"), {400, 404}),
    "another case": (_get(b"/Health"), {404}),
    "CONNECT": (b"CONNECT evil:80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", {400, 404, 405}),
    "TRACE": (b"TRACE /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", {405}),
    "long method": (b"A" * 10_000 + b" /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", {400, 405}),
    "null in the method": (b"GE\x00T /health HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    "two hosts": (_get(extra=b"Host: localhost\r\n"), {400}),
    "host as a number": (_post(host=b"2130706433"), {403}),
    "host of a name service": (_post(host=b"127.0.0.1.nip.io"), {403}),
    "host begins like ours": (_post(host=b"localhost.evil.com"), {403}),
    "empty host": (_post(host=b""), {403}),
    "no host": (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", {400}),
    "another host": (_post(host=b"attacker.example"), {403}),
    "host in another form": (_post(host=b"localhost@evil.com"), {403}),
    "origin": (_post(b"Origin: http://evil.example\r\n"), {403}),
    "null origin": (_post(b"Origin: null\r\n"), {403}),
    "another page asks first": (
        b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
        b"Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n",
        {403},
    ),
    "text": (_post().replace(b"application/json", b"text/plain"), {400}),
    "packed": (_post(b"Content-Encoding: br\r\n"), {400}),
    "blank in a header's name": (_get(extra=b"X Y: a\r\n"), {400}),
    "folded request id": (_get(extra=b"X-Request-Id: a\r\n b\r\n"), {200}),
    "odd trace": (_get(extra=b"Traceparent: " + b"x" * 5000 + b"\r\n"), {200}),
    "any other expectation": (_post(b"Expect: banana\r\n"), {200, 417}),
    "upgrade": (_get(extra=b"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n"), {200, 400}),
    "lines without a return": (b"GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n", {200, 400}),
    "null in a header": (_get(extra=b"X: a\x00b\r\n"), {400}),
    "return in a header": (_get(extra=b"X: a\rb\r\n"), {400}),
    "header without a name": (_get(extra=b": a\r\n"), {400}),
    "other versions": (_get(version=b"9.9"), {400}),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    "TLS": (bytes.fromhex("16030100a5010000a10303") + b"\r\n\r\n" * 40, {400}),
    "nulls": (b"\0" * 100_000, {400, 431}),
    "garbage": (bytes(range(256)) * 40, {400}),
}
JSON: Final[dict[str, tuple[bytes, int]]] = {
    "brackets": (b"[" * MANY, 413),
    "lists": (b"[" + b"[]," * (MANY // 3) + b"1]", 413),
    "nested objects": (b'{"a":' * 30_000 + b"1" + b"}" * 30_000, 400),
    "values": (b'{"prompt":"a","x":[' + b"1," * 420_000 + b"1]}", 413),
    "field many times": (b"{" + b'"a":1,' * 260_000 + b'"prompt":"a"}', 400),
    "texts": (b'["' + b'","' * (MANY // 3) + b'"]', 413),
    "backslashes": (b'{"prompt":"a","max_tokens":1,"user":"' + b"\\\\" * (MANY // 2 - 99) + b'"}', 200),
    "escapes": (b'{"prompt":"a","max_tokens":1,"user":"' + b"\\u0041" * (MANY // 6 - 99) + b'"}', 200),
    "commas in a text": (b'{"prompt":"a","max_tokens":1,"user":"' + b"," * (MANY - 99) + b'"}', 200),
    "brackets in a text": (b'{"prompt":"a","max_tokens":1,"user":"' + b"{[" * (MANY // 2 - 99) + b'"}', 200),
    "escaped quotes": (b'{"prompt":"a","max_tokens":1,"user":"' + b'\\"{' * (MANY // 3 - 99) + b'"}', 200),
    "quotes": (b'"' * MANY, 400),
    "fields twice": (b'{"prompt":[1],"prompt":"a","max_tokens":1}', 200),
    "infinite": (b'{"prompt":"a","temperature":1e99999}', 400),
    "a long number": (b'{"prompt":"a","seed":' + b"1" * (MANY // 2) + b"}", 400),
    "byte order mark": (b"\xef\xbb\xbf" + BODY, 200),
    "UTF-16": (BODY.decode().encode("utf-16"), 400),
    "surrogate": (b'{"prompt":"\xed\xa0\x80"}', 400),
    "overlong": (b'{"prompt":"\xc0\xaf"}', 400),
    "null byte": (b'{"prompt":"a\x00b"}', 400),
    "two objects": (BODY + b" {}", 400),
    "single quotes": (b"{'prompt':'a'}", 400),
    "blanks before it": (b" " * (MANY - 99) + BODY, 200),
    "lines before a mistake": (b"\n" * (MANY - 99) + b"{", 400),
    "comment": (b"/*x*/" + BODY, 400),
    "NaN": (b'{"prompt":"a","temperature":NaN}', 400),
    "nothing": (b"", 400),
    "blanks": (b" " * MANY, 400),
    "null": (b"null", 400),
    "attributes": (b'{"prompt":"a","__class__":{}}', 400),
}


async def _answers(client: Client, data: bytes) -> bytes:
    """What comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    try:
        async with asyncio.timeout(20):
            writer.write(data)
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("kind", RAW)
def test_one_answer_to_odd_bytes(client: Client, kind: str) -> None:
    data, statuses = RAW[kind]
    answer = asyncio.run(_answers(client, data))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert int(answer.split()[1]) in statuses, answer[:300]
    assert asyncio.run(client.get("/health")).status == 200


@pytest.mark.parametrize("kind", JSON)
def test_one_answer_to_odd_json(client: Client, kind: str) -> None:
    body, status = JSON[kind]
    answer = asyncio.run(_answers(client, _post(body=body)))
    assert int(answer.split()[1]) == status, answer[:300]
    assert len(answer) < 4096
    assert asyncio.run(client.get("/health")).status == 200


def test_connections_that_are_reset_leave_nothing(server: LiveServer) -> None:
    """Half a head, then a reset: no line in the log and no open file for each."""
    client, folder = Client(server.url), Path(f"/proc/{server.process.pid}/fd")
    asyncio.run(client.get("/health"))
    lines, files = len(server.log.read_text().splitlines()), len(list(folder.iterdir()))
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", client.port)) as half:
            half.sendall(b"GET /hea")
            half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for _ in range(100):
        if len(list(folder.iterdir())) <= files + 2:
            break
        time.sleep(0.05)
    assert len(list(folder.iterdir())) <= files + 2
    assert len(server.log.read_text().splitlines()) - lines <= 2
