"""Twofold's format of traces: JSON lines, one request in each.

    {"at_s": 0.0, "input_tokens": 512, "output_tokens": 128}
    {"at_s": 0.4, "input_tokens": 900, "output_tokens": 64, "shared": [[7, 400], [12, 200]]}
    {"at_s": 1.5, "prompt": "Why is the sky blue?", "output_tokens": 100}
    {"at_s": 2.0, "session": 3, "input_tokens": 300, "output_tokens": 50}
    {"after_s": 4.0, "session": 3, "turn": 1, "input_tokens": 40, "output_tokens": 50}

    at_s            arrival time in seconds; ascending
    input_tokens    of the prompt; in a later turn, of the new message
    output_tokens   of the completion
    shared          shared prefix of the prompt, as pairs of a key and a number of tokens: prompts with equal keys at
                    the same position have equal tokens there
    messages        messages to send, [{"role": "user", "content": "…"}, …], or
    prompt          the text of one message of the user. Either replaces the synthetic prompt, and ``input_tokens`` is
                    then optional
    session, turn   number of a conversation, and of its turn from 0, in ascending order
    after_s         of a later turn, instead of ``at_s``: seconds after the completion before it
    fields          additional fields of the request body

Other fields are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from twofold.bench.load.base import Ask, EndedRequest, PromptMessage
from twofold.bench.load.checks import MAX_SECONDS
from twofold.bench.load.sessions import MAX_TURNS
from twofold.bench.load.traces.trace import MAX_KEY, Extra, Later, Trace, TraceLineError, seconds, whole
from twofold.core.errors import ResourceError, did_you_mean

FIELDS: Final = frozenset(
    {"at_s", "after_s", "input_tokens", "output_tokens", "shared", "messages", "prompt", "session", "turn", "fields"}
)
_PLAIN: Final = frozenset({"at_s", "input_tokens", "output_tokens"})
_MAX_SESSION: Final = 2**63 - 1


class OwnReader:
    """Adds the lines of a file to a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._turns: dict[int, int] = {}

    def __call__(self, line: bytes) -> None:
        value = parsed(line)
        if value.keys() == _PLAIN:
            self._first(value, Extra(), _input(value, None), [])
            return
        for name in value.keys() - FIELDS:
            raise TraceLineError(f"{name:.60}", "is not a field of a trace", hint=did_you_mean(name, sorted(FIELDS)))
        session, turn = self._place(value)
        fields = value.get("fields", {})
        if not isinstance(fields, dict):
            raise TraceLineError("fields", "is not a JSON object")
        extra = Extra(session, _messages(value), fields)
        tokens, pieces = _input(value, extra.messages), _shared(value)
        if turn:
            self._later(value, turn, extra, tokens)
        else:
            self._first(value, extra, tokens, pieces)
        if session is not None:
            self._turns[session] = turn

    def _first(self, value: dict[str, Any], extra: Extra, tokens: int, pieces: list[tuple[int, int]]) -> None:
        output = whole("output_tokens", value.get("output_tokens"), 1)
        at_s = seconds("at_s", value.get("at_s"), MAX_SECONDS)
        if sum(length for _, length in pieces) > tokens:
            raise TraceLineError("shared", f"has more tokens than the {tokens} of the prompt")
        number = self._trace.add("at_s", at_s, tokens, output)
        if pieces:
            self._trace.share((key for key, _ in pieces), (length for _, length in pieces))
        if extra != Extra():
            self._trace.extras[number] = extra

    def _later(self, value: dict[str, Any], turn: int, extra: Extra, tokens: int) -> None:
        assert extra.session is not None
        for field in ("at_s", "shared"):
            if field in value:
                raise TraceLineError(field, "is for first turns only; later ones have after_s")
        after_s = seconds("after_s", value.get("after_s"), MAX_SECONDS)
        output = whole("output_tokens", value.get("output_tokens"), 1)
        self._trace.later.setdefault(extra.session, []).append(Later(turn, after_s, tokens, output, extra))

    def _place(self, value: dict[str, Any]) -> tuple[int | None, int]:
        """Session and turn. Raises TraceLineError if the turn is not the next one of its session."""
        turn = whole("turn", value.get("turn", 0), 0, MAX_TURNS - 1)
        if "session" not in value:
            if turn:
                raise TraceLineError("session", "is missing: a turn needs one")
            session = None
        else:
            session = whole("session", value["session"], 0, _MAX_SESSION)
            wanted = self._turns.get(session, -1) + 1
            if turn != wanted:
                raise TraceLineError("turn", f"is {turn}, but the next one of session {session} is {wanted}")
        if "after_s" in value and not turn:
            raise TraceLineError("after_s", "is for later turns; a first one has at_s")
        return session, turn


def write_trace(path: Path, requests: Iterable[EndedRequest]) -> None:
    """Writes requests as a trace that can be replayed. Raises ResourceError if the file cannot be written."""
    try:
        with path.open("wb") as file:
            file.writelines(orjson.dumps(line) + b"\n" for line in _written(requests))
    except OSError as error:
        raise ResourceError(f"{path} cannot be written: {error.strerror}.", hint="Give another file.") from error


def _written(requests: Iterable[EndedRequest]) -> Iterator[dict[str, Any]]:
    ended: dict[tuple[int, int], float] = {}
    for each in sorted(requests, key=lambda each: (each.ask.due_s, each.ask.index)):
        ask, line = each.ask, _fields(each.ask)
        if ask.turn:
            assert ask.session is not None
            line["after_s"] = max(0.0, ask.due_s - ended[ask.session, ask.turn - 1])
        else:
            line["at_s"] = ask.due_s
        if ask.session is not None:
            ended[ask.session, ask.turn] = ask.due_s if each.ended_s is None else each.ended_s
        yield line


def _fields(ask: Ask) -> dict[str, Any]:
    line: dict[str, Any] = {"output_tokens": ask.output_tokens}
    if ask.input_tokens:
        line["input_tokens"] = ask.input_tokens
    if ask.messages is not None:
        line["messages"] = [{"role": message.role, "content": message.text} for message in ask.messages]
    if ask.shared:
        line["shared"] = [[piece.key, piece.tokens] for piece in ask.shared]
    if ask.session is not None:
        line |= {"session": ask.session, "turn": ask.turn}
    return line | ({"fields": dict(ask.fields)} if ask.fields else {})


def parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises TraceLineError."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceLineError("", f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise TraceLineError("", "is not a JSON object")
    return value


def _input(value: dict[str, Any], messages: tuple[PromptMessage, ...] | None) -> int:
    if messages is not None and "input_tokens" not in value:
        return 0
    return whole("input_tokens", value.get("input_tokens"), 1)


def _messages(value: dict[str, Any]) -> tuple[PromptMessage, ...] | None:
    if "prompt" in value:
        if "messages" in value:
            raise TraceLineError("prompt", "is given together with messages; give one of them")
        return (PromptMessage("user", _text("prompt", value["prompt"])),)
    if "messages" not in value:
        return None
    listed = value["messages"]
    if not isinstance(listed, list) or not listed:
        raise TraceLineError("messages", "is not a list of messages")
    for each in listed:
        if not isinstance(each, dict) or each.keys() != {"role", "content"}:
            raise TraceLineError("messages", 'holds an entry that is not {"role": …, "content": …}')
    return tuple(PromptMessage(_text("messages", each["role"]), _text("messages", each["content"])) for each in listed)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TraceLineError(field, "needs a text that is not empty")
    return value


def _shared(value: dict[str, Any]) -> list[tuple[int, int]]:
    listed = value.get("shared", [])
    if not isinstance(listed, list):
        raise TraceLineError("shared", "is not a list of pairs")
    if listed and ("messages" in value or "prompt" in value):
        raise TraceLineError("shared", "is given together with the text of the prompt")
    if any(not isinstance(each, list) or len(each) != 2 for each in listed):
        raise TraceLineError("shared", "holds an entry that is not a pair of a key and a number of tokens")
    return [(whole("shared", key, 0, MAX_KEY), whole("shared", tokens, 1)) for key, tokens in listed]
