"""Clients of a fleet: the questions they ask, their answers, and what they see under faults."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

QUANTILES: Final = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
TIMEOUT_S: Final = 180.0
CITY: Final = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
    "required": ["city", "country"],
}
TOOL: Final = {"type": "function", "function": {"name": "look_up", "parameters": CITY}}
ASKED: Final = "Name a city and its country, and say what it is known for."
CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": ASKED}], "temperature": 1.0}
CASES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/v1/chat/completions", {**CHAT, "max_tokens": 96, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 96, "presence_penalty": 0.9, "frequency_penalty": 0.5}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 64, "n": 3}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 96, "stop": ["known", " a "], "logprobs": True}),
    (
        "/v1/chat/completions",
        {
            **CHAT,
            "max_tokens": 80,
            "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY}},
        },
    ),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 80, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/completions", {"prompt": "The city of", "max_tokens": 96, "temperature": 0.9, "logprobs": 2}),
    ("/v1/completions", {"prompt": "It was", "max_tokens": 24, "temperature": 1.0, "n": 2, "best_of": 4}),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and whether its answer is streamed."""

    path: str
    body: dict[str, Any]
    stream: bool

    @property
    def key(self) -> str:
        """Equal for questions with equal answers."""
        return json.dumps([self.path, self.body])


@dataclass(slots=True)
class Answer:
    """What a client got: ``choices`` by index, each with what all deltas say together; ``gaps_s`` between events."""

    choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: Any = None
    gaps_s: list[float] = field(default_factory=list)


def questions(model: str, seed: int, count: int, *, streams: bool | None = None) -> list[Question]:
    """Questions of all cases in random order, each with one of a few seeds."""
    chance, asked = random.Random(seed), []
    for _ in range(count):
        path, body = chance.choice(CASES)
        stream = chance.random() < 0.7 if streams is None else streams
        stream = stream and "best_of" not in body
        asked.append(Question(path, {**body, "model": model, "seed": chance.randrange(4)}, stream))
    return asked


def ask(url: str, question: Question) -> Answer:
    """Asks a server. Raises RuntimeError for an error, and if the stream ends early."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    body = dict(question.body)
    if question.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    try:
        connection.request("POST", question.path, json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {reply.read()[:300]!r}")
        return _streamed(reply) if question.stream else _whole(json.loads(reply.read()))
    finally:
        connection.close()


def _whole(body: dict[str, Any]) -> Answer:
    answer = Answer(usage=body["usage"])
    for choice in body["choices"]:
        _join(answer, choice, choice.get("message"))
    return answer


def _streamed(reply: http.client.HTTPResponse) -> Answer:
    answer, last, done = Answer(), time.monotonic(), False
    for line in reply:
        if not line.startswith(b"data: "):
            continue
        now = time.monotonic()
        answer.gaps_s.append(now - last)
        last = now
        if line.strip() == b"data: [DONE]":
            done = True
            break
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(f"an error in the stream: {event['error']}")
        answer.usage = event.get("usage") or answer.usage
        for choice in event["choices"]:
            _join(answer, choice, choice.get("delta"))
    if not done:
        raise RuntimeError("the stream ended early")
    return answer


def _join(answer: Answer, choice: dict[str, Any], message: dict[str, Any] | None) -> None:
    """Adds a choice, or the part of it that an event has."""
    whole = answer.choices.setdefault(choice["index"], {"text": "", "tools": {}, "logprobs": [], "finish": None})
    message = message or {}
    whole["text"] += choice.get("text") or message.get("content") or ""
    for number, call in enumerate(message.get("tool_calls") or ()):
        parts = whole["tools"].setdefault(str(call.get("index", number)), ["", ""])
        parts[0] += call["function"].get("name") or ""
        parts[1] += call["function"].get("arguments") or ""
    logprobs = choice.get("logprobs") or {}
    whole["logprobs"] += logprobs.get("content") or logprobs.get("token_logprobs") or []
    whole["finish"] = choice.get("finish_reason") or whole["finish"]


def comparable(answer: Answer) -> str:
    """What of an answer must not depend on faults. Which prompt tokens were cached depends on the replica."""
    usage = {key: answer.usage[key] for key in ("prompt_tokens", "completion_tokens")}
    return json.dumps([sorted(answer.choices.items()), usage])


@dataclass(slots=True)
class Outcome:
    """What clients saw: answers, those that differ from the reference, errors, and gaps between events."""

    answers: int = 0
    different: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    cut: int = 0


def under_faults(
    url: str,
    asked: Sequence[Question],
    expected: Callable[[Question], str],
    stop: threading.Event,
    clients: int,
    excuses: Callable[[float], bool] = lambda _: False,
) -> Outcome:
    """Asks the questions over and over with several clients until ``stop`` is set. ``excuses`` says of the time when a
    request began whether its error is expected; such errors count as ``cut``."""
    outcome, lock, turns = Outcome(), threading.Lock(), iter(_forever(asked))

    def client() -> None:
        while not stop.is_set():
            with lock:
                question = next(turns)
            began = time.monotonic()
            try:
                answer = ask(url, question)
                found = comparable(answer)
            except Exception as error:  # every failure of a client is a finding
                excused = excuses(began)
                with lock:
                    outcome.cut += excused
                    if not excused:
                        outcome.errors.append(f"{type(error).__name__}: {error}"[:300])
                while excuses(time.monotonic()) and not stop.wait(0.1):
                    pass  # it is down
                continue
            with lock:
                outcome.answers += 1
                outcome.gaps_s += answer.gaps_s
                if found != expected(question):
                    outcome.different.append(f"{question}: {found} is not {expected(question)}"[:2000])

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


def _forever(asked: Sequence[Question]) -> Iterator[Question]:
    while True:
        yield from asked


def figures(outcome: Outcome) -> dict[str, Any]:
    """What clients saw, for the last line; prints examples of what is wrong."""
    gaps = sorted(outcome.gaps_s)
    for line in (*outcome.different[:3], *outcome.errors[:3]):
        print(line)
    return {
        "answers": outcome.answers,
        "different": len(outcome.different),
        "errors": len(outcome.errors),
        "gap_ms": {name: round(gaps[int(share * (len(gaps) - 1))] * 1e3, 1) for name, share in QUANTILES},
    }
