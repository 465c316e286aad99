"""The endpoints of the table: clients that define their fields, their readers, and values that types do not show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from ollama import _types as ollama
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from tests.server.compatibility.probes import Probe
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import DialectRequest
from twofold.api.ollama.requests import OllamaChatRequest, OllamaEmbedRequest, OllamaGenerateRequest
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.api.openai.vectors import EmbeddingRequest
from twofold.core.params import MAX_LOGPROBS, MAX_N, MAX_STOP_CHARS, MAX_STOPS

SCHEMA: Final = {"type": "object", "properties": {}, "additionalProperties": False}
CHAT_TOOL: Final = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CHAT_NAMED: Final = {"type": "function", "function": {"name": "weather"}}
RESPONSES_TOOL: Final = {"type": "function", "name": "weather", "parameters": SCHEMA}
MESSAGES_TOOL: Final = {"name": "weather", "input_schema": SCHEMA}
CLEARED: Final = {"type": "clear_thinking_20251015"}
DISPLAYS: Final = ("summarized", "omitted", "updates")
USER: Final = {"role": "user", "content": "hi"}

Values = Mapping[str, Any]


def _chat(content: Any, role: str = "user") -> list[Any]:
    return [{"role": role, "content": content}]


def _said(*kinds: str) -> list[Probe]:
    """User messages with a part of each of these kinds."""
    inner: dict[str, Any] = {
        "text": {"text": "hi"},
        "image_url": {"image_url": {"url": "http://x"}},
        "input_audio": {"input_audio": {"data": "", "format": "wav"}},
        "file": {"file": {}},
    }
    return [Probe(f"`{kind}` parts", _chat([{"type": kind, **inner[kind]}])) for kind in kinds]


def _blocks() -> list[Probe]:
    source = {"type": "base64", "media_type": "image/png", "data": ""}
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "sunny"}
    called = [USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    thought = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "redacted_thinking", "data": ""}]
    return [
        Probe("text", _chat("hi")),
        Probe("`text` blocks", _chat([{"type": "text", "text": "hi"}])),
        Probe("`tool_use`, `tool_result`", called),
        Probe("`thinking`, `redacted_thinking` (dropped)", [USER, {"role": "assistant", "content": thought}, USER]),
        Probe("`system` messages", [{"role": "system", "content": "be brief"}, USER]),
        Probe("`image`", _chat([{"type": "image", "source": source}])),
        Probe("`document`", _chat([{"type": "document", "source": source}])),
        Probe("`search_result`", _chat([{"type": "search_result", "source": "", "title": "", "content": []}])),
        Probe("a last message of the assistant's, which is continued", [USER, {"role": "assistant", "content": "so"}]),
    ]


def _items() -> list[Probe]:
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
    image = {"type": "input_image", "image_url": "http://x", "detail": "auto"}
    summary = {"type": "reasoning", "id": "rs_1", "summary": []}
    return [
        Probe("text", "hi"),
        Probe("messages", [USER]),
        Probe("`input_text` parts", _chat([{"type": "input_text", "text": "hi"}])),
        Probe("`function_call`, `function_call_output`", [USER, call, output]),
        Probe("`reasoning`", [USER, summary, USER]),
        Probe("`input_image` parts", _chat([image])),
        Probe("`input_file` parts", _chat([{"type": "input_file", "file_id": "f"}])),
        Probe("`computer_call_output`", [{"type": "computer_call_output", "call_id": "c", "output": {}}]),
    ]


TEXTS: Final = [
    Probe("text", "hi"),
    Probe("list of texts", ["hi", "you"]),
    Probe("token ids", [1, 2]),
    Probe("list of lists of token ids", [[1], [2]]),
]
STOPS: Final = [
    Probe(f"up to {MAX_STOPS} texts of {MAX_STOP_CHARS} characters", ["a" * MAX_STOP_CHARS] * MAX_STOPS),
    Probe("more", ["a"] * (MAX_STOPS + 1)),
    Probe("longer", ["a" * (MAX_STOP_CHARS + 1)]),
]
LOGPROBS: Final = [Probe(f"0 to {MAX_LOGPROBS}", MAX_LOGPROBS), Probe("more", MAX_LOGPROBS + 1)]
DRAWN: Final[Mapping[str, list[Probe]]] = {
    "model": [Probe("a name that is served", "tiny")],
    "n": [Probe(f"1 to {MAX_N}", MAX_N), Probe("more", MAX_N + 1)],
    "temperature": [Probe("0 or more", 2), Probe("negative", -1)],
    "top_p": [Probe("0 to 1", 0), Probe("more", 1.1)],
    "stop": STOPS,
    "frequency_penalty": [Probe("-2 to 2", -2), Probe("beyond", 3)],
    "presence_penalty": [Probe("-2 to 2", -2), Probe("beyond", 3)],
    "logit_bias": [Probe("token ids to numbers", {"70": 5})],
    "seed": [Probe("whole numbers of 64 bits", -1)],
    "max_tokens": [Probe("1 or more", 8), Probe("0", 0)],
    "max_completion_tokens": [Probe("1 or more", 8), Probe("0", 0)],
    "max_output_tokens": [Probe("1 or more", 8), Probe("0", 0)],
    "top_logprobs": LOGPROBS,
    "metadata": [
        Probe("up to 16 texts of 512 characters, named with 64", {"a" * 64: "b" * 512}),
        Probe("more", {str(index): "b" for index in range(17)}),
        Probe("longer", {"a": "b" * 513}),
    ],
}

CONTINUOUS: Final = [Probe("continuous_usage_stats: true", {"include_usage": True, "continuous_usage_stats": True})]
"""What vLLM's stream_options have beside OpenAI's."""
OLLAMA_CALL: Final = {"name": "weather", "arguments": {}}
OPTIONS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty"), 0.5),
    **dict.fromkeys(("top_k", "seed", "num_predict"), 5),
    "num_ctx": 2048,
    "stop": ["a"],
    "repeat_last_n": 64,
    **dict.fromkeys(("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "mirostat_tau", "mirostat_eta"), 1),
    **dict.fromkeys(("numa", "low_vram", "f16_kv", "use_mmap", "use_mlock"), True),
    **dict.fromkeys(("tfs_z", "typical_p"), 0.5),
    **dict.fromkeys(("logits_all", "vocab_only", "embedding_only"), True),
    "mirostat": 1,
    "penalize_newline": False,
}
"""A value of each option of Ollama's client; one that has an effect."""
OLLAMA: Final[Mapping[str, list[Probe]]] = {
    "model": DRAWN["model"],
    "options": [Probe(name, {name: value}) for name, value in OPTIONS.items()],
    "format": [Probe("`json`", "json"), Probe("a JSON schema", SCHEMA), Probe("another text", "xml")],
    "keep_alive": [Probe("seconds", 5), Probe("a duration", "5m"), Probe("another text", "soon")],
    "think": [Probe("true", True), Probe("false", False), Probe("`low` to `max`", "low")],
    "top_logprobs": LOGPROBS,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of the table.

    params   the client's type of its fields
    read     what reads a body
    base     the least body
    values   what to try where the type does not tell it well
    more     what to try beside that
    needs    what else a field needs beside it
    also     fields of the client that stand in another type
    """

    path: str
    client: str
    params: Any
    read: Callable[[object], DialectRequest]
    base: Values
    values: Mapping[str, list[Probe]] = field(default_factory=dict)
    more: Mapping[str, list[Probe]] = field(default_factory=dict)
    needs: Mapping[str, Values] = field(default_factory=dict)
    also: Mapping[str, Any] = field(default_factory=lambda: {"stream": bool})


ENDPOINTS: Final = (
    Endpoint(
        "/v1/chat/completions",
        "openai",
        ChatParams,
        ChatRequest.read,
        {"model": "tiny", "messages": [USER]},
        values={
            **DRAWN,
            "messages": [
                *(Probe(f"`{role}`", [{"role": role, "content": "hi"}, USER]) for role in ("developer", "system")),
                *(Probe(f"`{role}`", [USER, {"role": role, "content": "hi"}]) for role in ("user", "assistant")),
                Probe("`tool`", [USER, {"role": "tool", "tool_call_id": "c", "content": "hi"}]),
                *_said("text", "image_url", "input_audio", "file"),
            ],
            "tool_choice": [
                *(Probe(f"`{word}`", word) for word in ("none", "auto", "required")),
                Probe("`function`", CHAT_NAMED),
                Probe(
                    "`allowed_tools`",
                    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHAT_NAMED]}},
                ),
                Probe("`custom`", {"type": "custom", "custom": {"name": "weather"}}),
            ],
        },
        needs={
            "tool_choice": {"tools": [CHAT_TOOL]},
            "top_logprobs": {"logprobs": True},
            "stream_options": {"stream": True},
        },
        more={"stream_options": CONTINUOUS},
    ),
    Endpoint(
        "/v1/completions",
        "openai",
        TextParams,
        CompletionRequest.read,
        {"model": "tiny", "prompt": "hi"},
        values={
            **DRAWN,
            "max_tokens": [Probe("1 or more; 0 with echo", 8), Probe("0", 0)],
            "prompt": TEXTS,
            "logprobs": LOGPROBS,
            "best_of": DRAWN["n"],
            "suffix": [Probe("none", ""), Probe("text, by models with tokens for filling in the middle", "")],
        },
        needs={"stream_options": {"stream": True}},
        more={"stream_options": CONTINUOUS},
    ),
    Endpoint(
        "/v1/responses",
        "openai",
        ResponseCreateParamsBase,
        ResponsesRequest.read,
        {"model": "tiny", "input": "hi"},
        values={
            **DRAWN,
            "input": _items(),
            "previous_response_id": [Probe("the id of a stored response", "resp_1")],
            "tool_choice": [
                *(Probe(f"`{word}`", word) for word in ("none", "auto", "required")),
                Probe("`function`", {"type": "function", "name": "weather"}),
                Probe(
                    "`allowed_tools`",
                    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
                ),
                Probe("`web_search_preview`", {"type": "web_search_preview"}),
                Probe("`custom`", {"type": "custom", "name": "weather"}),
            ],
            "context_management": [Probe("none", []), Probe("`compaction`", [{"type": "compaction"}])],
            "max_tool_calls": [Probe("1 or more (there are no built-in tools to count)", 3)],
        },
        needs={
            "tool_choice": {"tools": [RESPONSES_TOOL]},
            "top_logprobs": {"include": ["message.output_text.logprobs"]},
            "stream_options": {"stream": True},
        },
    ),
    Endpoint(
        "/v1/embeddings",
        "openai",
        EmbeddingCreateParams,
        EmbeddingRequest.read,
        {"model": "tiny", "input": "hi"},
        values={
            "model": DRAWN["model"],
            "input": TEXTS,
            "dimensions": [Probe("the model's own", 64), Probe("others", 32)],
        },
        also={},
    ),
    Endpoint(
        "/v1/messages",
        "anthropic",
        MessageCreateParamsBase,
        MessagesRequest.read,
        {"model": "tiny", "max_tokens": 8, "messages": [USER]},
        values={
            "model": DRAWN["model"],
            "messages": _blocks(),
            "max_tokens": [Probe("0 or more", 0), Probe("negative", -1)],
            "stop_sequences": STOPS,
            "system": [Probe("text", "hi"), Probe("`text` blocks", [{"type": "text", "text": "hi"}])],
            "tool_choice": [
                *(Probe(f"`{kind}`", {"type": kind}) for kind in ("auto", "any", "none")),
                Probe("`tool`", {"type": "tool", "name": "weather"}),
                Probe("disable_parallel_tool_use", {"type": "any", "disable_parallel_tool_use": True}),
            ],
        },
        more={
            "thinking": [Probe(f"display: `{word}`", {"type": "adaptive", "display": word}) for word in DISPLAYS],
            "context_management": [
                Probe(f"edits: [`clear_thinking_20251015`, keep: {label}]", {"edits": [{**CLEARED, "keep": keep}]})
                for label, keep in (("`all`", "all"), ("`thinking_turns`", {"type": "thinking_turns", "value": 1}))
            ],
        },
        needs={"tool_choice": {"tools": [MESSAGES_TOOL]}},
    ),
    Endpoint(
        "/api/chat",
        "ollama",
        ollama.ChatRequest,
        OllamaChatRequest.read,
        {"model": "tiny", "messages": [USER]},
        values={
            **OLLAMA,
            "messages": [
                Probe("none, to load the model", []),
                *(Probe(f"`{role}`", [{"role": role, "content": "hi"}, USER]) for role in ("system", "user", "tool")),
                Probe("`assistant`, continued where it is the last", [USER, {"role": "assistant", "content": "so"}]),
                Probe("tool calls", [USER, {"role": "assistant", "tool_calls": [{"function": OLLAMA_CALL}]}]),
                Probe("images", [{**USER, "images": ["aGk="]}]),
            ],
            "tools": [Probe("functions", [CHAT_TOOL])],
        },
        needs={"top_logprobs": {"logprobs": True}},
        also={},
    ),
    Endpoint(
        "/api/generate",
        "ollama",
        ollama.GenerateRequest,
        OllamaGenerateRequest.read,
        {"model": "tiny", "prompt": "hi"},
        values={
            **OLLAMA,
            "suffix": [Probe("text, by models with tokens for filling in the middle", "")],
            "template": [Probe("none", ""), Probe("text", "{{ .Prompt }}")],
            "context": [Probe("none", []), Probe("token ids", [1])],
            "images": [Probe("none", []), Probe("pictures", ["aGk="])],
        },
        needs={"top_logprobs": {"logprobs": True}},
        also={},
    ),
    Endpoint(
        "/api/embed",
        "ollama",
        ollama.EmbedRequest,
        OllamaEmbedRequest.read,
        {"model": "tiny", "input": "hi"},
        values={
            **OLLAMA,
            "input": TEXTS[:2],
            "dimensions": [Probe("the model's own", 64), Probe("others", 32)],
        },
        also={},
    ),
)
