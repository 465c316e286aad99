"""Responses told as they come: numbered, named events, each with its place in the output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.frames import KEEP_ALIVE
from twofold.api.openai.responses.logprobs import drawn_logprobs, token_by_token
from twofold.api.openai.responses.output import Event, OutputItems
from twofold.api.openai.responses.reply import begun, ended, failed, item_status
from twofold.core.errors import TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import SectionParser

OPENING: Final = ("created", "in_progress")


class ResponsesStreamer:
    """``Streamer`` of a response. ``asked`` are the fields that say again what was asked for.

    top_logprobs   None where no log-probabilities were asked for
    response       the whole reply, once it was told; None for one that failed
    """

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parser: SectionParser,
        asked: Mapping[str, Any],
        *,
        top_logprobs: int | None,
        seal: bool,
    ) -> None:
        self.response: dict[str, Any] | None = None
        self._model = model
        self._begun = begun(head, asked)
        self._output = OutputItems(head.id, parser, seal=seal)
        self._top_logprobs = top_logprobs
        self._number = 0

    def open(self) -> bytes:
        return self._events({"type": f"response.{state}", "response": self._begun} for state in OPENING)

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a response is one job
        top = self._top_logprobs
        entries = () if top is None else drawn_logprobs(delta, self._model.tokenizer, top)
        return b"".join(self._events(self._output.take(text, own)) for text, own in token_by_token(delta.text, entries))

    def close(self, outputs: Sequence[RequestOutput], extra: Mapping[str, Any] | None = None) -> bytes:
        (output,) = outputs
        status = item_status(output.outputs[0].finish_reason)
        told = self._events(self._output.close(status))
        self.response = ended(self._begun, self._output.items, output, self._model, extra)
        return told + self._events([{"type": f"response.{status}", "response": self.response}])

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        return self._events([{"type": "response.failed", "response": failed(self._begun, self._output.items, error)}])

    def _events(self, events: Iterable[Event]) -> bytes:
        return b"".join(
            b"event: %b\ndata: %b\n\n" % (event["type"].encode(), self._numbered(event)) for event in events
        )

    def _numbered(self, event: Event) -> bytes:
        event["sequence_number"] = self._number
        self._number += 1
        return orjson.dumps(event)
