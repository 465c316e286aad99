"""Loads a server with the generator of ``twofold bench``: greedy streamed completions, each to its full length.

Each request opens a new connection, so times include connecting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.http.processes import Serving
from benchmarks.http.recipes import MODEL
from benchmarks.worker import WorkerError
from twofold.bench.client.loop import ClientOptions, LoadClient
from twofold.bench.client.target import ServerTarget
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions
from twofold.bench.load.base import Ask, EndedRequest, Load, Prompt
from twofold.bench.record import RunRecord

LIMIT_S: Final = 120.0


class ListedLoad:
    """A load of the given requests, ascending by ``due_s``."""

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
    """Simultaneous requests with these token ids as prompts, for ``answer`` tokens each."""
    return ListedLoad(*(Ask(i, 0.0, len(ids), answer, fields={"prompt": ids}) for i, ids in enumerate(prompts)))


def ask(server: Serving, load: Load, prompts: Prompt = lambda _: (), drain_s: float = LIMIT_S) -> RunRecord:
    """Runs a load. Requests still open ``drain_s`` seconds after the last was due are cancelled.

    Raises NetworkError if the first connection fails.
    """
    options = EndpointOptions(MODEL, extra=server.recipe.fields)
    behaviour = ClientOptions(drain_s=drain_s, reuse_connections=False)
    with LoadClient(ServerTarget.of(server.url), ApiEndpoint("completions", options, prompts), behaviour) as client:
        return client.run(load)


def ask_all(server: Serving, load: Load, prompts: Prompt = lambda _: ()) -> RunRecord:
    """Runs a load that must succeed.

    Raises WorkerError unless every response is complete and has the requested length, if the server reports it.
    """
    record = ask(server, load, prompts)
    for sample in record.samples:
        if sample.outcome != "ok" or sample.output_tokens not in (None, sample.ask.output_tokens):
            length = f"{sample.output_tokens} of {sample.ask.output_tokens} tokens"
            raise WorkerError(f"{server.name} gave {length} to a request: {sample.error or sample.outcome}")
    return record
