"""Requests for vectors of texts, which are never streamed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from twofold.api.base import AskedTier, HasCommon, Job, ModelFacts, ReplyHead, Streamer
from twofold.api.pooling import PoolingParams
from twofold.core.request import RequestOptions
from twofold.engine.prompts import GivenPrompt


@dataclass(frozen=True, slots=True)
class PoolingFields:
    """``CommonFields`` of a request for vectors, and how they are made."""

    model: str | None
    params: PoolingParams
    explain: bool
    options: RequestOptions = field(default_factory=RequestOptions)
    tier: AskedTier = "auto"

    @property
    def stream(self) -> bool:
        return False


class PoolingRequest(HasCommon):
    """A ``DialectRequest`` for vectors."""

    __slots__ = ()
    common: PoolingFields

    def jobs(self, model: ModelFacts, prompts: Iterable[GivenPrompt]) -> list[Job]:
        """One job for each prompt. Raises ParameterError for a number of dimensions that the model does not have."""
        self.common.params.check(model.hidden_size)
        return [Job(prompt, self.common.params, self.common.options) for prompt in prompts]

    def streamer(self, head: ReplyHead, model: ModelFacts) -> Streamer:  # noqa: ARG002 - see ``PoolingFields.stream``
        raise AssertionError("vectors are not streamed")
