"""What /v1/responses does beside generating: history for new responses, and kept ones told, listed and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, Self, TypeVar

from twofold.api.base import ReplyHead
from twofold.api.fields import FieldError
from twofold.api.openai.responses.items import Item, owner_of, sealed
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.api.openai.responses.settings import LOGPROBS, SEALED_REASONING
from twofold.core.errors import ConflictError, NotFoundError, quoted
from twofold.server.responses.query import ItemsQuery, read_include
from twofold.server.responses.store import ResponseStore
from twofold.server.responses.table import Chain, KeptResponse

MOST_OWNERS: Final = 256
"""How many responses the item references of one request may point to."""


class Continued(Protocol):
    """A request that may go on from kept responses."""

    @property
    def previous(self) -> str | None: ...

    @property
    def references(self) -> Sequence[str]: ...

    def known(self, history: Sequence[Item], found: Mapping[str, Item]) -> Self: ...


R = TypeVar("R", bound=Continued)


class ResponsesEndpoint:
    """The handlers. Ids of other tenants, and of what was deleted or is too old, are a NotFoundError."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def known(self, tenant: str, request: R) -> R:
        """The request with the conversation that it goes on from, and with the items that it refers to.

        Raises NotFoundError where something of it is not kept, FieldError where it is too long.
        """
        if request.previous is None and not request.references:
            return request
        history: list[Item] = []
        if request.previous is not None:
            history = _whole(await self._store.chain(tenant, request.previous), request.previous)
        return request.known(history, await self._items(tenant, request.references, history))

    async def keep(self, tenant: str, request: ResponsesRequest, head: ReplyHead, response: dict[str, Any]) -> None:
        """Keeps a reply, where the request asks for it; to be done before its end is told, for the next request may
        follow at once. What was told under ``twofold`` is not kept."""
        if request.store:
            told = {name: value for name, value in response.items() if name != "twofold"}
            await self._store.put(tenant, KeptResponse(told, request.new_items(head)))

    async def get(self, tenant: str, identity: str, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """A response as it was told."""
        include = read_include(query)
        kept = await self._find(tenant, identity)
        return {**kept.response, "output": [_shown(item, include) for item in kept.output]}

    async def delete(self, tenant: str, identity: str) -> dict[str, Any]:
        """Forgets a response. Those that went on from it cannot be gone on from any more."""
        if not await self._store.delete(tenant, identity):
            raise _absent(identity)
        return {"id": identity, "object": "response", "deleted": True}

    async def cancel(self, tenant: str, identity: str) -> NoReturn:
        """Raises ConflictError: only responses made in the background can be cancelled, and there are none."""
        await self._find(tenant, identity)
        raise ConflictError(
            "Only a response that is made in the background can be cancelled.",
            hint="To stop a stream, close its connection.",
        )

    async def input_items(self, tenant: str, identity: str, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """A page of the items that a response was made from, those of the conversation before it included."""
        asked = ItemsQuery.read(query)
        await self._find(tenant, identity)
        responses = (await self._store.chain(tenant, identity)).responses
        earlier = [item for kept in responses[:-1] for item in (*kept.items, *kept.output)]
        page, more = asked.page([*earlier, *responses[-1].items] if responses else [])
        data = [_shown(item, asked.include) for item in page]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": "", "last_id": ""}
        return {"object": "list", "data": data, **ends, "has_more": more}

    async def close(self) -> None:
        await self._store.close()

    async def _find(self, tenant: str, identity: str) -> KeptResponse:
        kept = await self._store.get(tenant, identity)
        if kept is None:
            raise _absent(identity)
        return kept

    async def _items(self, tenant: str, wanted: Sequence[str], history: Sequence[Item]) -> dict[str, Item]:
        """The items of these ids: from the history, or from the responses that their ids tell."""
        known = {item["id"]: item for item in history}
        owners = {owner_of(identity) for identity in wanted if identity not in known} - {None}
        if len(owners) > MOST_OWNERS:
            raise FieldError(f"input refers to items of more than {MOST_OWNERS} responses.", param="input")
        for owner in owners:
            kept = await self._store.get(tenant, str(owner))
            known |= {item["id"]: item for item in (*kept.items, *kept.output)} if kept else {}
        missing = next((identity for identity in wanted if identity not in known), None)
        if missing is not None:
            raise NotFoundError(
                f"There is no item {quoted(missing)}.",
                hint="Items are stored only with responses that set store to true; otherwise send them in full.",
            )
        return {identity: known[identity] for identity in wanted}


def _whole(chain: Chain, identity: str) -> list[Item]:
    """All items of a conversation, oldest first."""
    if chain.cut:
        raise FieldError(
            f"The conversation behind {quoted(identity)} is too long to be continued.",
            param="previous_response_id",
            hint="Begin a new one, with the items that matter.",
        )
    if chain.missing == identity:
        raise _absent(identity)
    if chain.missing is not None:
        raise NotFoundError(
            f"The conversation behind {quoted(identity)} is not whole: "
            f"{quoted(chain.missing)} was deleted, or is too old.",
            hint="Send the items themselves.",
        )
    return [item for kept in chain.responses for item in (*kept.items, *kept.output)]


def _shown(item: Item, include: frozenset[str]) -> Item:
    if item["type"] == "reasoning" and SEALED_REASONING in include:
        return sealed(item)
    if LOGPROBS in include and item["type"] == "message" and any(map(_unscored, item["content"])):
        raise FieldError(
            f"include {LOGPROBS!r} is not possible: the response was made without log-probabilities.", param="include"
        )
    return item


def _unscored(part: Item) -> bool:
    return part["type"] == "output_text" and part["text"] != "" and not part["logprobs"]


def _absent(identity: str) -> NotFoundError:
    return NotFoundError(
        f"There is no response {quoted(identity)}.",
        hint="It was deleted, has expired, or was created with store false.",
    )
