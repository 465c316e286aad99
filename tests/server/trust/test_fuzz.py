"""Bodies with an odd value for each field, and tools with odd schemas: they get a reply or a short error, and never
cause an internal error."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from copy import deepcopy
from random import Random
from typing import Any, Final

import pytest

from tests.server.trust.client import CHAT, MESSAGES, Client, Reply, chat

ERROR_BYTES: Final = 4096
AT_ONCE: Final = 8
VALUES_EACH: Final = 3
"""Odd values that each place gets; which ones differs from place to place."""
SCHEMAS: Final = 60
SEED: Final = 3

SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]}
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True},
}
HI: Final[list[dict[str, Any]]] = [{"role": "user", "content": "hi"}]
BODIES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (
        CHAT,
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "n"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "1"},
            ],
            "max_completion_tokens": 1,
            "temperature": 1,
            "top_p": 1,
            "top_k": 1,
            "min_p": 0,
            "n": 1,
            "seed": 1,
            "stop": ["a"],
            "stop_token_ids": [1],
            "logprobs": True,
            "top_logprobs": 1,
            "logit_bias": {"1": 1},
            "presence_penalty": 0,
            "repetition_penalty": 1,
            "min_tokens": 0,
            "ignore_eos": False,
            "user": "u",
            "metadata": {"a": "b"},
            "service_tier": "auto",
            "chat_template_kwargs": {"a": 1},
            "priority": 0,
            "cache_salt": "s",
            "twofold": {"explain": True},
            "prompt_cache_options": {"mode": "implicit", "ttl": "5m"},
            "store": False,
        },
    ),
    (CHAT, chat(max_tokens=4, stream=True, stream_options={"include_usage": True}, structured_outputs={"regex": "a+"})),
    (CHAT, chat(max_tokens=8, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}})),
    (CHAT, chat(max_tokens=64, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})),
    (CHAT, chat(max_tokens=1, tools=[TOOL], tool_choice="auto", parallel_tool_calls=True)),
    ("/v1/completions", {"model": "tiny", "prompt": [[1, 2], [3]], "max_tokens": 1, "echo": True, "logprobs": 1}),
    ("/v1/embeddings", {"model": "tiny", "input": ["a", "b"], "encoding_format": "float", "dimensions": None}),
    (
        MESSAGES,
        {
            "model": "tiny",
            "max_tokens": 4,
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
            "messages": [
                *HI,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]},
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
            "stop_sequences": ["x"],
            "metadata": {"user_id": "u"},
            "thinking": {"type": "disabled"},
        },
    ),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": HI, "system": "s"}),
    (
        "/v1/responses",
        {
            "model": "tiny",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
            ],
            "instructions": "i",
            "max_output_tokens": 16,
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
            "previous_response_id": None,
            "reasoning": {"effort": None},
            "text": {"format": {"type": "text"}},
            "include": ["message.output_text.logprobs"],
            "metadata": {"a": "b"},
        },
    ),
    ("/tokenize", {"model": "tiny", "prompt": "a", "add_special_tokens": True, "return_token_strs": True}),
    ("/detokenize", {"model": "tiny", "tokens": [1, 2]}),
    ("/v1/batches", {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", "metadata": {"a": "b"}}),
)  # fmt: skip
NUMBERS: Final = ("1e400", "NaN", "-Infinity", "1" * 400, "1" * 5000, "1." + "0" * 500, "1e308", f"{2**63}", "-0.0")
TEXTS: Final = ('"\\ud800"', '"\\u0000"', '"\U0010ffff"', '"<|im_end|>"', '"{{7*7}}"', '"%s%n"', '""', '"self"')
NESTED: Final = ("[" * 60 + "]" * 60, "[" * 200 + "]" * 200, '{"a":' * 63 + "1" + "}" * 63)
OTHERS: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, "x" * 5000, [], [[]], [None], [1, "a"], ["a"] * 20, [{}], {}, {"": None}, {"self": 1},
    {"__proto__": {}}, {"type": "text"}, {"type": None}, {"type": ["a"]}, {"$ref": "#"}, {"json": None},
)  # fmt: skip
ODD: Final = (*NUMBERS, *TEXTS, *NESTED, *map(json.dumps, OTHERS))
"""In JSON, or what comes near it."""
UNKNOWN: Final = ("self", "zzz", "", "\u0000", "x" * 3000)
PLACE: Final = "@here@"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value in a body, the body itself first."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def replaced(body: Any, path: tuple[Any, ...], odd: str) -> bytes:
    """The body in JSON with ``odd`` in this place."""
    whole = {"body": deepcopy(body)}
    inner: Any = whole
    *outer, last = ("body", *path)
    for key in outer:
        inner = inner[key]
    inner[last] = PLACE
    return json.dumps(whole["body"]).replace(f'"{PLACE}"', odd).encode()


def extended(body: Any, path: tuple[Any, ...], name: str) -> bytes | None:
    """The body with one more field in this place; None where there are no fields."""
    inner = body = deepcopy(body)
    for key in path:
        inner = inner[key]
    if not isinstance(inner, dict):
        return None
    inner[name] = 1
    return json.dumps(body).encode()


def odd_bodies() -> Iterator[tuple[str, bytes]]:
    """Paths and bodies."""
    turn = 0
    for path, body in BODIES:
        for place in places(body):
            chosen = [ODD[(turn + step * 13) % len(ODD)] for step in range(VALUES_EACH)]
            yield from ((path, replaced(body, place, odd)) for odd in chosen)
            names = UNKNOWN[turn % len(UNKNOWN) :][:1]
            yield from ((path, data) for name in names if (data := extended(body, place, name)) is not None)
            turn += 1


def odd_schema(random: Random, depth: int = 0) -> Any:
    """Something in the place of a JSON schema."""
    names = ("type", "properties", "required", "$defs", "items", "anyOf", "enum", "$ref", "pattern", "a", "", '"', "\n")
    if depth > 3 or random.random() < 0.4:
        return json.loads(random.choice([odd for odd in ODD if odd not in (*NUMBERS, *NESTED, TEXTS[0])]))
    return {random.choice(names): odd_schema(random, depth + 1) for _ in range(random.randrange(5))}


def odd_tools(count: int) -> Iterator[tuple[str, bytes]]:
    random = Random(SEED)
    for turn in range(count):
        function = {"name": ("f", "a" * 64, "f-1")[turn % 3], "parameters": odd_schema(random), "strict": turn % 4 == 0}
        tools = [{"type": "function", "function": function}]
        yield CHAT, json.dumps(chat(max_tokens=64, tools=tools, tool_choice=("auto", "required")[turn % 2])).encode()


def faults(client: Client, bodies: Iterable[tuple[str, bytes]]) -> tuple[Counter[int], list[str]]:
    """How often each status came, and the answers that no client should get."""
    left, statuses, bad = iter(bodies), Counter[int](), list[str]()

    def faulty(reply: Reply) -> bool:
        failed = reply.status >= 500 or b"server_error" in reply.body or b"api_error" in reply.body
        return failed or (reply.status >= 400 and len(reply.body) > ERROR_BYTES)

    async def ask() -> None:
        for path, body in left:
            reply = await client.ask("POST", path, body)
            statuses[reply.status] += 1
            if faulty(reply):
                bad.append(f"{path} {body[:300]!r} -> {reply.status} {reply.body[:300]!r}")

    async def ask_all() -> None:
        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))

    asyncio.run(ask_all())
    return statuses, bad


@pytest.mark.parametrize("path", sorted({path for path, _ in BODIES}))
def test_bodies_are_answered_as_they_are(client: Client, path: str) -> None:
    """What follows changes one thing in each, so they must be right themselves."""
    for one, body in BODIES:
        if one == path:
            reply = asyncio.run(client.ask("POST", path, body))
            assert reply.status == 200 or "file-x" in body.values(), reply.body


def test_an_odd_value_in_any_place_is_answered_or_refused(client: Client) -> None:
    statuses, bad = faults(client, odd_bodies())
    assert not bad, "\n".join(bad[:10])
    assert statuses[400] > 300
    assert statuses[200] > 30


def test_tools_with_odd_schemas_are_answered_or_refused(client: Client) -> None:
    statuses, bad = faults(client, odd_tools(SCHEMAS))
    assert not bad, "\n".join(bad[:10])
    assert set(statuses) == {200, 400}
