"""POST /tokenize, /detokenize, /v1/messages/count_tokens and /v1/responses/input_tokens; GET /tokenizer_info.

Their bodies are vLLM's, Anthropic's and OpenAI's.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from twofold.api.anthropic.messages import CountTokensRequest
from twofold.api.anthropic.replies import MessageTokens
from twofold.api.base import ModelFacts
from twofold.api.body import ModelName, NonNegativeInt, ReplyObject, RequestObject, encode
from twofold.api.fields import impossible
from twofold.api.openai.bodies import TokenId
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.responses.reply import InputTokensReply
from twofold.api.openai.responses.request import InputTokensRequest
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse, json_bytes
from twofold.server.http.generating import BETA, CHAT, INPUT, LOADING, MODEL, VERSION
from twofold.server.openapi import rules
from twofold.server.openapi.route import OperationLink, get, post
from twofold.text.tokenizers.tokenizer import Tokenizer

PIECE: Final = 4096
"""Tokens that are encoded as JSON in one call."""


class TokenizeReply(ReplyObject):
    """The tokens of a prompt, and the maximum that the model accepts."""

    count: NonNegativeInt
    max_model_len: NonNegativeInt
    tokens: list[NonNegativeInt]
    token_strs: list[str] | None


class DetokenizeReply(ReplyObject):
    """The text of tokens."""

    prompt: str


class TokenizerInfo(ReplyObject):
    """A model's special tokens and its chat template, for clients that render and count themselves."""

    model: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


class TokenizeText(RequestObject, kw_only=True):
    """The body of /tokenize for a text."""

    prompt: str
    model: ModelName | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    def ids(self, facts: ModelFacts) -> list[int]:
        return facts.tokenizer.encode(self.prompt, add_special_tokens=self.add_special_tokens)


class TokenizeChat(ChatRequest, kw_only=True, dict=True):
    """The body of /tokenize for a chat, which goes through the template. As in vLLM, BOS and EOS are added to what the
    template writes only with ``add_special_tokens``."""

    add_special_tokens: bool = False
    return_token_strs: bool = False

    def ids(self, facts: ModelFacts) -> list[int]:
        ids = self.prepare(facts.unbounded())[0].token_ids
        return facts.tokenizer.with_special(ids) if self.add_special_tokens else list(ids)


class DetokenizeRequest(RequestObject, kw_only=True):
    """The body of /detokenize."""

    tokens: list[TokenId]
    model: ModelName | None = None


@post(
    "/tokenize",
    body=TokenizeText | TokenizeChat,
    reply=TokenizeReply,
    examples={"text": {**MODEL, "prompt": "Hi"}, "chat": {**CHAT, "return_token_strs": True}},
    rules=rules.CHAT,
    failures=LOADING,
    links=(OperationLink("back", "detokenize", body={**MODEL, "tokens": "$response.body#/tokens"}),),
)
async def tokenize(asked: EndpointRequest) -> EndpointResponse:
    """Returns the tokens of a text, or of a chat rendered by the chat template."""
    request = await asked.read(read_tokenize)
    async with asked.lease(request.model) as served:
        return EndpointResponse(await asked.work(served.name, partial(_tokenized, request, served.facts)))


@get("/tokenizer_info", failures=LOADING)
async def get_tokenizer(asked: EndpointRequest) -> TokenizerInfo:
    """Returns the first model's special tokens and its chat template.

    For clients that render and count themselves."""
    async with asked.lease(None) as served:
        tokenizer = served.facts.tokenizer
        special = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
        bos, eos, pad = (None if token is None else tokenizer.token_text(token) for token in special)
        return TokenizerInfo(served.name, bos, eos, pad, tokenizer.chat_template)


@post(
    "/detokenize",
    body=DetokenizeRequest,
    reply=DetokenizeReply,
    examples={"plain": {**MODEL, "tokens": [1, 2]}},
    rules=rules.DETOKENIZE,
    failures=LOADING,
)
async def detokenize(asked: EndpointRequest) -> EndpointResponse:
    """Returns the text of tokens."""
    request = await asked.read(DetokenizeRequest.read)
    async with asked.lease(request.model) as served:
        decoded = partial(_decoded, request.tokens, served.facts.tokenizer)
        return EndpointResponse(await asked.work(served.name, decoded))


@post(
    "/v1/messages/count_tokens",
    body=CountTokensRequest,
    examples={"plain": CHAT},
    rules=rules.MESSAGES,
    failures=LOADING,
    parameters=(VERSION, BETA),
)
async def count_message_tokens(asked: EndpointRequest) -> MessageTokens:
    """Counts the tokens of a prompt."""
    request = await asked.read(CountTokensRequest.read)
    async with asked.lease(request.model) as served:
        return request.reply(await asked.work(served.name, partial(request.count, served.facts)))


@post(
    "/v1/responses/input_tokens",
    body=InputTokensRequest,
    examples={"plain": INPUT},
    rules=rules.TURN,
    failures=LOADING,
)
async def count_response_tokens(asked: EndpointRequest) -> InputTokensReply:
    """Counts the tokens of a prompt."""
    request = await asked.read(InputTokensRequest.read)
    request = await asked.services.stores.responses.known(asked.tenant, request)
    async with asked.lease(request.model) as served:
        return await asked.work(served.name, partial(request.count, served.facts))


def read_tokenize(body: object) -> TokenizeText | TokenizeChat:
    """Reads the body of /tokenize. Raises ParameterError for a missing, impossible, unknown or unsupported field."""
    chat = isinstance(body, dict) and body.get("messages") is not None
    return TokenizeChat.read(body) if chat else TokenizeText.read(body)


def _tokenized(request: TokenizeText | TokenizeChat, facts: ModelFacts) -> bytes:
    """The body of the response to /tokenize."""
    ids = request.ids(facts)
    texts = [facts.tokenizer.token_text(token) for token in ids] if request.return_token_strs else None
    return json_bytes(TokenizeReply(len(ids), facts.context, ids, texts), PIECE)


def _decoded(tokens: list[int], tokenizer: Tokenizer) -> bytes:
    unknown = next((token for token in tokens if token >= tokenizer.vocab_size), None)
    if unknown is not None:
        raise impossible("tokens", unknown, f"token ids below {tokenizer.vocab_size}")
    return encode(DetokenizeReply(tokenizer.decode(tokens, skip_special_tokens=False)))


ROUTES: Final = (tokenize, detokenize, get_tokenizer)
