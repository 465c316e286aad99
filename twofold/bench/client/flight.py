"""One request in flight: reads its response into its sample."""

from __future__ import annotations

from typing import Final

from twofold.bench.base import REFUSALS, Endpoint
from twofold.bench.client.exchange import MAX_BODY
from twofold.bench.client.response import EventReader, ProtocolError, ResponseReader
from twofold.bench.endpoints.values import sentence
from twofold.bench.load.base import Outcome
from twofold.bench.record import RequestSample

MAX_ERROR: Final = 64 * 1024


class Flight:
    """Reads the response to one request into its sample.

    file    of its connection; None after its end
    resent  whether it was sent again because the server had closed the first connection
    """

    def __init__(self, sample: RequestSample, request: bytes, endpoint: Endpoint) -> None:
        self.sample = sample
        self.request = request
        self.file: int | None = None
        self.resent = False
        self.response = ResponseReader()
        self._reader = endpoint.reader(sample.answer)
        self._events: EventReader | None = None
        self._body: list[bytes] = []
        self._size = 0

    @property
    def begun_s(self) -> float:
        """When the client started it; the timeout counts from there."""
        assert self.sample.started_s is not None
        return self.sample.started_s

    @property
    def untouched(self) -> bool:
        """Whether no byte of a response was received."""
        return self.response.untouched

    def send_again(self) -> None:
        self.resent = True
        self.sample.sent_s = None

    def release(self) -> None:
        """Ends it: only the sample is kept."""
        self.file = None
        self.request = b""
        self._body.clear()

    def take(self, data: bytes, moment: float, lag: float) -> bool:
        """Reads bytes that arrived at ``moment``; whether the response is complete.

        Raises ValueError if it is invalid.
        """
        sample, response = self.sample, self.response
        sample.lag_s = max(sample.lag_s, lag)
        began = response.status is not None
        body = response.feed(data)
        if not began and response.status is not None:
            self._head(response.status)
        if body:
            if self._events is not None:
                self._stream(body, moment)
            else:
                self._collect(body, moment)
        if response.complete:
            self._complete(moment)
        return response.complete

    def end(self, moment: float) -> None:
        """The connection ended. Raises ValueError if the response is incomplete."""
        self.response.end()
        self._complete(moment)

    def _head(self, status: int) -> None:
        headers = self.response.headers
        self.sample.status = status
        self.sample.request_id = headers.get("x-request-id") or headers.get("request-id")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ProtocolError("The server sent a compressed body that was not requested.")
        if status < 300 and "event-stream" in headers.get("content-type", ""):
            self._events = EventReader()

    def _stream(self, body: bytes, moment: float) -> None:
        events, answer, reader = self._events, self.sample.answer, self._reader
        assert events is not None
        before = len(answer.moments)
        for name, data in events.feed(body):
            reader.event(name, data, moment)
        together = len(answer.moments) - before
        if together > 1:
            self.sample.merged += together - 1

    def _collect(self, body: bytes, moment: float) -> None:
        """Keeps a body that is no stream, unless it is one without the content type of streams."""
        json = "json" in self.response.headers.get("content-type", "")
        if not (self._body or json) and self.sample.status == 200 and body.startswith((b"data:", b"event:", b":")):
            self._events = EventReader()
            self._stream(body, moment)
            return
        self._size += len(body)
        if self._size > MAX_BODY:
            raise ProtocolError(f"The body of the response is longer than {MAX_BODY} bytes.")
        self._body.append(body)

    def _complete(self, moment: float) -> None:
        sample, status = self.sample, self.sample.status
        sample.ended_s = moment
        assert status is not None
        if status >= 300:
            return
        if self._events is None:
            sample.answer.streamed = False
            self._reader.whole(b"".join(self._body), moment)
            sample.answer.done = sample.answer.done or sample.answer.error is None
            return
        for name, data in self._events.end():
            self._reader.event(name, data, moment)

    def settle(self, outcome: Outcome, error: str) -> None:
        """Sets an outcome that the server did not send; a complete response stays "ok"."""
        self._count_pings()
        answer = self.sample.answer
        if answer.done and answer.error is None:
            self.sample.outcome, self.sample.error = "ok", None
        else:
            self.sample.outcome, self.sample.error = outcome, error

    def judge(self) -> None:
        """Sets the outcome from the complete response."""
        self._count_pings()
        sample, status, answer = self.sample, self.sample.status, self.sample.answer
        assert status is not None
        if status >= 400:
            sample.outcome = "refused" if status in REFUSALS else "failed"
            body = b"".join(self._body)[:MAX_ERROR].strip()
            sample.error = sentence(body) if body else f"The server responded with status {status}."
        elif status >= 300:
            sample.outcome, sample.error = "failed", f"The server redirects the request (status {status})."
        elif answer.error is not None:
            sample.outcome, sample.error = "failed", answer.error
        elif answer.done:
            sample.outcome, sample.error = "ok", None
        else:
            sample.outcome, sample.error = "broken", "The stream ended before the completion did."

    def _count_pings(self) -> None:
        if self._events is not None:
            self.sample.answer.pings += self._events.pings
            self._events = None
