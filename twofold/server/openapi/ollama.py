"""Ollama's endpoints: bodies as their readers take them, replies, and operations."""

from __future__ import annotations

from typing import Any, Final

from twofold.api.openai.errors import MAX_MESSAGE
from twofold.server.openapi import rules
from twofold.server.openapi.failures import GENERATING
from twofold.server.openapi.openai_replies import COUNT, EXPLAINED, TOKEN_LOGPROB
from twofold.server.openapi.operation import JSON, ApiOperation, Body, OperationLink, RequestRule, replied
from twofold.server.openapi.shapes import (
    ANYTHING,
    FLAG,
    OBJECT,
    Schema,
    either,
    joined,
    listed,
    mapped,
    number,
    only,
    ref,
    said,
    text,
    told,
    word,
)

LINES: Final = "application/x-ndjson"
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_FIGURES: Final = told(
    total_duration=COUNT,
    load_duration=COUNT,
    prompt_eval_count=COUNT,
    prompt_eval_duration=COUNT,
    eval_count=COUNT,
    eval_duration=COUNT,
)
_PART: Final = joined(
    told(
        {"model": text(), "created_at": TIME, "done": FLAG},
        done_reason=word("stop", "length", "load", "unload"),
        logprobs=listed(TOKEN_LOGPROB),
    ),
    _FIGURES,
    EXPLAINED,
)
_TOLD_CALL: Final = told({"id": text(), "function": told({"index": COUNT, "name": text(), "arguments": OBJECT})})
_DETAILS: Final = told(
    {
        "parent_model": text(),
        "format": text(),
        "family": text(),
        "families": listed(text()),
        "parameter_size": text(),
        "quantization_level": text(),
    },
    context_length=COUNT,
    embedding_length=COUNT,
)
_LISTED: Final = told({"name": text(), "model": text(), "size": COUNT, "digest": text(), "details": _DETAILS})
_CAPABILITIES: Final = listed(word("completion", "embedding", "tools", "thinking", "insert"))
ERROR: Final = told({"error": text(1, MAX_MESSAGE + 1)})
REPLIES: Final = {
    "OllamaChat": joined(
        _PART,
        told(
            {
                "message": told(
                    {"role": only("assistant"), "content": text()}, thinking=text(), tool_calls=listed(_TOLD_CALL, 1)
                )
            }
        ),
    ),
    "OllamaGenerated": joined(_PART, told({"response": text()}, thinking=text())),
    "OllamaEmbeddings": joined(
        told(
            {
                "model": text(),
                "embeddings": listed(listed(number())),
                "total_duration": COUNT,
                "load_duration": COUNT,
                "prompt_eval_count": COUNT,
            }
        ),
        EXPLAINED,
    ),
    "OllamaEmbedding": joined(told({"embedding": listed(number())}), EXPLAINED),
    "OllamaVersion": told({"version": text(1)}),
    "OllamaTags": told({"models": listed(joined(_LISTED, told({"modified_at": TIME, "capabilities": _CAPABILITIES})))}),
    "OllamaLoaded": told(
        {"models": listed(joined(_LISTED, told({"expires_at": TIME, "size_vram": COUNT, "context_length": COUNT})))}
    ),
    "OllamaModel": told(
        {
            "details": _DETAILS,
            "model_info": mapped(ANYTHING),
            "capabilities": _CAPABILITIES,
            "modified_at": TIME,
            "template": text(),
            "modelfile": text(),
            "parameters": text(),
        },
        license=text(),
    ),
    "OllamaError": ERROR,
}

_PENALTIES: Final = RequestRule("repeat_last_n is -1 where a penalty is given.", "repeat_last_n")
_SHARED: Final = (
    rules.CONTEXT,
    _PENALTIES,
    RequestRule("top_logprobs needs logprobs.", "top_logprobs"),
    RequestRule("A model must have a thinking section to honour think.", "think"),
    *rules.COMPILED,
)


def _streamed(name: str) -> dict[str, Schema]:
    """A JSON reply, or lines of such objects, which is the default; an error may be the last line."""
    return {JSON: ref(name), LINES: said(either(ref(name), ref("OllamaError")), "One line.")}


def operations(
    model: dict[str, str], parameters: tuple[Schema, ...], links: tuple[OperationLink, ...]
) -> list[ApiOperation]:
    """All of them; examples ask for ``model``."""
    return [*_answering(model, parameters, links), *_embedding(model, parameters, links), *_about(model)]


def _answering(
    model: dict[str, str], parameters: tuple[Schema, ...], links: tuple[OperationLink, ...]
) -> list[ApiOperation]:
    hello = [{"role": "user", "content": "Hi"}]
    few: dict[str, Any] = {"options": {"num_predict": 4}}
    chats = {
        "plain": {**model, "messages": hello, "stream": False, **few},
        "streamed": {**model, "messages": hello, **few},
        "load": {**model, "stream": False},
    }
    texts = {
        "plain": {**model, "prompt": "Hi", "stream": False, **few},
        "raw": {**model, "prompt": "Once", "raw": True, **few},
    }
    return [
        ApiOperation(
            "POST",
            "/api/chat",
            "ollamaChat",
            "Ollama",
            "Answers a chat; without messages it loads the model.",
            _streamed("OllamaChat"),
            GENERATING,
            Body(ref("OllamaChatRequest"), chats),
            parameters,
            (*_SHARED, rules.TEMPLATE),
            links,
        ),
        ApiOperation(
            "POST",
            "/api/generate",
            "ollamaGenerate",
            "Ollama",
            "Answers a prompt, or fills in what stands before a suffix; without either it loads the model.",
            _streamed("OllamaGenerated"),
            GENERATING,
            Body(ref("OllamaGenerateRequest"), texts),
            parameters,
            (
                *_SHARED,
                rules.TEMPLATE,
                RequestRule("system excludes raw and suffix, and needs a chat template.", "system"),
                RequestRule("suffix needs a model with tokens for filling in the middle.", "middle of a text"),
            ),
            links,
        ),
    ]


def _embedding(
    model: dict[str, str], parameters: tuple[Schema, ...], links: tuple[OperationLink, ...]
) -> list[ApiOperation]:
    return [
        ApiOperation(
            "POST",
            "/api/embed",
            "ollamaEmbed",
            "Ollama",
            "Makes vectors of texts.",
            replied("OllamaEmbeddings"),
            GENERATING,
            Body(ref("OllamaEmbedRequest"), {"plain": {**model, "input": ["Hi", "there"]}}),
            parameters,
            (*rules.EMBEDDING, _PENALTIES),
            links,
        ),
        ApiOperation(
            "POST",
            "/api/embeddings",
            "ollamaEmbedOne",
            "Ollama",
            "Makes a vector of one text; /api/embed replaces it.",
            replied("OllamaEmbedding"),
            GENERATING,
            Body(ref("OllamaEmbeddingRequest"), {"plain": {**model, "prompt": "Hi"}}),
            parameters,
            (*rules.EMBEDDING, _PENALTIES),
            links,
        ),
    ]


def _about(model: dict[str, str]) -> list[ApiOperation]:
    listing = (
        ("/api/version", "ollamaVersion", "The version of Ollama whose API this is.", "OllamaVersion"),
        ("/api/tags", "ollamaTags", "Lists the models.", "OllamaTags"),
        ("/api/ps", "ollamaLoaded", "Lists the models that are loaded.", "OllamaLoaded"),
    )
    shown = ApiOperation(
        "POST",
        "/api/show",
        "ollamaShow",
        "Ollama",
        "Describes one model.",
        replied("OllamaModel"),
        (404,),
        Body(ref("OllamaShowRequest"), {"plain": model}),
        rules=(RequestRule("model is needed.", "model", "missing_required_parameter"),),
    )
    return [
        *(ApiOperation("GET", path, name, "Ollama", says, replied(kind)) for path, name, says, kind in listing),
        shown,
    ]
