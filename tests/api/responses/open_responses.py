"""What the Open Responses specification requires of responses, items, parts and events.

Facts from github.com/openresponses/openresponses, ``schema/*.tsp`` (``responses``, ``items``, ``content``, ``events``,
``tools``, ``configuration``), read in November 2026: the members that are not optional there, with their types. Objects
that Twofold never sends are not listed (refusals, compaction, summaries, annotations, images, errors as events).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

REQUIRED: Final[Mapping[str, str]] = {
    "response": (
        "id:string object:string created_at:integer completed_at:integer? status:string incomplete_details:incomplete? "
        "model:string previous_response_id:string? instructions:string? output:item* error:failure? tools:tool* "
        "tool_choice:choice truncation:string parallel_tool_calls:boolean text:text top_p:number "
        "presence_penalty:number frequency_penalty:number top_logprobs:integer temperature:number reasoning:effort? "
        "usage:usage? max_output_tokens:integer? max_tool_calls:integer? store:boolean background:boolean "
        "service_tier:string metadata:object safety_identifier:string? prompt_cache_key:string?"
    ),
    "incomplete": "reason:string",
    "failure": "code:string message:string",
    "usage": (
        "input_tokens:integer output_tokens:integer total_tokens:integer input_tokens_details:cached "
        "output_tokens_details:reasoned"
    ),
    "cached": "cached_tokens:integer",
    "reasoned": "reasoning_tokens:integer",
    "effort": "effort:string? summary:string?",
    "text": "format:format",
    "format text": "type:string",
    "format json_object": "type:string",
    "format json_schema": "type:string name:string description:string? schema:object? strict:boolean",
    "tool": "type:string name:string description:string? parameters:object? strict:boolean?",
    "choice function": "type:string",
    "choice allowed_tools": "type:string tools:choice* mode:string",
    "item message": "type:string id:string status:status role:string content:part*",
    "item function_call": "type:string id:string call_id:string name:string arguments:string status:status",
    "item function_call_output": "type:string id:string call_id:string output:output status:status",
    "item reasoning": "type:string id:string summary:part*",
    "part input_text": "type:string text:string",
    "part output_text": "type:string text:string annotations:object*",
    "part reasoning_text": "type:string text:string",
    "part summary_text": "type:string text:string",
    "logprob": "token:string logprob:number bytes:integer* top_logprobs:likely*",
    "likely": "token:string logprob:number bytes:integer*",
    **{
        f"event response.{state}": "type:string sequence_number:integer response:response"
        for state in ("created", "in_progress", "completed", "incomplete", "failed")
    },
    **{
        f"event response.output_item.{moment}": "type:string sequence_number:integer output_index:integer item:item?"
        for moment in ("added", "done")
    },
    **{
        f"event response.{kind}": (
            f"type:string sequence_number:integer item_id:string output_index:integer content_index:integer {more}"
        )
        for kind, more in {
            "content_part.added": "part:part",
            "content_part.done": "part:part",
            "output_text.delta": "delta:string",
            "output_text.done": "text:string",
            # OpenAI's names, which its clients read; the specification has reasoning.delta and reasoning.done.
            "reasoning_text.delta": "delta:string",
            "reasoning_text.done": "text:string",
        }.items()
    },
    **{
        f"event response.function_call_arguments.{moment}": (
            f"type:string sequence_number:integer item_id:string output_index:integer {more}:string"
        )
        for moment, more in (("delta", "delta"), ("done", "arguments"))
    },
}
OPTIONAL: Final[Mapping[str, str]] = {
    "part output_text": "logprobs:logprob*",
    "event response.output_text.delta": "logprobs:logprob*",
    "event response.output_text.done": "logprobs:logprob*",
}
"""Members that may be absent, but have this type."""
PLAIN: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "choice": str,
    "output": str,
}
"""Types that need no look inside; a choice or an output may also be an object or a list of parts."""
STATUSES: Final = ("in_progress", "completed", "incomplete")


def faults(kind: str, value: Any, where: str = "") -> list[str]:
    """What the specification requires of a value and is not so: paths with the reason."""
    if kind.endswith("?"):
        return [] if value is None else faults(kind[:-1], value, where)
    if kind.endswith("*") or kind == "output":
        inner = kind[:-1] if kind.endswith("*") else "part"
        if isinstance(value, list):
            return [each for index, one in enumerate(value) for each in faults(inner, one, f"{where}[{index}]")]
    names = (kind, f"{kind} {value.get('type')}") if isinstance(value, dict) else ()
    name = next((name for name in names if name in REQUIRED), None)
    if name is not None:
        return _members(name, value, where)
    fits = isinstance(value, PLAIN.get(kind, ())) and (kind == "boolean") == isinstance(value, bool)
    return [] if fits or (kind == "status" and value in STATUSES) else [f"{where} is not of type {kind}: {value!r}"]


def _members(name: str, value: Mapping[str, Any], where: str) -> list[str]:
    found: list[str] = []
    for text, needed in ((REQUIRED[name], True), (OPTIONAL.get(name, ""), False)):
        for member, kind in (each.split(":") for each in text.split()):
            if member in value:
                found += faults(kind, value[member], f"{where}.{member}")
            elif needed:
                found.append(f"{where}.{member} is missing")
    return found


def kinds_of(values: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of the events, items and parts that the values have, as in REQUIRED."""
    found: set[str] = set()
    for value in values:
        found.add(f"event {value['type']}")
        for item in (value.get("response") or {}).get("output", ()):
            found.add(f"item {item['type']}")
            found |= {f"part {part['type']}" for part in item.get("content", ())}
    return found
