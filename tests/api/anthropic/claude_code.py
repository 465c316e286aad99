"""Two bodies shaped as Claude Code sends them: the first turn of a session, and a later one after tools ran.

The texts are our own; what counts are the fields, the order of the blocks, the controls of the cache, and the billing
header, whose number differs in each request.
"""

from __future__ import annotations

from typing import Any

HOUR = {"type": "ephemeral", "ttl": "1h"}
SOON = {"type": "ephemeral"}


def _header(nonce: str) -> dict[str, Any]:
    text = f"x-anthropic-billing-header: cc_version=2.1.36.{nonce}; cc_entrypoint=cli; cch={nonce};"
    return {"type": "text", "text": text}


def _tool(name: str, description: str, /, **properties: str) -> dict[str, Any]:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {key: {"type": "string", "description": what} for key, what in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "input_schema": schema}


TOOLS = [
    _tool("Read", "Reads a file of the project.", file_path="absolute path of the file"),
    _tool("Bash", "Runs a command in a shell.", command="what to run", description="what it is for"),
]
SYSTEM = [
    {"type": "text", "text": "You help with programming on the command line.", "cache_control": HOUR},
    {"type": "text", "text": "# Style\nBe short.\n\n# Place\nFolder: /home/me/project", "cache_control": HOUR},
]


def _common(nonce: str) -> dict[str, Any]:
    return {
        "model": "claude-sonnet-5",
        "max_tokens": 32000,
        "temperature": 1,
        "stream": True,
        "system": [_header(nonce), *SYSTEM],
        "tools": TOOLS,
        "metadata": {"user_id": "user_0f_account__session_5c1d"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }


ASKED: dict[str, Any] = {
    "role": "user",
    "content": [
        {"type": "text", "text": "<system-reminder>\nThe list of tasks is empty.\n</system-reminder>\n"},
        {"type": "text", "text": "Why does the test fail?", "cache_control": SOON},
    ],
}


def first_turn(nonce: str = "a81") -> dict[str, Any]:
    """What a session begins with."""
    return {**_common(nonce), "messages": [ASKED]}


def later_turn(nonce: str = "f3c") -> dict[str, Any]:
    """The same session after the assistant thought, said something, and ran two tools, one of which failed."""
    asked = {**ASKED, "content": [{k: v for k, v in part.items() if k != "cache_control"} for part in ASKED["content"]]}
    acted = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I should read the test.", "signature": "unsigned"},
            {"type": "text", "text": "I look at the test and run it."},
            {"type": "tool_use", "id": "toolu_01", "name": "Read", "input": {"file_path": "/home/me/project/t.py"}},
            {
                "type": "tool_use",
                "id": "toolu_02",
                "name": "Bash",
                "input": {"command": "pytest -x", "description": "run the tests"},
            },
        ],
    }
    results = {
        "role": "user",
        "content": [
            {"tool_use_id": "toolu_01", "type": "tool_result", "content": "1\tassert 1 + 1 == 3"},
            {
                "tool_use_id": "toolu_02",
                "type": "tool_result",
                "content": [{"type": "text", "text": "Exit code 1"}],
                "is_error": True,
                "cache_control": SOON,
            },
        ],
    }
    return {**_common(nonce), "messages": [asked, acted, results]}
