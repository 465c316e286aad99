"""GET /v1/twofold/live of a running server: each event against /openapi.json, and what it says against records."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from tests.server.live import LiveServer

LIVE = "/v1/twofold/live"
QUANTILES = {"0.5": 0, "0.99": 1}


def chat(server: LiveServer, number: int, tokens: int = 12) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": f"{number} and so on and on"}],
        "max_tokens": tokens,
        "temperature": 1,
        "seed": number,
        "twofold": {"explain": True},
    }
    reply = server.post("/v1/chat/completions", body)
    assert reply.status_code == 200
    return dict(reply.json())


def events(stream: httpx2.Response) -> Iterator[tuple[str, Any]]:
    """The events of a stream with their data."""
    name = ""
    for line in stream.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def seen_while(server: LiveServer, requests: int, query: str = "?blocks=1", **options: Any) -> list[tuple[str, Any]]:
    """The events of a stream from before these requests to their end, and after that one of each kind."""
    found: list[tuple[str, Any]] = []
    with server.client(**options) as client, client.stream("GET", LIVE + query) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        arriving = events(stream)
        found.append(next(arriving))
        threads = [threading.Thread(target=chat, args=(server, number)) for number in range(requests)]
        for thread in threads:
            thread.start()
        after: set[str] = set()
        for name, data in arriving:
            found.append((name, data))
            ended = sum(row[1] == "." for _, data in found for row in data.get("lanes", ()))
            after |= {name} if ended >= requests else set()
            if after >= ({"tick", "lately", "blocks"} if "blocks=1" in query else {"tick", "lately"}):
                break
        for thread in threads:
            thread.join()
    return found


@pytest.fixture(scope="module")
def seen(server: LiveServer) -> list[tuple[str, Any]]:
    return seen_while(server, 6)


def test_every_event_has_the_schema_of_the_document(server: LiveServer, seen: list[tuple[str, Any]]) -> None:
    document = server.get("/openapi.json").json()
    content = document["paths"][LIVE]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    schemas = {
        each["properties"]["event"]["const"]: each["properties"]["data"]["contentSchema"] for each in content["anyOf"]
    }
    known = {"components": document["components"]}
    checks = {name: jsonschema_rs.Draft202012Validator({**schema, **known}) for name, schema in schemas.items()}
    assert {name for name, _ in seen} == {"hello", "tick", "lately", "blocks"}
    for name, data in seen:
        checks[name].validate(data)
        assert not checks[name].is_valid({**data, "more": 1})
        columns = data.get("steps", {})
        assert len({len(values) for values in columns.values()}) <= 1


def test_the_first_event_says_what_runs_where(seen: list[tuple[str, Any]]) -> None:
    name, hello = seen[0]
    assert name == "hello"
    assert (hello["schema"], hello["model"], hello["sees"]) == ("twofold.live/1", "tiny", "all")
    blocks = next(data for name, data in seen if name == "tick")["kv"]
    assert hello["engine"]["groups"][0]["blocks"] == sum(blocks[:3])


def test_lanes_tell_what_the_records_of_their_requests_say(server: LiveServer, seen: list[tuple[str, Any]]) -> None:
    lanes: dict[int, dict[str, Any]] = {}
    for _, data in seen:
        for number, kind, at, *values in data.get("lanes", ()):
            lanes.setdefault(number, {})[kind] = (at, *values)
    ended = [lane for lane in lanes.values() if "." in lane and "+" in lane]
    assert len(ended) >= 6
    for lane in ended:
        about = lane["+"][1]
        record = server.get(f"/v1/twofold/requests/{about['id']}").json()
        (prompt,) = record["prompts"]
        assert prompt["prompt_tokens"] == about["prompt"]
        assert prompt["cached_tokens"] == lane["a"][2]
        assert prompt["output_tokens"] == lane["."][2] == lane["o"][1]
        assert prompt["finish_reasons"] == [lane["."][1]]
        assert prompt["queue_s"] * 1e3 == pytest.approx(lane["a"][0] - lane["+"][0], abs=0.02)
        assert prompt["ttft_s"] * 1e3 == pytest.approx(lane["f"][0] - lane["+"][0], abs=0.02)


def test_steps_are_told_once_and_their_rows_are_those_of_the_metrics(server: LiveServer) -> None:
    def rows() -> float:
        page = server.get("/metrics").text
        return sum(float(value) for value in re.findall(r"^twofold:rows_total\{[^}]*\} (\S+)", page, re.M))

    seen_while(server, 2, "")
    first = seen_while(server, 3, "")
    steps = [data["steps"] for _, data in first if "steps" in data]
    numbers = [number for columns in steps for number in columns["n"]]
    assert numbers == sorted(set(numbers))
    with server.client() as client, client.stream("GET", LIVE) as stream:
        columns = next(events(stream))[1]["steps"]
    assert sum(columns["decode"]) + sum(columns["prefill"]) <= rows()


def test_percentiles_are_those_of_the_metrics_page(server: LiveServer) -> None:
    chat(server, 1)
    with server.client() as client, client.stream("GET", LIVE) as stream:
        lately = next(data for name, data in events(stream) if name == "lately")
    page = server.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
    values = re.findall(r"^twofold:recent_latency_seconds\{(.*)\} (\S+)$", page, re.M)
    compared = 0
    for labels, value in values:
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if label["quantile"] in QUANTILES and label["measure"] in lately["all"]:
            assert lately["all"][label["measure"]][QUANTILES[label["quantile"]]] == pytest.approx(float(value))
            compared += 1
    assert compared >= 6


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("?hz=0", 400, "hz"),
        ("?hz=11", 400, "hz"),
        ("?hz=x", 400, "hz"),
        ("?blocks=2", 400, "blocks"),
        ("?model=none", 404, None),
    ],
)
def test_wrong_queries_are_refused(server: LiveServer, query: str, status: int, param: str | None) -> None:
    reply = server.get(LIVE + query)
    assert reply.status_code == status
    assert reply.json()["error"]["param"] == param


def test_one_caller_holds_at_most_eight_streams_and_a_closed_one_makes_room(server: LiveServer) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(server.client())
        streams = [stack.enter_context(client.stream("GET", LIVE)) for _ in range(8)]
        arriving = [events(stream) for stream in streams]  # a stream whose iterator is collected is closed
        assert [next(each)[0] for each in arriving] == ["hello"] * 8
        with client.stream("GET", LIVE) as refused:
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
        streams[0].close()
        statuses = set()
        while 200 not in statuses:
            with client.stream("GET", LIVE) as stream:
                statuses.add(stream.status_code)
        assert statuses <= {200, 503}


def test_head_ends_at_once(server: LiveServer) -> None:
    with server.client() as client:
        reply = client.head(LIVE)
    assert (reply.status_code, reply.content) == (200, b"")
