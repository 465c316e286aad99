"""Ollama's endpoints: bodies as their readers take them, replies, and operations."""

from __future__ import annotations

from typing import Any, Final

from twofold.api.ollama import chat, fields, generate
from twofold.api.openai.bodies import MAX_PROMPTS
from twofold.api.openai.errors import MAX_MESSAGE
from twofold.api.openai.tools import MAX_TOOLS
from twofold.core.params import MAX_LOGPROBS, MAX_SEED, MAX_STOP_CHARS, MAX_STOPS, MAX_TOKEN_ID
from twofold.server.openapi import rules
from twofold.server.openapi.failures import GENERATING
from twofold.server.openapi.openai_replies import COUNT, EXPLAINED, TOKEN_LOGPROB
from twofold.server.openapi.openai_requests import OURS, TOOL, refused
from twofold.server.openapi.operation import JSON, ApiOperation, Body, OperationLink, RequestRule, replied
from twofold.server.openapi.shapes import (
    ANYTHING,
    FLAG,
    OBJECT,
    Schema,
    asked,
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
    whole,
    word,
)
from twofold.text.templates.messages import MAX_MESSAGES

LINES: Final = "application/x-ndjson"
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
STOP: Final = text(1, MAX_STOP_CHARS)
OPTIONS: Final = joined(
    asked(
        temperature=number(0),
        top_k=whole(-1, MAX_TOKEN_ID),
        top_p=number(high=1, above=0),
        min_p=number(0, 1),
        presence_penalty=number(-2, 2),
        frequency_penalty=number(-2, 2),
        repeat_penalty=number(above=0),
        repeat_last_n=said(whole(-1, MAX_TOKEN_ID), "With a penalty only -1, the whole context."),
        stop=either(STOP, listed(STOP, 0, MAX_STOPS)),
        seed=said(whole(-1, MAX_SEED), "-1 for a random one."),
        num_predict=said(whole(-2, MAX_TOKEN_ID), "Most output tokens; 0 or less for all that fit."),
        num_ctx=said(whole(1, MAX_TOKEN_ID), "Most tokens of prompt and answer; at most the model's context."),
    ),
    asked(**dict.fromkeys(fields.UNUSED, said(ANYTHING, "A setting of the server here; it changes no answer."))),
    refused(fields.NEUTRAL),
)
KEEP_ALIVE: Final = either(number(), text(1, fields.MAX_DURATION_CHARS, pattern=fields.DURATION))
THINK: Final = either(FLAG, word(*fields.EFFORT_WORDS))
_ASKED: Final = asked(
    {"model": ref("ModelName")},
    stream=said(FLAG, "True by default."),
    options=OPTIONS,
    keep_alive=KEEP_ALIVE,
    format=either(word("", "json"), OBJECT),
    think=THINK,
    logprobs=FLAG,
    top_logprobs=whole(0, MAX_LOGPROBS),
    truncate=only(False),
    shift=only(False),
    _debug_render_only=only(False),
    twofold=OURS,
)
_CALL: Final = asked(
    {"function": asked({"name": text(1)}, arguments=OBJECT, index=whole(0, chat.MAX_INDEX))},
    id=text(),
    type=word("function"),
)
_MESSAGE: Final = asked(
    {"role": word(*chat.ROLES)},
    content=text(),
    thinking=text(),
    images=only([]),
    tool_calls=listed(_CALL),
    tool_name=text(),
    tool_call_id=text(),
)
CHAT: Final = joined(_ASKED, asked(messages=listed(_MESSAGE, 0, MAX_MESSAGES), tools=listed(TOOL, 0, MAX_TOOLS)))
GENERATE: Final = joined(
    _ASKED,
    asked(
        prompt=text(),
        suffix=text(),
        system=text(),
        template=only(""),
        context=only([]),
        raw=FLAG,
        images=only([]),
        **dict.fromkeys(generate.IMAGES, only()),
    ),
)
_EMBEDDED: Final = asked({"model": ref("ModelName")}, options=OPTIONS, keep_alive=KEEP_ALIVE, twofold=OURS)
EMBED: Final = joined(
    _EMBEDDED,
    asked(
        {"input": either(text(), listed(text(), 0, MAX_PROMPTS))},
        truncate=said(FLAG, "True by default: cuts texts that are longer than the model's context."),
        dimensions=whole(0, MAX_TOKEN_ID),
    ),
)
EMBEDDING: Final = joined(_EMBEDDED, asked(prompt=text()))
SHOW: Final = asked(
    model=ref("ModelName"),
    name=ref("ModelName"),
    verbose=FLAG,
    system=only(""),
    template=only(""),
    options=only({}),
)
REQUESTS: Final = {
    "OllamaChatRequest": CHAT,
    "OllamaGenerateRequest": GENERATE,
    "OllamaEmbedRequest": EMBED,
    "OllamaEmbeddingRequest": EMBEDDING,
    "OllamaShowRequest": SHOW,
}

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
