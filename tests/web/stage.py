"""States of the server that a real one takes rarely or late, put between it and the page."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route

from tests.server.live import LiveServer

ABOUT: Final = "/v1/twofold/server"
LIVE: Final = "/v1/twofold/live"
CHAT: Final = "/v1/chat/completions"
BUSY: Final = "Too many requests are running."
FAILED: Final = "The engine failed: out of memory."
ANSWER: Final = "# Half\n\nan **answer**, `x`, [a link](https://a.example)\n\n|a|b|\n|-|-|\n|1|2|\n\n- of it"


def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    """A chunk of a chat as an event."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def called(name: str, arguments: str) -> str:
    """The call of a function as events."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return chunk({"tool_calls": [call]}) + chunk({}, "tool_calls")


def progress(told: dict[str, Any], at_ms: float) -> str:
    """How far a request is, as an event."""
    return f"data: {json.dumps({'choices': [], 'twofold': {'at_ms': at_ms, 'progress': told}})}\n\n"


@contextmanager
def unfinished(*events: str) -> Iterator[str]:
    """The URL of a server whose replies have these events and do not end."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write("".join(events).encode())
            ended.wait()

        def log_message(self, *_: Any) -> None:
            """Requests are not logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            ended.set()
            server.shutdown()


def refusal(status: int, message: str, **headers: str) -> Callable[[Route], None]:
    """Answers with an error of the OpenAI API."""
    body = json.dumps({"error": {"message": message, "type": "error", "param": None, "code": None}})
    return lambda route: route.fulfill(
        status=status, headers={"content-type": "application/json", **headers}, body=body
    )


def through(url: str) -> Callable[[Route], None]:
    """Lets the server at ``url`` answer."""
    return lambda route: route.continue_(url=url)


def told(state: str, error: str | None = None) -> Callable[[Route], None]:
    """Answers a watcher with the state of its model."""
    body = f"event: state\ndata: {json.dumps({'state': state, 'error': error})}\n\n"
    return lambda route: route.fulfill(content_type="text/event-stream", body=body)


class Stage:
    """What the page gets for its requests in each state: ``state`` is the one now; "empty" is the server as it is.

    A request is matched by its path in the state, then by "" for all others but ``ABOUT``.
    """

    def __init__(self, page: Page, server: LiveServer, answering: str) -> None:
        about = server.get(ABOUT).json()
        about["models"][0]["state"] = "loading"
        loading = json.dumps(about)
        self.state = "empty"
        self.held: list[Route] = []
        hold, go_on = self.held.append, Route.continue_
        self.acts: dict[str, dict[str, Callable[[Route], None]]] = {
            "empty": {},
            "busy": {CHAT: through(answering), LIVE: go_on, "": hold},
            "error": {LIVE: told("failed", FAILED), "": refusal(500, FAILED)},
            "loading": {
                ABOUT: lambda route: route.fulfill(content_type="application/json", body=loading),
                LIVE: told("loading"),
                "": hold,
            },
            "refused": {"": refusal(429, BUSY, **{"retry-after": "60"})},
            "offline": {"": Route.abort},
        }
        page.route("**/v1/**", self.answer)

    def answer(self, route: Route) -> None:
        acts, path = self.acts[self.state], urlsplit(route.request.url).path
        other = Route.continue_ if path == ABOUT else acts.get("", Route.continue_)
        acts.get(path, other)(route)
