"""The output items of a response, put together piece by piece, with the events that tell of each piece.

A whole reply and a streamed one are made of the same items. An item is announced, grows by deltas, and is told whole
when it ends; only the last one is ever open. White space alone opens no message: models put it between their calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from twofold.api.answers import NOTHING
from twofold.api.openai.responses.items import Item, output_id, sealed
from twofold.api.openai.responses.logprobs import Entries, last_of
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall

Event: TypeAlias = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class OutputItems:
    """The items of an answer that ``parser`` divides. ``response`` is the response's id without its prefix.

    ``seal`` tells reasoning in ``encrypted_content`` too.
    """

    def __init__(self, response: str, parser: SectionParser, *, seal: bool = False) -> None:
        self.items: list[Item] = []
        self._response = response
        self._parser = parser
        self._seal = seal
        self._open: _OpenItem | None = None
        self._blank = ""
        self._unplaced: list[dict[str, Any]] = []

    def take(self, text: str, logprobs: Entries = ()) -> Iterator[Event]:
        """The events of more text; ``logprobs`` are those of its tokens."""
        self._unplaced += logprobs
        yield from self._take(self._parser.push(text) if text else ())

    def close(self, status: Status) -> Iterator[Event]:
        """Ends the answer. If it is completed and calls nothing it has a message, if an empty one."""
        yield from self._take(self._parser.flush())
        thought_alone = all(item["type"] == "reasoning" for item in self.items)
        if status == "completed" and thought_alone and (self._open is None or isinstance(self._open, _Thought)):
            yield from self._grow(_Message, self._blank)
        yield from self._end(status)

    def _take(self, pieces: Sequence[Piece]) -> Iterator[Event]:
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._said(text)
                case Reasoning(text):
                    yield from self._grow(_Thought, text)
                case ToolCall(_, name):
                    self._blank = ""
                    yield from self._begin(_CallItem(self._response, self._next, name))
                case Arguments(_, text):
                    assert isinstance(self._open, _CallItem), "arguments follow their call"
                    yield from self._grow(_CallItem, text)
        if pieces:
            self._unplaced.clear()

    @property
    def _next(self) -> int:
        """The index of the item that begins now."""
        return len(self.items) + (self._open is not None)

    def _said(self, text: str) -> Iterator[Event]:
        if isinstance(self._open, _Message) or (self._blank + text).strip():
            text, self._blank = self._blank + text, ""
            yield from self._grow(_Message, text)
        else:
            self._blank += text

    def _grow(self, kind: type[_OpenItem], text: str) -> Iterator[Event]:
        if not isinstance(self._open, kind):
            yield from self._begin(kind(self._response, self._next))
        assert self._open is not None
        if text:
            yield self._open.add(text, last_of(self._unplaced, text))
            self._unplaced = []

    def _begin(self, item: _OpenItem) -> Iterator[Event]:
        yield from self._end("completed")
        self._open = item
        yield from item.begin()

    def _end(self, status: Status) -> Iterator[Event]:
        if self._open is not None:
            item = self._open.item(status)
            item = sealed(item) if self._seal and isinstance(self._open, _Thought) else item
            yield from self._open.end(item)
            self.items.append(item)
            self._open = None


class _OpenItem(ABC):
    """An item that grows."""

    kind: ClassVar[str]

    def __init__(self, response: str, index: int) -> None:
        self._id = output_id(self.kind, response, index)
        self._index = index
        self._texts: list[str] = []

    @abstractmethod
    def item(self, status: Status) -> Item:
        """The item as it is told; without its content while it is in progress."""

    @abstractmethod
    def begin(self) -> Iterator[Event]: ...

    @abstractmethod
    def add(self, text: str, logprobs: Entries) -> Event: ...

    @abstractmethod
    def end(self, item: Item) -> Iterator[Event]:
        """Tells of the item's end; ``item`` is what became of it."""

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _added(self) -> Event:
        item = self.item("in_progress")
        return {"type": "response.output_item.added", "output_index": self._index, "item": item}

    def _done(self, item: Item) -> Event:
        return {"type": "response.output_item.done", "output_index": self._index, "item": item}

    def _event(self, kind: str, more: Event) -> Event:
        return {"type": f"response.{kind}", "item_id": self._id, "output_index": self._index, **more}


class _Parted(_OpenItem):
    """An item whose text stands in a part of it."""

    part_kind: ClassVar[str]

    @abstractmethod
    def _part(self, text: str) -> dict[str, Any]:
        """The part, holding this much."""

    def begin(self) -> Iterator[Event]:
        yield self._added()
        yield self._event("content_part.added", {"content_index": 0, "part": self._part("")})

    def add(self, text: str, logprobs: Entries) -> Event:  # noqa: ARG002 - only messages tell them
        self._texts.append(text)
        return self._event(f"{self.part_kind}.delta", {"content_index": 0, "delta": text})

    def end(self, item: Item) -> Iterator[Event]:
        (part,) = item["content"]
        told = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield self._event(f"{self.part_kind}.done", {"content_index": 0, **told})
        yield self._event("content_part.done", {"content_index": 0, "part": part})
        yield self._done(item)

    def _content(self, status: Status) -> list[dict[str, Any]]:
        return [] if status == "in_progress" else [self._part(self._text)]


class _Message(_Parted):
    kind = "message"
    part_kind = "output_text"

    def __init__(self, response: str, index: int) -> None:
        super().__init__(response, index)
        self._logprobs: list[dict[str, Any]] = []

    def add(self, text: str, logprobs: Entries) -> Event:
        self._logprobs += logprobs
        return super().add(text, logprobs) | {"logprobs": logprobs}

    def item(self, status: Status) -> Item:
        message = {"id": self._id, "type": "message", "role": "assistant", "status": status}
        return message | {"content": self._content(status)}

    def _part(self, text: str) -> dict[str, Any]:
        logprobs = self._logprobs if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class _Thought(_Parted):
    kind = "reasoning"
    part_kind = "reasoning_text"

    def item(self, status: Status) -> Item:
        thought = {"id": self._id, "type": "reasoning", "status": status, "summary": []}
        return thought | {"content": self._content(status)}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}


class _CallItem(_OpenItem):
    kind = "function_call"

    def __init__(self, response: str, index: int, name: str = "") -> None:
        super().__init__(response, index)
        self._name = name
        self._call_id = f"call_{response}_{index}"

    def item(self, status: Status) -> Item:
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self._text or (NOTHING if status == "completed" else ""),
        }

    def begin(self) -> Iterator[Event]:
        yield self._added()

    def add(self, text: str, logprobs: Entries) -> Event:  # noqa: ARG002 - only messages tell them
        self._texts.append(text)
        return self._event("function_call_arguments.delta", {"delta": text})

    def end(self, item: Item) -> Iterator[Event]:
        if item["arguments"] and not self._texts:
            yield self.add(item["arguments"], ())
        yield self._event("function_call_arguments.done", {"name": self._name, "arguments": item["arguments"]})
        yield self._done(item)
