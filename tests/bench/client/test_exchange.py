"""Single requests, their errors without a response, and TLS with all kinds of certificates."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.client.support import PlainLoad, Talk, asked, each, serving, streamed, whole
from twofold.bench.client.target import Reply, ServerTarget, exchange
from twofold.bench.load.base import Ask, EndedRequest
from twofold.core.errors import NetworkError

Trust = Callable[[str], ServerTarget]


def probe(
    target: ServerTarget, method: str = "GET", path: str = "/", body: bytes | None = None, *, timeout_s: float = 60.0
) -> Reply:
    return exchange(target, method, path, body, {"key": "k7"}, timeout_s)


def test_a_probe_gets_status_headers_and_body() -> None:
    told = []

    def serve(talk: Talk, _number: int) -> None:
        while (request := talk.request()) is not None:
            told.append(request)
            talk.send(whole(404, b"nothing here", "X-Told: yes"))

    with serving(serve) as authority:
        target = ServerTarget.of(f"http://{authority}/base/v1")
        status, headers, body = probe(target, "POST", "/tokenize", b'{"a": 1}')
        exchange(target, "GET", "/v1/models", None, {})
    assert (status, headers["x-told"], body) == (404, "yes", b"nothing here")
    assert told[0][0]["request"] == "POST /base/tokenize HTTP/1.1"
    assert (told[0][0]["key"], told[0][1]) == ("k7", {"a": 1})
    assert told[1][0]["request"] == "GET /base/v1/models HTTP/1.1"
    assert "key" not in told[1][0]


def test_a_probe_of_a_stream_and_of_a_body_without_length() -> None:
    def serve(talk: Talk, _number: int) -> None:
        if talk.request() is not None:
            talk.send(b"HTTP/1.1 200 OK\r\n\r\nhello")

    with serving(serve) as authority:
        assert probe(ServerTarget.of(authority))[2] == b"hello"
    with serving(each(streamed("a"))) as authority:
        assert probe(ServerTarget.of(authority))[2] == b"data: a\n\ndata: [DONE]\n\n"


def close(talk: Talk, _number: int) -> None:
    talk.request()


def wait(talk: Talk, _number: int) -> None:
    while talk.request() is not None:
        pass


@pytest.mark.parametrize(
    ("serve", "why", "timeout_s"),
    [
        (close, "closed the connection without a response", 60.0),
        (wait, "did not respond in time", 0.2),
        (each(b"SSH-2.0-OpenSSH_9.6\r\n"), "did not send an HTTP/1.1 response", 60.0),
        (each(whole(200, b"hello")[:-1]), "did not respond in time", 0.2),
    ],
)
def test_a_missing_response_is_explained(serve: Callable[[Talk, int], None], why: str, timeout_s: float) -> None:
    with serving(serve) as authority, pytest.raises(NetworkError, match=why) as raised:
        probe(ServerTarget.of(authority), timeout_s=timeout_s)
    assert raised.value.hint


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NetworkError, match="refused"):
        probe(ServerTarget.of(f"http://127.0.0.1:{port}"))


def certificate(folder: Path, name: str, *, expired: bool = False) -> tuple[Path, ssl.SSLContext]:
    """A certificate that signs itself, and a server's context with it."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    key, pem = folder / "key.pem", folder / "certificate.pem"
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key), "-out", str(pem)]
    subject = ["-subj", "/CN=test", "-addext", f"subjectAltName={name}"]
    subprocess.run(["openssl", "req", "-x509", *options, *subject], check=True, capture_output=True)
    if expired:
        again = ["-in", str(pem), "-signkey", str(key), "-days", "-1", "-out", str(pem)]
        subprocess.run(["openssl", "x509", *again], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    return pem, context


@pytest.mark.parametrize("verify", [True, False])
def test_a_load_over_tls(tmp_path: Path, verify: bool) -> None:
    pem, context = certificate(tmp_path, "IP:127.0.0.1")

    def target(authority: str) -> ServerTarget:
        return ServerTarget.of(f"https://{authority}", verify=verify, ca_file=pem if verify else None)

    def next_one(sample: EndedRequest, now_s: float) -> Ask | None:
        return Ask(2, now_s, 6_000_000, 1) if sample.ask.index == 1 else None

    load = PlainLoad((0.0, 0.0), pad=6_000_000, next_one=next_one)
    record = asked(each(streamed("a", "b" * 50_000, "c")), load, tls=context, target=target)
    assert [(sample.outcome, sample.error) for sample in record.samples] == [("ok", None)] * 3
    assert {sample.response.text for sample in record.samples} == {"a" + "b" * 50_000 + "c"}
    assert [sample.connect_s is None for sample in record.samples] == [False, False, True]


def test_a_probe_over_tls(tmp_path: Path) -> None:
    pem, context = certificate(tmp_path, "IP:127.0.0.1")
    with serving(each(whole(200, b"hello")), context) as authority:
        assert probe(ServerTarget.of(f"https://{authority}", ca_file=pem))[2] == b"hello"


@pytest.mark.parametrize(
    ("name", "trusted", "expired", "why"),
    [
        ("IP:127.0.0.1", False, False, "certificate that is not accepted: self-signed certificate"),
        ("DNS:elsewhere.example", True, False, "certificate that is not accepted: IP address mismatch"),
        ("IP:127.0.0.1", True, True, "has expired"),
    ],
)
def test_a_certificate_that_is_not_accepted(tmp_path: Path, name: str, trusted: bool, expired: bool, why: str) -> None:
    pem, context = certificate(tmp_path, name, expired=expired)

    def target(authority: str) -> ServerTarget:
        return ServerTarget.of(f"https://{authority}", ca_file=pem if trusted else None)

    with serving(each(whole(200, b"hello")), context) as authority:
        with pytest.raises(NetworkError, match=why) as raised:
            probe(target(authority))
        assert raised.value.hint is not None
        assert "--ca-file" in raised.value.hint
    (sample,) = asked(each(streamed("a")), PlainLoad((0.0,)), tls=context, target=target).samples
    assert sample.outcome == "broken"
    assert sample.error is not None
    assert why in sample.error


def test_tls_where_there_is_none() -> None:
    def target(authority: str) -> ServerTarget:
        return ServerTarget.of(f"https://{authority}")

    def greet(talk: Talk, _number: int) -> None:
        talk.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        talk._more()

    with serving(greet) as authority:
        with pytest.raises(NetworkError, match="does not speak TLS") as raised:
            probe(target(authority))
        assert raised.value.hint is not None
        assert "http://" in raised.value.hint
    (sample,) = asked(greet, PlainLoad((0.0,)), target=target).samples
    assert sample.outcome == "broken"
    assert sample.error is not None
    assert "does not speak TLS" in sample.error
