"""Requests for vectors of texts, which are never streamed."""

from __future__ import annotations

from collections.abc import Iterable

from twofold.api.base import ModelFacts, ReplyHead, Streamer
from twofold.api.texts import tokenized
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions, TextOrTokens


class PoolingRequest:
    """A ``DialectRequest`` for vectors."""

    __slots__ = ()

    @property
    def stream(self) -> bool:
        return False

    @property
    def request_options(self) -> RequestOptions:
        return RequestOptions()

    @property
    def params(self) -> PoolingParams:
        return PoolingParams()

    def jobs(self, model: ModelFacts, prompts: Iterable[TextOrTokens]) -> list[EngineRequest]:
        """A request for each prompt. Raises ParameterError for a number of dimensions that the model does not have."""
        params, options = self.params, self.request_options
        params.check(model.hidden_size)
        return [tokenized(prompt, model, params, options) for prompt in prompts]

    def streamer(self, head: ReplyHead, model: ModelFacts) -> Streamer:  # noqa: ARG002 - see ``stream``
        raise AssertionError("vectors are not streamed")
