"""OpenAI's client and /v1/files, /v1/batches, until a batch is complete."""

from __future__ import annotations

import asyncio
import io
import json
import time
from typing import Any, Final

import openai
import pytest

from tests.server.clients.conftest import TINY, async_openai
from tests.server.live import LiveServer

CHAT: Final = "/v1/chat/completions"
BATCH_S: Final = 120.0


def lines(*asked: tuple[str, Any]) -> bytes:
    """The file of a batch: each line's custom id and body."""
    told = ({"custom_id": name, "method": "POST", "url": CHAT, "body": body} for name, body in asked)
    return b"".join(json.dumps(line).encode() + b"\n" for line in told)


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": TINY, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0} | more


def uploaded(client: Any, data: bytes, name: str = "work.jsonl") -> Any:
    return client.files.create(file=(name, io.BytesIO(data)), purpose="batch")


def ended(client: Any, batch: Any) -> Any:
    until = time.monotonic() + BATCH_S
    while batch.status not in ("completed", "failed", "cancelled", "expired"):
        assert time.monotonic() < until, batch.status
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def told(client: Any, file_id: str) -> dict[str, Any]:
    answers = map(json.loads, client.files.content(file_id).text.splitlines())
    return {answer["custom_id"]: answer for answer in answers}


def test_files(client: Any) -> None:
    data = lines(("a", body("hi")))
    file = uploaded(client, data)
    assert (file.object, file.bytes, file.purpose, file.filename) == ("file", len(data), "batch", "work.jsonl")
    assert client.files.retrieve(file.id) == file
    assert file.id in [each.id for each in client.files.list(purpose="batch", limit=100)]
    assert client.files.content(file.id).read() == data
    assert client.files.delete(file.id).deleted
    for lost in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            lost(file.id)


def test_lists_of_files_have_pages(client: Any) -> None:
    made = [uploaded(client, b"{}\n", f"{number}.jsonl").id for number in range(3)]
    page = client.files.list(limit=2, order="desc")
    assert [each.id for each in page.data] == made[:0:-1]
    assert page.has_next_page()
    assert page.get_next_page().data[0].id == made[0]
    for identity in made:
        client.files.delete(identity)


def test_another_purpose_is_refused(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a.txt", b"x"), purpose="assistants")


def test_a_batch(client: Any) -> None:
    asked = [("good", body("hi")), ("again", body("hi")), ("bad", body("hi", temperature=-1))]
    file = uploaded(client, lines(*asked))
    made = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"for": "tests"}
    )
    assert (made.status, made.metadata) == ("validating", {"for": "tests"})
    batch = ended(client, made)
    assert (batch.status, batch.model) == ("completed", TINY)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    answers, failures = told(client, batch.output_file_id), told(client, batch.error_file_id)
    assert set(answers) == {"good", "again"}
    direct = client.chat.completions.create(**body("hi")).choices[0].message.content
    assert answers["good"]["response"]["body"]["choices"][0]["message"]["content"] == direct
    assert failures["bad"]["response"]["status_code"] == 400
    assert failures["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert batch.usage.output_tokens == 8
    assert made.id in [each.id for each in client.batches.list(limit=10)]


def test_a_batch_with_invalid_lines_fails_as_a_whole(client: Any) -> None:
    file = uploaded(client, lines(("same", body("a")), ("same", body("b"))))
    made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    batch = ended(client, made)
    assert batch.status == "failed"
    (mistake,) = batch.errors.data
    assert (mistake.line, mistake.code) == (2, "duplicate_custom_id")


def test_a_batch_that_is_cancelled(server: LiveServer, client: Any) -> None:
    asked = [(str(number), body("hi", max_tokens=1500, ignore_eos=True)) for number in range(40)]
    file = uploaded(client, lines(*asked))

    async def cancelled() -> str:
        async with async_openai(server) as remote:
            made = await remote.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            return str((await remote.batches.cancel(made.id)).id)

    batch = ended(client, client.batches.retrieve(asyncio.run(cancelled())))
    assert batch.status == "cancelled"
    assert batch.request_counts.completed < 40
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(
            ended(
                client,
                client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"),
            ).id
        )


def test_a_batch_needs_its_file(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="no file") as caught:
        client.batches.create(input_file_id="file-0", endpoint=CHAT, completion_window="24h")
    assert caught.value.param == "input_file_id"
