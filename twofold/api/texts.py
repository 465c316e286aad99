"""Prompts without a chat: texts to continue, texts with a gap to fill in, and texts to embed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from twofold.api.base import ModelFacts, ReplyHead, Streamer
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions, TextOrTokens
from twofold.text.prompt_limit import PromptLimit


def tokenized(
    prompt: TextOrTokens, model: ModelFacts, params: SamplingParams | PoolingParams, options: RequestOptions
) -> EngineRequest:
    """The request for a prompt. Raises ContextLengthError if it leaves no room for a completion."""
    room = PromptLimit(model.context, 1 if isinstance(params, SamplingParams) else 0)
    if isinstance(prompt, str):
        return EngineRequest(tuple(model.tokenizer.within(room).encode(prompt)), params, options, prompt)
    room.check(len(prompt))
    return EngineRequest(prompt, params, options)


def infilled(
    prefix: str, suffix: str, model: ModelFacts, params: SamplingParams, options: RequestOptions
) -> EngineRequest:
    """The request for the text between two texts. Raises ParameterError if the model has no tokens for that."""
    ids = model.tokenizer.within(PromptLimit(model.context)).encode_infill(prefix, suffix)
    assert model.tokenizer.infill is not None, "it was just used"
    ends = tuple(dict.fromkeys((*params.stop_tokens, *model.tokenizer.infill.ends)))
    return EngineRequest(tuple(ids), replace(params, stop_token_ids=ends), options, prefix)


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
