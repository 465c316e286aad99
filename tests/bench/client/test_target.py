"""URLs of servers in the forms that users write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.client.support import PlainEndpoint
from twofold.bench.client.loop import request_writer
from twofold.bench.client.target import ServerTarget, head
from twofold.bench.load.base import Ask
from twofold.core.errors import NetworkError, ParameterError


@pytest.mark.parametrize(
    ("url", "expected", "authority"),
    [
        ("http://localhost:8000", ServerTarget("http", "localhost", 8000), "localhost:8000"),
        ("localhost:8000/v1/", ServerTarget("http", "localhost", 8000), "localhost:8000"),
        ("https://Host.example/v1", ServerTarget("https", "host.example", 443), "host.example"),
        ("https://host/api/openai/v1", ServerTarget("https", "host", 443, "/api/openai"), "host"),
        ("http://[::1]:9/", ServerTarget("http", "::1", 9), "[::1]:9"),
        ("http://host:80", ServerTarget("http", "host", 80), "host"),
    ],
)
def test_urls(url: str, expected: ServerTarget, authority: str) -> None:
    target = ServerTarget.of(url)
    assert target == expected
    assert target.authority == authority


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "is not the URL"),
        ("ftp://host", "is not the URL"),
        ("http://", "is not the URL"),
        ("http://host:99999", "is not the URL"),
        ("http://[::1", "is not the URL"),
        ("http://key@host", "user name"),
        ("http://host/?a=b", "has a query"),
        ("http://host/v1/chat/completions", "names an endpoint"),
    ],
)
def test_invalid_base_urls(url: str, why: str) -> None:
    with pytest.raises(ParameterError, match=why) as raised:
        ServerTarget.of(url)
    assert raised.value.hint


def test_an_error_does_not_show_a_key() -> None:
    with pytest.raises(ParameterError) as raised:
        ServerTarget.of("http://user:sk-secret@host")
    assert "secret" not in f"{raised.value} {raised.value.hint}"


def test_an_unknown_host_is_a_network_error() -> None:
    with pytest.raises(NetworkError, match=r"No address is known for the host 'no-such-host\.invalid'"):
        ServerTarget.of("http://no-such-host.invalid").addresses()


def test_an_invalid_file_of_certificates(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    with pytest.raises(ParameterError, match="cannot be used"):
        _ = ServerTarget.of("https://host", ca_file=path).tls
    path.write_text("no certificate")
    with pytest.raises(ParameterError, match="cannot be used"):
        _ = ServerTarget.of("https://host", ca_file=path).tls
    assert ServerTarget.of("http://host").tls is None


def test_a_head_has_every_header_once() -> None:
    told = head(ServerTarget.of("http://host:81/api"), "GET", "/v1/models", {"User-Agent": "me", "X-Key": "k"})
    lines = told.decode().split("\r\n")
    assert lines[0] == "GET /api/v1/models HTTP/1.1"
    assert lines[1:] == [
        "host: host:81",
        "user-agent: me",
        "accept: application/json, text/event-stream",
        "accept-encoding: identity",
        "x-key: k",
    ]


@pytest.mark.parametrize("header", [("key", "secret\r\nb: c"), ("key", "secret…"), ("a b", "secret"), ("", "secret")])
def test_a_header_with_forbidden_characters_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(ParameterError, match="contains characters") as raised:
        head(ServerTarget.of("host"), "GET", "/", dict([header]))
    assert "secret" not in str(raised.value)


def test_requests_are_written() -> None:
    request = request_writer(ServerTarget.of("host"), PlainEndpoint(Authorization="Bearer k"))(Ask(3, 0.0, 2, 1))
    start, _, body = request.partition(b"\r\n\r\n")
    assert body == b'{"index": 3, "pad": "xx"}'
    assert start.endswith(b"content-type: application/json\r\nauthorization: Bearer k\r\ncontent-length: 25")
