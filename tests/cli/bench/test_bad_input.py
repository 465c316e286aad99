"""Errors are one sentence with a hint, and no measurement is lost."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.bench.client.support import each, serving, whole
from tests.bench.client.test_exchange import certificate
from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script
from tests.cli.bench.conftest import Bench
from tests.cli.conftest import Command, Result

NETWORK, USAGE = 5, 2


def says(result: Result, code: int, *words: str) -> None:
    """Checks the exit code, and that there is only an error message with these words."""
    assert result.code == code, result.err
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err, result.err


def asked(twofold: Command, url: str, *arguments: object) -> Result:
    return twofold("bench", "serve", "--url", url, "--rate", 10, "--requests", 2, "--quiet", *arguments)


def test_no_server_listens(twofold: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    says(asked(twofold, f"http://127.0.0.1:{port}"), NETWORK, "refused the connection", "Is it running")


def test_no_such_host(twofold: Command) -> None:
    says(asked(twofold, "http://nobody.invalid"), NETWORK, "nobody.invalid", "Check the URL")


@pytest.mark.parametrize("url", ["ftp://host", "http://key@host", "http://host/v1/chat/completions", "http://"])
def test_no_url_of_a_server(twofold: Command, url: str) -> None:
    says(asked(twofold, url), USAGE, "URL")


def test_a_model_that_is_not_there(bench: Bench) -> None:
    says(bench("--rate", 10, "--requests", 2, "--model", "stup"), USAGE, "no model 'stup'", "Did you mean stub?")


def test_a_key_is_required(bench: Bench, stub: LiveStub) -> None:
    stub.rules(key="sk-right")
    says(bench("--rate", 10, "--requests", 2), USAGE, "The server requires an API key", "--api-key")
    says(bench("--rate", 10, "--requests", 2, "--api-key", "sk-wrong"), USAGE, "The server requires an API key")
    assert bench("--rate", 10, "--requests", 2, "--api-key", "sk-right").code == 0


def test_no_endpoint_of_that_name(twofold: Command) -> None:
    models = whole(200, b'{"data": [{"id": "m"}]}')
    with serving(each(models, whole(404, b"{}"))) as authority:
        result = asked(twofold, f"http://{authority}", "--tokenizer", "nowhere.json")
    assert result.code != 0
    assert "nowhere.json" in result.err


def test_more_tokens_than_the_context(bench: Bench) -> None:
    result = bench("--rate", 10, "--requests", 2, "--input-tokens", 40_000)
    says(result, USAGE, "40000", "exceed", "32768", "--input-tokens")


def test_a_server_that_refuses_the_first_request(bench: Bench) -> None:
    says(bench("--rate", 10, "--requests", 2, script=Script(status=503)), 4, "refused the first request")


def test_a_server_that_fails_the_first_request(bench: Bench) -> None:
    says(bench("--rate", 10, "--requests", 2, script=Script(status=500)), NETWORK, "failed with status 500")


def test_tls_errors(twofold: Command, tmp_path: Path) -> None:
    _, context = certificate(tmp_path, "IP:127.0.0.1")
    with serving(each(), context) as authority:
        says(asked(twofold, f"https://{authority}", "--ca-file", tmp_path / "none.pem"), USAGE, "none.pem")
        says(asked(twofold, f"https://{authority}"), NETWORK, "certificate that is not accepted", "--ca-file")
        says(asked(twofold, f"http://{authority}"), NETWORK, "http")
    with serving(lambda talk, _number: talk.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as authority:
        says(asked(twofold, f"https://{authority}"), NETWORK, "does not speak TLS", "http://")


HOLES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,12,3\n2023-11-16 18:00:01.0,,3\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 9, "output_length": 4, "hash_ids": [0]}\n{"timestamp": 1}\n',
    "own.jsonl": '{"at_s": 0.0, "input_tokens": 9, "output_tokens": 4}\n{"at_s": NaN}\n',
}


@pytest.mark.parametrize("name", HOLES)
def test_a_trace_with_an_invalid_line(bench: Bench, tmp_path: Path, name: str) -> None:
    """The error names the file, the line and a remedy. ``--skip-bad`` skips and counts the line."""
    path = tmp_path / name
    path.write_text(HOLES[name])
    last = len(HOLES[name].splitlines())
    says(bench("--trace", path), USAGE, f"{name}:{last}:", "--skip-bad")
    (run,) = bench.found("--trace", path, "--skip-bad")["runs"]
    assert run["summary"]["requests"]["sent"] == 1
    assert run["load"]["skipped_lines"] == 1
    assert f"{name}:{last}:" in run["load"]["first_skipped"]


def test_a_trace_that_is_missing_is_a_usage_error(bench: Bench, tmp_path: Path) -> None:
    says(bench("--trace", tmp_path / "missing.csv"), USAGE, "missing.csv cannot be read: No such file")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("needs a rate or a concurrency", "--rate 2")),
        (("--rate", -1), ("rate",)),
        (("--concurrency", 0), ("concurrency",)),
        (("--concurrency", 2, "--arrivals", "constant"), ("An arrival process needs a rate",)),
        (("--rate", 2, "--ramp", 3), ("ramp",)),
        (("--rate", 2, "--input-tokens", "many"), ("many",)),
        (("--rate", 2, "--slo", "ttfd=1s"), ("ttfd", "ttft")),
        (("--rate", 2, "--slo", "ttft=1"), ("is not a time", "500ms")),
        (("--rate", 2, "--warmup", -1), ("warmup",)),
        (("--rate", 2, "--prefix-groups", 3), ("shared-prefix",)),
        (("--rates", "1,2", "--concurrencies", "1,2"), ("exclude each other",)),
        (("--concurrencies", "1.5"), ("whole number",)),
        (("--rate", 2, "--header", "nothing"), ("NAME:VALUE",)),
        (("--rate", 2, "--extra-body", "{"), ("extra-body is not valid JSON",)),
        (("--rate", 2, "--extra-body", "[]"), ("JSON object",)),
        (("--rate", 2, "-o", "found.txt"), (".json, .csv, .html or .jsonl",)),
        (("--rate", 2, "-o", "/nowhere/found.json"), ("no folder", "/nowhere")),
        (("--trace", "gone.csv"), ("gone.csv",)),
        (("--trace", "gone.csv", "--turns", 2), ("--turns", "a --trace replaces it")),
        (("--rates", "1,2", "--requests", 9), ("--requests",)),
        (("--concurrencies", "1,2", "--rate", 2), ("--rate ",)),
        (("--slo", "ttft=1s", "--requests", 9), ("--requests", "search")),
        (("--rate", 2, "--attainment", 0.5), ("--attainment", "single load")),
        (("--rate", 2, "--time-scale", 2), ("--time-scale", "--trace")),
        (("--rate", 2, "--think-time", 2), ("--think-time", "--turns")),
        (("--trace", "/etc/hostname"), ("trace",)),
        (("--rat", 2), ("--rat",)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_invalid_flags(bench: Bench, arguments: tuple[object, ...], words: tuple[str, ...]) -> None:
    result = bench(*arguments)
    assert result.code in (USAGE, 4), result.err
    says(result, result.code, *words)


def test_later_refusals_are_a_result(bench: Bench, stub: LiveStub, tmp_path: Path) -> None:
    """Refused requests are part of the figures, not an error of the command."""
    trace = tmp_path / "own.jsonl"
    refused = Script(status=429, body='{"error": {"message": "Slow down."}}')
    lines = [
        {"at_s": 0.0, "input_tokens": 12, "output_tokens": 2, "fields": script.fields}
        for script in (Script(), refused, refused)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = bench.summary("--trace", trace, "--extra-body", "{}")
    assert summary["requests"]["outcomes"]["refused"] == 2
    assert summary["requests"]["statuses"] == {"429": 2, "200": 1}
    assert summary["requests"]["errors"][0]["requests"] == 2
    assert summary["latency"]["ttft_s"]["failed"] == 2
    assert summary["latency"]["ttft_s"]["p99"] is None
    assert stub.truths()


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--backend", "reference"), ("--kv-store", "somewhere"), ("--speculative-config", '{"method": "off"}')],
)
def test_options_that_no_measured_step_uses_are_refused(twofold: Command, flag: str, value: str) -> None:
    says(twofold("bench", "engine", flag, value), USAGE, flag.strip("-"), "bench serve")
