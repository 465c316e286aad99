"""Stored responses of /v1/responses: they are the history of new responses, and can be read and deleted.

They are in an SQLite file, by tenant and id.

Invariants: a tenant finds only its own responses; all entries take at most ``max_bytes`` together; if space is needed,
the tenant with the most bytes loses the response that expires first. A conversation lives as long as its last response.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Self, TypeVar

import orjson
from msgspec import UNSET, convert, structs, to_builtins

from twofold.api.base import ReplyHead
from twofold.api.body import ReplyObject, RequestObject
from twofold.api.fields import FieldError
from twofold.api.openai.responses.items import (
    Item,
    ItemContent,
    MessageItem,
    OutputTextContent,
    ThoughtItem,
    owner_of,
    sealed,
)
from twofold.api.openai.responses.reply import ResponseReply
from twofold.api.openai.responses.request import ResponsesRequest, TurnRequest
from twofold.api.openai.responses.settings import LOGPROBS, SEALED_REASONING, Includable
from twofold.core.errors import ConflictError, NotFoundError, quoted
from twofold.server.storage.database import Database, SingleThread, evict, shares_schema
from twofold.server.storage.tenants import ObjectPage, OrderedQuery, Query, page_fields, read_query

MAX_OWNERS: Final = 256
"""Responses that the item references of one request may refer to."""
VERSION: Final = 1
ENTRY_BYTES: Final = 512
"""Size of an entry without its texts, approximately: ids and indexes."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, previous TEXT, response BLOB NOT NULL, items BLOB NOT NULL,
    size INTEGER NOT NULL, expires REAL NOT NULL, PRIMARY KEY (tenant, id)
);
CREATE INDEX IF NOT EXISTS responses_of_tenant ON responses (tenant, expires);
CREATE INDEX IF NOT EXISTS responses_by_time ON responses (expires);
""" + shares_schema("responses")
RENEW: Final = """
WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 1 FROM responses WHERE tenant = :tenant AND id = :id
    UNION ALL
    SELECT older.id, older.previous, depth + 1 FROM responses AS older JOIN chain ON older.id = chain.previous
    WHERE older.tenant = :tenant AND depth < :length
)
UPDATE responses SET expires = :expires WHERE tenant = :tenant AND id IN (SELECT id FROM chain)
"""


R = TypeVar("R", bound=TurnRequest)


class ResponseService:
    """The responses of all tenants. Methods raise NotFoundError for the id of another tenant's, a deleted or an expired
    response."""

    def __init__(self, table: ResponseTable, thread: SingleThread) -> None:
        self._table, self._thread = table, thread

    @classmethod
    async def open(
        cls, path: Path | None, limits: StoreLimits | None = None, *, wall: Callable[[], float] = time.time
    ) -> Self:
        """Opens the file at ``path``, in memory if it is None; ``wall`` returns seconds since 1970.

        Raises ResourceError if the file cannot be used, as all methods do.
        """
        thread, table = await SingleThread.open("responses", ResponseTable, path, limits or StoreLimits(), wall)
        return cls(table, thread)

    async def known(self, tenant: str, request: R) -> R:
        """The request with the conversation that it continues, and with the items that it refers to.

        Raises NotFoundError if a part is not stored, FieldError if the conversation is too long.
        """
        previous = request.previous_response_id
        if previous is None and not request.references:
            return request
        history: list[Item] = []
        if previous is not None:
            history = _whole(await self._thread.call(self._table.chain, tenant, previous), previous)
        return request.known(history, await self._items(tenant, request.references, history))

    async def keep(self, tenant: str, request: ResponsesRequest, head: ReplyHead, response: ResponseReply) -> None:
        """Stores a reply without its field ``twofold``, if the request asks for it. Call it before the end of the reply
        is sent, because the next request may follow at once."""
        if request.store:
            data = to_builtins((structs.replace(response, twofold=UNSET), request.new_items(head)))
            await self._thread.call(self._table.put, tenant, StoredResponse(*data))

    async def get(self, tenant: str, identity: str, query: Query) -> dict[str, Any]:
        """A response as it was first returned."""
        include = read_query(IncludeQuery, query).include or ()
        stored = await self._find(tenant, identity)
        return {**stored.response, "output": [_shown(item, include) for item in _output(stored)]}

    async def delete(self, tenant: str, identity: str) -> ResponseDeleted:
        """Deletes a response. Conversations that contain it cannot be continued."""
        if not await self._thread.call(self._table.delete, tenant, identity):
            raise _absent(identity)
        return ResponseDeleted(id=identity)

    async def cancel(self, tenant: str, identity: str) -> NoReturn:
        """Raises ConflictError: only background responses can be cancelled, and there are none."""
        await self._find(tenant, identity)
        raise ConflictError(
            "Only background responses can be cancelled.",
            hint="To stop a stream, close its connection.",
        )

    async def input_items(self, tenant: str, identity: str, query: Query) -> ResponseItems:
        """A page of the input items of a response, and of all items of the conversation before it."""
        asked = read_query(ItemsQuery, query)
        await self._find(tenant, identity)
        responses = (await self._thread.call(self._table.chain, tenant, identity)).responses
        earlier = [item for stored in responses[:-1] for item in _items(stored)]
        page, more = asked.page([*earlier, *_input(responses[-1])] if responses else [])
        data = [_shown(item, asked.include or ()) for item in page]
        return ResponseItems(**page_fields(data, more, absent=""))

    async def close(self) -> None:
        await self._thread.end(self._table.close)

    async def _find(self, tenant: str, identity: str) -> StoredResponse:
        stored = await self._thread.call(self._table.get, tenant, identity)
        if stored is None:
            raise _absent(identity)
        return stored

    async def _items(self, tenant: str, wanted: Sequence[str], history: Sequence[Item]) -> dict[str, Item]:
        """The items of these ids: from the history, or from the responses that their ids contain."""
        known = {item.id: item for item in history}
        owners = {owner_of(identity) for identity in wanted if identity not in known} - {None}
        if len(owners) > MAX_OWNERS:
            raise FieldError(f"input refers to items of more than {MAX_OWNERS} responses.", param="input")
        for owner in owners:
            stored = await self._thread.call(self._table.get, tenant, str(owner))
            known |= {item.id: item for item in _items(stored)} if stored else {}
        missing = next((identity for identity in wanted if identity not in known), None)
        if missing is not None:
            raise NotFoundError(
                f"There is no item {quoted(missing)}.",
                hint="Items are stored only with responses that set store to true; otherwise send them in full.",
            )
        return {identity: known[identity] for identity in wanted}


class ResponseDeleted(ReplyObject, kw_only=True):
    """A response that was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ResponseItems(ObjectPage, kw_only=True):
    """A page of items."""

    data: list[Item]


class IncludeQuery(RequestObject):
    """Query of a stored response, which cannot be streamed."""

    include: list[Includable] | None = None
    stream: Literal[False] = False
    include_obfuscation: Literal[False] = False
    starting_after: None = None


class ItemsQuery(OrderedQuery):
    """Query of a list of items."""

    include: list[Includable] | None = None

    def page(self, items: Sequence[Item]) -> tuple[list[Item], bool]:
        """The requested part of ``items``, which are oldest first, and whether more follow.

        Raises FieldError if ``after`` is not the id of one of them.
        """
        ordered = list(items) if self.order == "asc" else list(reversed(items))
        start = 0
        if self.after is not None:
            start = next((position for position, item in enumerate(ordered, 1) if item.id == self.after), 0)
            if not start:
                raise FieldError(f"after {quoted(self.after)} is not one of the items.", param="after")
        end = start + self.limit
        return ordered[start:end], end < len(ordered)


def _whole(chain: Chain, identity: str) -> list[Item]:
    """All items of a conversation, oldest first."""
    if chain.cut:
        raise FieldError(
            f"The conversation behind {quoted(identity)} is too long to be continued.",
            param="previous_response_id",
            hint="Start a new one with the items that matter.",
        )
    if chain.missing == identity:
        raise _absent(identity)
    if chain.missing is not None:
        raise NotFoundError(
            f"The conversation behind {quoted(identity)} is incomplete: "
            f"{quoted(chain.missing)} was deleted or has expired.",
            hint="Send the items themselves.",
        )
    return [item for stored in chain.responses for item in _items(stored)]


def _shown(item: Item, include: Collection[str]) -> Item:
    """An item as clients get it, with the optional parts that ``include`` names."""
    if isinstance(item, ThoughtItem) and SEALED_REASONING in include:
        return sealed(item)
    if LOGPROBS in include and isinstance(item, MessageItem) and any(map(_unscored, item.content)):
        raise FieldError(
            f"include {LOGPROBS!r} is not possible: the response was made without log-probabilities.", param="include"
        )
    return item


def _unscored(part: ItemContent) -> bool:
    return isinstance(part, OutputTextContent) and part.text != "" and not part.logprobs


def _input(stored: StoredResponse) -> list[Item]:
    return convert(stored.items, list[Item])


def _output(stored: StoredResponse) -> list[Item]:
    return convert(stored.output, list[Item])


def _items(stored: StoredResponse) -> list[Item]:
    """The items of a turn: those of the request, and the output."""
    return [*_input(stored), *_output(stored)]


def _absent(identity: str) -> NotFoundError:
    return NotFoundError(
        f"There is no response {quoted(identity)}.",
        hint="It was deleted, has expired, or was created with store false.",
    )


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Lifetime of a response in seconds; maximum bytes of all; maximum bytes and responses of one conversation."""

    ttl_s: float = 30 * 86_400.0
    max_bytes: int = 1 << 30
    chain_bytes: int = 16 << 20
    chain_length: int = 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was first returned, with the input items of its request."""

    response: dict[str, Any]
    items: list[dict[str, Any]]

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def previous(self) -> str | None:
        found: str | None = self.response["previous_response_id"]
        return found

    @property
    def output(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.response["output"]
        return found


@dataclass(frozen=True, slots=True)
class Chain:
    """Responses of a conversation, oldest first. ``missing`` is the id of an earlier one that is not stored; ``cut`` is
    set if the conversation exceeds the limits.
    """

    responses: Sequence[StoredResponse]
    missing: str | None = None
    cut: bool = False


class ResponseTable:
    """The table in the file at ``path``, in memory if it is None. ``clock`` returns seconds since 1970.

    Any thread may call its methods, but only one at a time. All raise ResourceError if the file cannot be used.
    """

    def __init__(self, path: Path | None, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._file = Database(path, SCHEMA, VERSION, durable=False)

    def put(self, tenant: str, stored: StoredResponse) -> None:
        """Stores a response; replaces one of the same id. Extends the lives of the responses before it to its own."""
        texts = orjson.dumps(stored.response), orjson.dumps(stored.items)
        now, size = self._clock(), sum(map(len, texts)) + ENTRY_BYTES
        expires = now + self._limits.ttl_s
        chain = {"tenant": tenant, "id": stored.previous, "expires": expires, "length": self._limits.chain_length}

        def work(sql: sqlite3.Connection) -> None:
            sql.execute("DELETE FROM responses WHERE expires <= ?", (now,))
            sql.execute("DELETE FROM responses WHERE tenant = ? AND id = ?", (tenant, stored.id))
            row = (tenant, stored.id, stored.previous, *texts, size, expires)
            sql.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if stored.previous is not None:
                sql.execute(RENEW, chain)
            evict(sql, "responses", "expires, rowid", self._limits.max_bytes)

        self._file.use(work)

    def get(self, tenant: str, identity: str) -> StoredResponse | None:
        """The tenant's response; None if it is not stored or has expired."""
        return self._file.use(lambda sql: self._find(sql, tenant, identity))

    def chain(self, tenant: str, identity: str) -> Chain:
        """A response and those before it, back to the first, as far as they are stored and within the limits."""

        def work(sql: sqlite3.Connection) -> Chain:
            found: list[StoredResponse] = []
            wanted: str | None = identity
            room = self._limits.chain_bytes
            while wanted is not None:
                size = self._size(sql, tenant, wanted)
                if size is None:
                    return Chain(found[::-1], missing=wanted)
                room -= size
                stored = self._find(sql, tenant, wanted)
                if stored is None or room < 0 or len(found) == self._limits.chain_length:
                    return Chain(found[::-1], cut=True)
                found.append(stored)
                wanted = stored.previous
            return Chain(found[::-1])

        return self._file.use(work)

    def delete(self, tenant: str, identity: str) -> bool:
        """Removes a response. Returns whether it was stored."""
        statement = "DELETE FROM responses WHERE tenant = ? AND id = ? AND expires > ?"
        return self._file.use(lambda sql: sql.execute(statement, (tenant, identity, self._clock())).rowcount > 0)

    def close(self) -> None:
        """Closing twice is fine."""
        self._file.close()

    def _size(self, sql: sqlite3.Connection, tenant: str, identity: str) -> int | None:
        query = "SELECT size FROM responses WHERE tenant = ? AND id = ? AND expires > ?"
        found = sql.execute(query, (tenant, identity, self._clock())).fetchone()
        return None if found is None else int(found[0])

    def _find(self, sql: sqlite3.Connection, tenant: str, identity: str) -> StoredResponse | None:
        query = "SELECT response, items FROM responses WHERE tenant = ? AND id = ? AND expires > ?"
        found = sql.execute(query, (tenant, identity, self._clock())).fetchone()
        return None if found is None else StoredResponse(*map(orjson.loads, found))
