"""The middleware refuses requests without a key, from other origins and for other hosts."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.server.edge.service import Running, body_of, dialect_of, get, headers_of, post, running, status_of
from twofold.core.errors import BusyError, MethodError, ParameterError, QuotaError, TwofoldError, UsageError
from twofold.server.edge.hosts import Hosts, Origins
from twofold.server.edge.keys import KeyRing, single_keys
from twofold.server.edge.limits import BodyLimits, ConnectionLimits, affordable_connections
from twofold.server.edge.middleware import PIECE, EdgeMiddleware, check_exposure
from twofold.server.edge.refusals import error_headers, new_request_id, request_id_of

OPEN = KeyRing(required=False)
(KEY,) = single_keys(["secret"])
CLOSED = KeyRing([KEY])


class InnerApp:
    """An application that records the requests that reach it."""

    def __init__(self, body: bytes = b"ok") -> None:
        self.arrivals: list[dict[str, Any]] = []
        self.body = body

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        self.arrivals.append(scope["state"] | {"path": scope["path"]})
        await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"max-age=1")]})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await send({"type": "http.response.body"})


def send_request(
    app: EdgeMiddleware, path: str = "/v1/models", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """The response of the middleware: status, headers and body."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        assert len(message.get("body", b"")) <= PIECE
        messages.append(message)

    given = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": raw, "state": {}}
    asyncio.run(app(scope, receive, send))
    response_headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    assert not messages[-1].get("more_body", False)
    return messages[0]["status"], response_headers, b"".join(message.get("body", b"") for message in messages[1:])


def middleware(inner: InnerApp, ring: KeyRing = OPEN, **rest: Any) -> EdgeMiddleware:
    return EdgeMiddleware(inner, lambda: ring, dialect_of, **rest)


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE", "BREW"])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/models",
        "/metrics",
        "//v1/models/",
        "/HEALTH",
        "/health/../v1/models",
        "/docs",
        "",
        "/ready\x00",
    ],
)
def test_every_path_requires_a_key(path: str, method: str) -> None:
    inner = InnerApp()
    status, headers, body = send_request(middleware(inner, CLOSED), path, method, authorization="Bearer wrong")
    assert status == 401
    assert (headers["www-authenticate"], headers["x-should-retry"]) == ("Bearer", "false")
    assert orjson.loads(body)["error"]["code"] == "invalid_api_key"
    assert not inner.arrivals


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_health_and_ready_need_no_key(path: str) -> None:
    assert send_request(middleware(InnerApp(), CLOSED), path)[0] == 200


def test_a_key_opens() -> None:
    inner = InnerApp()
    assert send_request(middleware(inner, CLOSED), x_api_key="secret", x_request_id="mine-1")[0] == 200
    assert inner.arrivals[0]["request_id"] == "mine-1"
    assert inner.arrivals[0]["caller"].id == KEY.id


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("//api/chat", "/api/chat"),
        ("/v1//chat/completions/", "/v1/chat/completions"),
        ("///v1/messages///", "/v1/messages"),
        ("/v1/models/", "/v1/models"),
        ("//", "/"),
        ("/", "/"),
        ("/health/", "/health"),
    ],
)
def test_slashes_of_joined_addresses_do_not_count(path: str, served: str) -> None:
    """Neither for the endpoint, nor for the key, nor for the form of an error."""
    inner = InnerApp()
    assert send_request(EdgeMiddleware(inner, lambda: OPEN, dialect_of), path)[0] == 200
    assert [arrival["path"] for arrival in inner.arrivals] == [served]
    keyed = EdgeMiddleware(InnerApp(), lambda: CLOSED, dialect_of)
    plain, given = (send_request(keyed, each, x_request_id="r") for each in (served, path))
    assert (given[0], given[2]) == (plain[0], plain[2])


def test_refusals_have_the_format_of_the_paths_api() -> None:
    _, headers, body = send_request(middleware(InnerApp(), CLOSED), "/v1/messages")
    error = orjson.loads(body)
    assert error["error"]["type"] == "authentication_error"
    assert error["request_id"] == headers["request-id"] == headers["x-request-id"]


def test_responses_have_security_headers_unless_they_set_them() -> None:
    _, headers, body = send_request(middleware(InnerApp()))
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "max-age=1"
    assert "access-control-allow-origin" not in headers
    assert body == b"ok"


def test_long_bodies_leave_in_pieces() -> None:
    for length in (PIECE - 1, PIECE, PIECE + 1, 3 * PIECE):
        assert len(send_request(middleware(InnerApp(b"x" * length)))[2]) == length


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "a.localhost", "127.0.0.1:8000", "[::1]:8000", "192.168.1.7", "localhost."]
)
def test_local_names_and_addresses_are_accepted(host: str) -> None:
    Hosts().check(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "a b",
        "u@localhost",
        "[::1",
        "localhost:x",
    ],
)
def test_unknown_host_names_are_refused(host: str) -> None:
    assert send_request(middleware(InnerApp()), host=host)[0] == 403


def test_names_may_be_configured() -> None:
    hosts = Hosts.of(["llm.example", "*.inner.example"])
    for name in ("llm.example:443", "LLM.example", "a.inner.example", "a.b.inner.example"):
        hosts.check(name)
    for name in ("x.llm.example", "inner.example", "xinner.example"):
        with pytest.raises(TwofoldError, match="Host header"):
            hosts.check(name)
    Hosts.of(["*"]).check("anything.example")
    with pytest.raises(ParameterError):
        Hosts.of(["http://llm.example"])


def test_pages_of_unknown_origins_are_refused() -> None:
    inner = InnerApp()
    for origin in ("https://evil.example", "null", "http://localhost:3000"):
        assert send_request(middleware(inner), method="POST", host="localhost:8000", origin=origin)[0] == 403
    assert not inner.arrivals
    assert send_request(middleware(inner), host="localhost:8000", origin="http://localhost:8000")[0] == 200


CROSS = {"sec_fetch_site": "cross-site"}
LINK = {**CROSS, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (CROSS, 403),
        ({**CROSS, "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}, 403),
        ({**CROSS, "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}, 403),
        ({**LINK, "sec_fetch_dest": "iframe"}, 403),
        (LINK, 200),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({**CROSS, "origin": "https://app.example"}, 200),
        ({**CROSS, "origin": "https://evil.example"}, 403),
    ],
    ids=str,
)
def test_pages_of_other_sites_may_only_link_to_the_server(given: dict[str, str], status: int) -> None:
    """A GET without an Origin, such as that of an image, would else hold a stream open."""
    inner = InnerApp()
    guarded = middleware(inner, origins=Origins.of(["https://app.example"]))
    assert send_request(guarded, **given)[0] == status
    assert len(inner.arrivals) == (status == 200)
    assert send_request(middleware(inner, origins=Origins.of(["*"])), **given)[0] == 200


def test_allowed_origins_may_send_preflight_and_other_requests() -> None:
    inner = InnerApp()
    guarded = middleware(inner, CLOSED, origins=Origins.of(["https://App.example"]))
    asks = {"origin": "https://app.example", "access_control_request_method": "POST"}
    status, headers, _ = send_request(
        guarded, method="OPTIONS", access_control_request_headers="authorization, x-a", **asks
    )
    assert status == 204
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert headers["access-control-allow-headers"] == "authorization, x-a"
    assert headers["vary"] == "origin"
    assert not inner.arrivals
    status, headers, _ = send_request(guarded, origin="https://app.example")
    assert (status, headers["access-control-allow-origin"]) == (401, "https://app.example")
    assert send_request(guarded, method="OPTIONS", **{**asks, "origin": "https://evil.example"})[0] == 403
    hostile = send_request(guarded, method="OPTIONS", access_control_request_headers="a\u00ff\u00fe", **asks)
    assert hostile[1]["access-control-allow-headers"] == "authorization"
    with pytest.raises(ParameterError):
        Origins.of(["app.example/path"])


@pytest.mark.parametrize("given", ["", "-a", "a b", "a\nb", "a" * 200, "ü", '"'])
def test_strange_request_ids_are_replaced(given: str) -> None:
    assert request_id_of(given).startswith("req_")


def test_request_ids_are_unique() -> None:
    assert request_id_of("trace-1.2_3") == "trace-1.2_3"
    assert len({new_request_id() for _ in range(1000)}) == 1000


def test_errors_have_the_delay_before_a_retry() -> None:
    def after(seconds: float) -> bytes:
        return dict(error_headers(QuotaError("", retry_after_s=seconds)))[b"retry-after"]

    assert [after(seconds) for seconds in (-5, 0, 0.2, 1.5, 1e9)] == [b"1", b"1", b"1", b"2", b"120"]
    assert dict(error_headers(BusyError("", retry_after_s=0.25)))[b"retry-after-ms"] == b"250"
    assert dict(error_headers(MethodError("", allowed=("GET", "POST"))))[b"allow"] == b"GET, POST"
    assert error_headers(UsageError("")) == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "llm.example", "127.0.0.1.evil.example"])
def test_without_keys_only_this_machine_is_served(host: str) -> None:
    check_exposure(host, CLOSED)
    with pytest.raises(UsageError, match="API key"):
        check_exposure(host, OPEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_is_served_without_keys(host: str) -> None:
    check_exposure(host, OPEN)


def test_limits_must_be_positive() -> None:
    with pytest.raises(ParameterError, match="head_s"):
        ConnectionLimits(head_s=0)
    with pytest.raises(ParameterError, match="depth"):
        BodyLimits(depth=-1)
    assert 1 <= affordable_connections(1000) <= 1000


def test_a_low_limit_of_open_files_is_raised_as_far_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert affordable_connections(1000) == 1024 - 256 - 100
    assert affordable_connections(100) == 100
    assert given == [(1024, 1024), (456, 1024)]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(ConnectionLimits(), keys=lambda: CLOSED) as server:
        yield server


def test_keys_hold_on_sockets(server: Running) -> None:
    assert status_of(server.exchange(get("/health"))) == 200
    assert status_of(server.exchange(get("/refuse"))) == 401
    assert status_of(server.exchange(post("/echo", b"{}", "authorization: Bearer secret"))) == 200
    response = server.exchange(post("/v1/messages", b"{", "x-api-key: secret", "x-request-id: mine"))
    assert status_of(response) == 400
    assert body_of(response)["error"]["type"] == "invalid_request_error"
    assert headers_of(response)["request-id"] == "mine"
