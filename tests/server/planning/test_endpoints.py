"""The planner over HTTP: its documents are those that the commands print."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any, Final

import pytest

from tests.server.live import TWOFOLD, LiveServer

FLAGS: Final = {"model": "--model", "hardware": "--hardware"}
SCENARIOS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"model": "llama-3-8b", "hardware": "h100"},
    "all": {
        "model": "llama-3-70b",
        "hardware": "h200",
        "tp": 2,
        "weights": "int4",
        "kv": "fp8",
        "input_tokens": 4000,
        "cached": 1000,
        "output_tokens": 100,
        "batch": 4,
        "chunk": 512,
        "goal": "ttft",
        "text": "code",
        "keep": 0.4,
        "shared": 0.3,
        "loaded": 500,
        "disk_gbs": 3.0,
    },
}


def printed(command: str, values: dict[str, Any]) -> Any:
    """What the command prints for these values."""
    flags = [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    found = subprocess.run([*TWOFOLD, command, *flags, "--json"], capture_output=True, check=True, timeout=180)
    return json.loads(found.stdout)


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_explanation_is_what_the_command_prints(server: LiveServer, name: str) -> None:
    values = SCENARIOS[name]
    found = server.post("/v1/twofold/explain", values)
    assert found.status_code == 200, found.text
    assert found.json() == printed("explain", values)


def test_turned_levers_are_stacked_as_by_the_command(server: LiveServer) -> None:
    values = SCENARIOS["plain"] | {"batch": 16}
    found = server.post("/v1/twofold/explain", {**values, "levers": ["weights INT4"]}).json()
    assert found == printed("explain", {**values, "lever": "weights INT4"})
    assert found["figures"]["tpot"] < found["before"]["tpot"]


def test_a_request_of_the_server_is_explained_as_it_was_measured(server: LiveServer) -> None:
    reply = server.post("/v1/completions", {"model": "tiny", "prompt": "Once upon", "max_tokens": 8})
    id = reply.headers["x-request-id"]
    record = server.get(f"/v1/twofold/requests/{id}").json()
    found = server.post("/v1/twofold/explain", {"request": id}).json()
    phases = {each["name"]: each for each in found["phases"]}
    assert phases["decode"]["actual_s"] + phases["stalls"]["actual_s"] == pytest.approx(
        record["prompts"][0]["decode_s"], rel=0.01
    )
    assert phases["decode"]["floor_s"] == pytest.approx(record["prompts"][0]["decode"].get("least_s", 0) or None)
    elsewhere = {"request": id, "model": "llama-3-8b", "hardware": "h100"}
    command = [*TWOFOLD, "explain", server.url, "--request", id, "--model", "llama-3-8b", "--hardware", "h100"]
    by_command = subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=180)
    assert server.post("/v1/twofold/explain", elsewhere).json() == json.loads(by_command.stdout)
    assert server.post("/v1/twofold/explain", {"request": "req_none"}).status_code == 404


def test_the_served_model_is_explained_on_this_machine(server: LiveServer) -> None:
    server.post("/v1/completions", {"model": "tiny", "prompt": "Once", "max_tokens": 1})
    found = server.post("/v1/twofold/explain", {"input_tokens": 64, "output_tokens": 16})
    if found.status_code == 400:  # limits of the machine are measured once, for larger models
        assert "was not measured" in found.text
        return
    assert found.json()["scenario"]["hardware"] == "this machine"


def test_a_price_is_what_the_command_prints(server: LiveServer) -> None:
    body = {"model": "claude-sonnet-4-6", "input_tokens": 10_000, "cached": 8000, "requests_per_day": 5000, "ttl": "1h"}
    found = server.post("/v1/twofold/price", {**body, "compress": 2.0, "own": {"hardware": "h100", "tp": 4}}).json()
    flags = "--input-tokens 10000 --cached 8000 --requests-per-day 5000 --ttl 1h --compress 2 --hardware h100 --tp 4"
    command = [*TWOFOLD, "price", "claude-sonnet-4-6", *flags.split(), "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=180).stdout)
    assert {**found, "at": ""} == {**told, "at": ""}


def test_a_curve_has_the_figures_of_explanations(server: LiveServer) -> None:
    machines = [{"hardware": "h100", "tp": 2}, {"hardware": "l4", "price_per_hour": 1.0}]
    sizes = {"model": "llama-3-8b", "input_tokens": 1000, "output_tokens": 200}
    found = server.post("/v1/twofold/curve", {**sizes, "machines": machines, "batches": [4, 16, 4096]}).json()
    h100, l4 = found["curves"]
    assert [each["batch"] for each in h100["points"]] == [4, 16]  # 4,096 such sequences do not fit
    told = server.post("/v1/twofold/explain", {**sizes, "hardware": "h100", "tp": 2, "batch": 16}).json()["figures"]
    last = h100["points"][-1]
    assert last["tpot_s"] == told["tpot"]
    assert last["tokens_per_s_per_device"] == told["throughput"]
    assert last["dollars_per_million"] == pytest.approx(1e6 * h100["price_per_hour"] / (3600 * told["throughput"]))
    assert l4["price_per_hour"] == 1.0
    body = {**sizes, "output_tokens": 1, "machines": machines[:1], "batches": [4]}
    assert server.post("/v1/twofold/curve", body).json()["curves"][0]["points"][0]["tpot_s"] is None


def test_a_plan_is_what_the_command_prints(server: LiveServer) -> None:
    body = {"models": ["llama-3-8b"], "hardware": ["h100"], "rate": 2.0, "tp": [1], "simulate": False}
    job = server.post("/v1/twofold/plans", body).json()
    until = time.monotonic() + 120
    while job["status"] in ("queued", "running") and time.monotonic() < until:
        time.sleep(0.02)
        job = server.get(f"/v1/twofold/plans/{job['id']}").json()
    flags = ["--model", "llama-3-8b", "--hardware", "h100", "--rate", "2", "--tp", "1", "--no-simulate", "--json"]
    told = subprocess.run([*TWOFOLD, "plan", *flags], capture_output=True, check=True, timeout=180)
    assert job["result"] == json.loads(told.stdout)
    with server.client() as client:
        assert client.delete(f"/v1/twofold/plans/{job['id']}").json()["deleted"]
        assert client.delete(f"/v1/twofold/plans/{job['id']}").status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("explain", {"hardware": "h1000", "model": "llama-3-8b"}, "hardware"),
        ("explain", {"hardware": "h100", "model": "llama-3-8b", "input_tokens": 2_000_000, "chunk": 1}, "chunk"),
        ("explain", {"hardware": "h100", "model": "llama-3-8b", "levers": ["x"]}, "levers"),
        ("explain", {"hardware": "h100", "model": "llama-3-8b", "cached": 512}, "case"),
        ("explain", {"hardware": "h100", "model": "llama-3-70b"}, "hardware"),
        ("explain", {"hardware": "h100", "model": "llama-3-8b", "weights": "int3"}, "format"),
        ("explain", {"batch": 10**9}, "batch"),
        ("curve", {"machines": []}, "machines"),
        ("price", {"model": "claude-sonnet-4-6", "own": {"hardware": "l4"}}, "own"),
        ("plans", {"models": ["a"] * 5, "hardware": ["h100"], "rate": 1}, "models"),
    ],
)
def test_bad_input_gets_one_error_that_names_the_field(
    server: LiveServer, path: str, body: dict[str, Any], param: str
) -> None:
    found = server.post(f"/v1/twofold/{path}", body)
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert error["param"] == param
    assert error["message"]
