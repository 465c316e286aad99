"""POST /tokenize and /detokenize, and GET /tokenizer_info, in vLLM's words."""

from __future__ import annotations

import asyncio
from typing import Any

from twofold.core.params import MAX_TOKEN_ID
from twofold.dialects.base import ModelFacts
from twofold.dialects.fields import Fields, impossible, is_whole
from twofold.dialects.openai.bodies import read_model
from twofold.dialects.openai.chat import ChatRequest
from twofold.serve.base import ModelHub
from twofold.serve.http.endpoints import Answer, Asked


class TokensEndpoint:
    """Texts to tokens and back, by a served model's tokenizer."""

    def __init__(self, hub: ModelHub) -> None:
        self._hub = hub

    async def tokenize(self, asked: Asked) -> Answer:
        """A text, or a chat as it goes through the template."""
        body = await asked.json()
        fields = Fields(body)
        chat = fields.take("messages") is not None
        strings = fields.flag("return_token_strs")
        special = None if chat else fields.flag("add_special_tokens", True)
        text = None if chat else fields.require("prompt")
        if not chat and not isinstance(text, str):
            raise impossible("prompt", text, "text")
        model = read_model(fields)
        if chat:
            request = ChatRequest.read({key: value for key, value in body.items() if key != "return_token_strs"})
        else:
            fields.close()
        async with self._hub.lease(model) as served:
            facts = served.facts

            def encode() -> list[int]:
                if chat:
                    return list(request.prepare(facts)[0].prompt.token_ids or ())
                return facts.tokenizer.encode(text or "", add_special_tokens=bool(special))

            ids = await asyncio.to_thread(encode)
            return Answer(_tokens(ids, facts, strings))

    async def info(self, asked: Asked) -> Answer:  # noqa: ARG002 - it is about the first model
        """The first model's own tokens and chat template, for clients that render and count by themselves."""
        async with self._hub.lease(None) as served:
            tokenizer = served.facts.tokenizer
            named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
            told = {name: None if token is None else tokenizer.token_text(token) for name, token in named.items()}
            return Answer({"model": served.name, **told, "chat_template": tokenizer.chat_template})

    async def detokenize(self, asked: Asked) -> Answer:
        fields = Fields(await asked.json())
        model, tokens = read_model(fields), fields.require("tokens")
        fields.close()
        if not isinstance(tokens, list) or not all(is_whole(token) and 0 <= token <= MAX_TOKEN_ID for token in tokens):
            raise impossible("tokens", tokens, "a list of token ids")
        async with self._hub.lease(model) as served:
            tokenizer = served.facts.tokenizer
            unknown = next((token for token in tokens if token >= tokenizer.vocab_size), None)
            if unknown is not None:
                raise impossible("tokens", unknown, f"token ids below {tokenizer.vocab_size}")
            text = await asyncio.to_thread(tokenizer.decode, tokens, skip_special_tokens=False)
            return Answer({"prompt": text})


def _tokens(ids: list[int], facts: ModelFacts, strings: bool) -> dict[str, Any]:
    told = [facts.tokenizer.token_text(token) for token in ids] if strings else None
    return {"count": len(ids), "max_model_len": facts.context, "tokens": ids, "token_strs": told}
