"""Stored responses: continued, returned again, listed, deleted, and hidden from other tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from msgspec import structs
from openai.types.responses import Response, ResponseItemList

from tests.api.completions import CALL, data_of
from tests.api.responses.conftest import HEAD, WEATHER, SampleCompletion, facts, read
from twofold.api.base import ModelFacts
from twofold.api.openai.responses.items import CallItem
from twofold.api.openai.responses.request import InputTokensRequest
from twofold.core.errors import ConflictError, NotFoundError, ParameterError
from twofold.server.responses import ResponseService, StoreLimits

__all__ = ["facts"]
T = TypeVar("T")


def run(work: Callable[[ResponseService], Awaitable[T]], **limits: Any) -> T:
    """Does work with an endpoint that keeps responses in memory."""

    async def whole() -> T:
        endpoint = await ResponseService.open(None, StoreLimits(**limits))
        try:
            return await work(endpoint)
        finally:
            await endpoint.close()

    return asyncio.run(whole())


async def told(endpoint: ResponseService, facts: ModelFacts, number: int, text: str, **fields: Any) -> dict[str, Any]:
    """The reply to a request that was answered with this text, kept for tenant a."""
    head = replace(HEAD, id=f"r{number}")
    request = await endpoint.known("a", read(tools=[WEATHER], **fields))
    reply = request.reply(head, [SampleCompletion(facts, text, logprobs="include" in fields).output], facts)
    await endpoint.keep("a", request, head, structs.replace(reply, twofold="told once"))
    data: dict[str, Any] = data_of(reply)
    return data


def test_a_conversation_is_continued(facts: ModelFacts) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, f"<think>hm</think>{CALL}", input="Ulm?", instructions="be brief")
        output = {"type": "function_call_output", "call_id": "call_r1_1", "output": "rain"}
        await told(endpoint, facts, 2, "Rain.", input=[output], previous_response_id="resp_r1")
        request = await endpoint.known("a", read(input="Thanks", previous_response_id="resp_r2"))
        messages = request.chat().messages
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
        assert messages[1]["reasoning_content"] == "hm"
        count = await endpoint.known("a", InputTokensRequest.read({"previous_response_id": "resp_r2"}))
        assert count.count(facts).input_tokens > 10

    run(work)


def test_a_stored_response_is_returned_unchanged(facts: ModelFacts) -> None:
    async def work(endpoint: ResponseService) -> None:
        reply = await told(endpoint, facts, 1, "<think>hm</think>yes")
        again = data_of(await endpoint.get("a", "resp_r1", [("stream", "false")]))
        assert again == reply
        Response.model_validate(again, strict=True)
        sealed = data_of(await endpoint.get("a", "resp_r1", [("include[]", "reasoning.encrypted_content")]))
        assert sealed["output"][0]["encrypted_content"].startswith("twofold1:")
        with pytest.raises(ParameterError, match="made without log-probabilities"):
            data_of(await endpoint.get("a", "resp_r1", [("include", "message.output_text.logprobs")]))
        await told(endpoint, facts, 2, "yes", include=["message.output_text.logprobs"])
        assert data_of(await endpoint.get("a", "resp_r2", [("include", "message.output_text.logprobs")]))["output"]

    run(work)


@pytest.mark.parametrize("tenant", ["b", ""])
def test_another_tenant_finds_no_response(facts: ModelFacts, tenant: str) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, CALL)
        reference = [{"type": "item_reference", "id": "fc_r1_0"}]
        for attempt in (
            endpoint.get(tenant, "resp_r1", []),
            endpoint.delete(tenant, "resp_r1"),
            endpoint.input_items(tenant, "resp_r1", []),
            endpoint.cancel(tenant, "resp_r1"),
            endpoint.known(tenant, read(previous_response_id="resp_r1")),
            endpoint.known(tenant, read(input=reference)),
        ):
            with pytest.raises(NotFoundError, match=r"^There is no (response 'resp_r1'|item 'fc_r1_0')\.$"):
                await attempt
        (call,) = (await endpoint.known("a", read(input=reference))).resolved
        assert isinstance(call, CallItem)
        assert call.name == "weather"

    run(work)


def test_responses_with_store_false_are_not_stored(facts: ModelFacts) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, "yes", store=False)
        with pytest.raises(NotFoundError, match="There is no response 'resp_r1'"):
            data_of(await endpoint.get("a", "resp_r1", []))

    run(work)


def test_a_conversation_with_a_deleted_response_cannot_be_continued(facts: ModelFacts) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, "yes")
        await told(endpoint, facts, 2, "no", previous_response_id="resp_r1")
        assert (await endpoint.delete("a", "resp_r1")).id == "resp_r1"
        with pytest.raises(NotFoundError, match="incomplete: 'resp_r1' was deleted"):
            await endpoint.known("a", read(previous_response_id="resp_r2"))
        items = data_of(await endpoint.input_items("a", "resp_r2", []))
        assert [item["id"] for item in items["data"]] == ["msg_r2_i0"]

    run(work)


def test_a_conversation_can_be_too_long(facts: ModelFacts) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, "yes")
        await told(endpoint, facts, 2, "no", previous_response_id="resp_r1")
        with pytest.raises(ParameterError, match="too long to be continued"):
            await told(endpoint, facts, 3, "no", previous_response_id="resp_r2")

    run(work, chain_length=1)


def test_references_may_point_anywhere(facts: ModelFacts) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, f"Sure.{CALL}", input="Ulm?")
        items = [{"id": "msg_r1_i0"}, {"id": "msg_r1_0"}, {"id": "fc_r1_1"}]
        output = {"type": "function_call_output", "call_id": "call_r1_1", "output": "rain"}
        request = await endpoint.known("a", read(input=[*items, output]))
        assert [message["role"] for message in request.chat().messages] == ["user", "assistant", "tool"]
        for wrong in ("fc_r1_7", "fc_zz_0", "nonsense", "fc_"):
            with pytest.raises(NotFoundError, match="There is no item"):
                await endpoint.known("a", read(input=[{"id": wrong}]))
        with pytest.raises(ParameterError, match="more than 256 responses"):
            await endpoint.known("a", read(input=[{"id": f"fc_{number}_0"} for number in range(300)]))

    run(work)


def test_items_come_page_by_page(facts: ModelFacts) -> None:
    async def work(endpoint: ResponseService) -> None:
        parts = [{"type": "input_text", "text": "a"}]
        await told(endpoint, facts, 1, f"<think>hm</think>Sure.{CALL}", input=[{"role": "developer", "content": parts}])
        output = {"type": "function_call_output", "call_id": "call_r1_2", "output": "rain"}
        await told(
            endpoint,
            facts,
            2,
            "Rain.",
            input=[output, {"role": "user", "content": "?"}],
            previous_response_id="resp_r1",
        )
        whole = data_of(await endpoint.input_items("a", "resp_r2", [("order", "asc")]))
        ResponseItemList.model_validate(whole, strict=True)
        ids = [item["id"] for item in whole["data"]]
        assert ids == ["msg_r1_i0", "rs_r1_0", "msg_r1_1", "fc_r1_2", "fco_r2_i0", "msg_r2_i1"]
        assert (whole["first_id"], whole["last_id"], whole["has_more"]) == (ids[0], ids[-1], False)
        for limit, more in ((5, True), (6, False)):
            assert data_of(await endpoint.input_items("a", "resp_r2", [("limit", str(limit))]))["has_more"] is more
        found: list[str] = []
        after: list[tuple[str, str]] = []
        while True:
            page = data_of(await endpoint.input_items("a", "resp_r2", [("limit", "4"), *after]))
            found += [item["id"] for item in page["data"]]
            after = [("after", page["last_id"])]
            if not page["has_more"]:
                break
        assert found == ids[::-1]
        empty = data_of(await endpoint.input_items("a", "resp_r2", [("after", ids[0])]))
        assert (empty["data"], empty["has_more"]) == ([], False)

    run(work)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ([("limit", "0")], "limit"),
        ([("limit", "101")], "limit"),
        ([("limit", "x")], "limit"),
        ([("limit", "5"), ("limit", "6")], "limit"),
        ([("order", "up")], "order"),
        ([("after", "msg_none")], "after"),
        ([("befor", "x")], "befor"),
        ([("include", "x")], "include[0]"),
    ],
    ids=str,
)
def test_impossible_pages(facts: ModelFacts, query: list[tuple[str, str]], param: str) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, "yes")
        with pytest.raises(ParameterError) as caught:
            await endpoint.input_items("a", "resp_r1", query)
        assert caught.value.param == param

    run(work)


@pytest.mark.parametrize(
    "query", [[("stream", "true")], [("starting_after", "5")], [("include_obfuscation", "true")], [("limit", "5")]]
)
def test_impossible_queries_of_a_stored_response(facts: ModelFacts, query: list[tuple[str, str]]) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, "yes")
        with pytest.raises(ParameterError) as caught:
            await endpoint.get("a", "resp_r1", query)
        assert caught.value.param == query[0][0]

    run(work)


def test_no_response_can_be_cancelled(facts: ModelFacts) -> None:
    async def work(endpoint: ResponseService) -> None:
        await told(endpoint, facts, 1, "yes")
        with pytest.raises(ConflictError, match="Only background responses"):
            await endpoint.cancel("a", "resp_r1")

    run(work)
