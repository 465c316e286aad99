"""Asks a server with the load generator of ``twofold bench``: greedy streamed completions, each to its full length.

Each request has a connection of its own, so connecting counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.http.processes import Serving
from benchmarks.http.recipes import MODEL
from benchmarks.worker import WorkerError
from twofold.bench.client.client import ClientOptions, LoadClient, ServerTarget
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions
from twofold.bench.load.base import Ask, EndedRequest, Load, Prompt
from twofold.bench.record import RunRecord

LIMIT_S: Final = 120.0


class ListedLoad:
    """A load of requests that are listed, ascending in when they are due."""

    max_open = None

    def __init__(self, *asks: Ask) -> None:
        self._asks = asks

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "given"}

    def begin(self) -> Iterator[Ask]:
        return iter(self._asks)

    def follow(self, _ended: EndedRequest, _now_s: float, /) -> Ask | None:
        return None


def of_tokens(prompts: Sequence[Sequence[int]], answer: int) -> ListedLoad:
    """All at once, of these ids."""
    return ListedLoad(*(Ask(i, 0.0, len(ids), answer, fields={"prompt": ids}) for i, ids in enumerate(prompts)))


def ask(server: Serving, load: Load, prompts: Prompt = lambda _: (), drain_s: float = LIMIT_S) -> RunRecord:
    """What a server makes of a load. What is open ``drain_s`` after the last was due is given up.

    Raises NetworkError where no connection can be made at the start.
    """
    options = EndpointOptions(MODEL, extra=server.recipe.fields)
    behaviour = ClientOptions(drain_s=drain_s, reuse_connections=False)
    with LoadClient(ServerTarget.of(server.url), ApiEndpoint("completions", options, prompts), behaviour) as client:
        return client.run(load)


def ask_all(server: Serving, load: Load, prompts: Prompt = lambda _: ()) -> RunRecord:
    """The same, of a server that has nothing else to do.

    Raises WorkerError unless every answer is complete, and as long as asked where the server tells its length.
    """
    record = ask(server, load, prompts)
    for sample in record.samples:
        if sample.outcome != "ok" or sample.output_tokens not in (None, sample.ask.output_tokens):
            told = f"{sample.output_tokens} of {sample.ask.output_tokens} tokens"
            raise WorkerError(f"{server.name} gave {told} to a request: {sample.error or sample.outcome}")
    return record
