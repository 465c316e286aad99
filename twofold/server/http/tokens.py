"""POST /tokenize and /detokenize, and GET /tokenizer_info, in vLLM's words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import orjson

from twofold.api.base import ModelFacts
from twofold.api.fields import Fields, impossible, is_whole
from twofold.api.openai.bodies import read_model
from twofold.api.openai.chat import ChatRequest
from twofold.core.params import MAX_TOKEN_ID
from twofold.server.base import ModelHub
from twofold.server.http.asgi import json_list
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse
from twofold.text.tokenizers.tokenizer import Tokenizer

PIECE: Final = 4096


class TokensEndpoint:
    """Texts to tokens and back, by a served model's tokenizer."""

    def __init__(self, hub: ModelHub) -> None:
        self._hub = hub

    async def tokenize(self, asked: EndpointRequest) -> EndpointResponse:
        """A text, or a chat as it goes through the template."""
        request = await asked.read(_Tokenize.read)
        async with self._hub.lease(request.model) as served:
            return EndpointResponse(body=await asked.work(served.name, partial(request.reply, served.facts)))

    async def info(self, asked: EndpointRequest) -> EndpointResponse:  # noqa: ARG002 - it is about the first model
        """The first model's own tokens and chat template, for clients that render and count by themselves."""
        async with self._hub.lease(None) as served:
            tokenizer = served.facts.tokenizer
            named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
            told = {name: None if token is None else tokenizer.token_text(token) for name, token in named.items()}
            return EndpointResponse({"model": served.name, **told, "chat_template": tokenizer.chat_template})

    async def detokenize(self, asked: EndpointRequest) -> EndpointResponse:
        model, tokens = await asked.read(_tokens_to_decode)
        async with self._hub.lease(model) as served:
            return EndpointResponse(
                body=await asked.work(served.name, partial(_decoded, tokens, served.facts.tokenizer))
            )


@dataclass(frozen=True, slots=True)
class _Tokenize:
    """The body of /tokenize: a text, or a chat as it goes through the template."""

    model: str | None
    given: ChatRequest | str
    special: bool
    strings: bool

    @classmethod
    def read(cls, body: object) -> Self:
        """Raises FieldError for a field that is missing, impossible, unknown or unsupported."""
        fields = Fields(body)
        assert isinstance(body, dict), "Fields takes nothing else"
        strings, model = fields.flag("return_token_strs"), read_model(fields)
        if fields.take("messages") is not None:
            rest = {key: value for key, value in body.items() if key != "return_token_strs"}
            return cls(model, ChatRequest.read(rest), False, strings)
        special, text = fields.flag("add_special_tokens", True), fields.require("prompt")
        if not isinstance(text, str):
            raise impossible("prompt", text, "text")
        fields.close()
        return cls(model, text, special, strings)

    def reply(self, facts: ModelFacts) -> bytes:
        """The body of the response, in JSON."""
        if isinstance(self.given, str):
            ids = facts.tokenizer.encode(self.given, add_special_tokens=self.special)
        else:
            ids = list(self.given.prepare(facts.unbounded())[0].prompt.token_ids or ())
        strings = json_list([facts.tokenizer.token_text(token) for token in ids], PIECE) if self.strings else b"null"
        told = (len(ids), facts.context, json_list(ids, PIECE), strings)
        return b'{"count":%d,"max_model_len":%d,"tokens":%b,"token_strs":%b}' % told


def _tokens_to_decode(body: object) -> tuple[str | None, list[int]]:
    fields = Fields(body)
    model, tokens = read_model(fields), fields.require("tokens")
    fields.close()
    if not isinstance(tokens, list) or not all(is_whole(token) and 0 <= token <= MAX_TOKEN_ID for token in tokens):
        raise impossible("tokens", tokens, "a list of token ids")
    return model, tokens


def _decoded(tokens: list[int], tokenizer: Tokenizer) -> bytes:
    unknown = next((token for token in tokens if token >= tokenizer.vocab_size), None)
    if unknown is not None:
        raise impossible("tokens", unknown, f"token ids below {tokenizer.vocab_size}")
    return orjson.dumps({"prompt": tokenizer.decode(tokens, skip_special_tokens=False)})
