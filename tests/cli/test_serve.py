"""``twofold serve`` and ``twofold keys``: the configuration from flags, and errors before a model is loaded."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from twofold.cli.main import main
from twofold.cli.serve import ENGINE, ServedEngineOptions, ServeOptions
from twofold.core.errors import ParameterError
from twofold.fleet.scale import ScaleRange
from twofold.host.machine import read_cpu
from twofold.observe.metrics.requests import DEFAULT_OBJECTIVES, Objective
from twofold.server.config import ServerConfig


def config(options: ServeOptions, *models: str, token_budget: str = "live") -> ServerConfig:
    engine = ENGINE.engine_keywords() | {"token_budget": token_budget}
    return options.config(models or ("smollm2-135m",), engine)


def test_flags_become_a_configuration(tmp_path: Path) -> None:
    sheet = tmp_path / "prices.toml"
    sheet.write_text("[default]\ninput = 1\noutput = 2\n")
    tiers = tmp_path / "tiers.toml"
    tiers.write_text("[flex]\ntpot_target_s = 2\n")
    made = config(
        ServeOptions(
            port=1234,
            memory_budget=1.5,
            max_body_mib=0.5,
            price_sheet=sheet,
            tiers=tiers,
            slo=["priority:ttft=0.5,tpot=0.05", "e2e=9"],
            response_cache=2,
            response_cache_seeded=True,
            data_folder=tmp_path,
        ),
        "smollm2-135m",
        "small=gemma3-270m",
    )
    assert [offer.names for offer in made.offers] == [("smollm2-135m",), ("small",)]
    assert made.registry.memory_budget == 3 << 29
    assert made.body.bytes == 1 << 19
    assert made.prices is not None
    assert made.tiers.by_name["flex"].tpot_target_s == 2
    assert made.objectives["priority"] == Objective(ttft_s=0.5, tpot_s=0.05)
    assert made.objectives["default"] == Objective(e2e_s=9)
    assert made.objectives["flex"] == DEFAULT_OBJECTIVES["flex"]
    assert made.response_cache is not None
    assert (made.response_cache.max_bytes, made.response_cache.seeded) == (2 << 20, True)
    assert made.url(1234) == "http://127.0.0.1:1234"


def test_autoscaling_has_bounds_and_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twofold.host.machine.read_cpu", lambda: replace(read_cpu(), usable_cores=4))
    made = config(ServeOptions(autoscale="2:4", router="least-loaded")).registry
    assert (made.autoscale, made.replicas, made.max_replicas) == (ScaleRange(2, 4, 0.9), 2, 4)
    assert config(ServeOptions(autoscale="1:2", attainment=0.95)).registry.autoscale == ScaleRange(1, 2, 0.95)


def test_autoscaling_on_a_cluster_does_not_depend_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    options = ServeOptions(ray="auto", listen_nodes="127.0.0.1:0", autoscale="2:64")
    made = options.config(("smollm2-135m",), {"token_budget": "live", "threads": 8}).registry
    assert made.ray is not None
    assert (made.ray.replicas, made.replicas, made.max_replicas, made.autoscale) == (2, 0, 0, ScaleRange(2, 64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ServeOptions(autoscale="4"), "MIN:MAX"),
        (ServeOptions(autoscale="1:2", attainment=2.0), "attainment"),
        (ServeOptions(attainment=0.9), "--autoscale, which is not given"),
        (ServeOptions(autoscale="1:2", replicas=2), "chooses the number"),
        (ServeOptions(autoscale="1:2", listen_nodes="127.0.0.1:0"), "cannot start nodes"),
        (ServeOptions(autoscale="1:5"), "5 replicas with 1 thread each need more than the 4 cores"),
    ],
)
def test_autoscaling_that_cannot_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: ServeOptions, message: str
) -> None:
    monkeypatch.setattr("twofold.host.machine.read_cpu", lambda: replace(read_cpu(), usable_cores=4))
    with pytest.raises(ParameterError, match=message):
        config(options)


def test_sizes_and_durations_have_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ServerConfig] = []

    def keep(config: ServerConfig, **_options: object) -> None:
        made.append(config)
        raise ParameterError("enough", param="model")

    monkeypatch.setattr("twofold.server.server.Server", keep)
    flags = {
        "--memory-budget": "512M",
        "--max-body-mib": "256K",
        "--response-cache": "1G",
        "--response-cache-ttl": "2h",
        "--shutdown-timeout": "5m",
        "--request-timeout": "90s",
        "--slo": "ttft=500ms",
        "--data-folder": str(tmp_path),
    }
    assert main(["serve", *(part for flag in flags.items() for part in flag)]) == 2
    (config,) = made
    assert (config.registry.memory_budget, config.body.bytes) == (512 << 20, 256 << 10)
    assert config.response_cache is not None
    assert (config.response_cache.max_bytes, config.response_cache.ttl_s) == (1 << 30, 7200)
    assert (config.shutdown_s, config.objectives["default"].ttft_s) == (300, 0.5)


def test_a_fixed_budget_keeps_no_targets(tmp_path: Path) -> None:
    made = config(ServeOptions(data_folder=tmp_path), token_budget="fixed")
    assert all(tier.tpot_target_s is None for tier in made.tiers.by_name.values())


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (ServeOptions(slo=["fast"]), "slo"),
        (ServeOptions(slo=["nobody:ttft=1"]), "slo"),
        (ServeOptions(slo=["ttft=soon"]), "slo"),
        (ServeOptions(memory_budget=0), "memory_budget"),
        (ServeOptions(max_body_mib=float("nan")), "max_body_mib"),
        (ServeOptions(shutdown_timeout=-1), "shutdown_timeout"),
        (ServeOptions(served_model_name=["a"]), "served_model_name"),
    ],
    ids=str,
)
def test_impossible_flags_are_named(options: ServeOptions, param: str) -> None:
    with pytest.raises(ParameterError) as caught:
        config(options, "smollm2-135m", "gemma3-270m")
    assert caught.value.param == param


def test_a_chat_template_is_for_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2-135m", "gemma3-270m", "--chat-template", "gemma"]) == 2
    assert "--chat-template applies to a single model, not to 2" in capsys.readouterr().err
    made = tmp_path / "own.jinja"
    made.write_text("{{ messages }}")
    assert ServedEngineOptions(chat_template=str(made)).engine_keywords()["chat_template"] == "{{ messages }}"


def test_a_key_is_required_off_loopback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["serve", "--host", "0.0.0.0", "--data-folder", str(tmp_path)])
    assert code == 2
    assert "requires an API key" in capsys.readouterr().err


def test_a_port_in_use_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = main(["serve", "x=/nowhere.gguf", "--port", str(port), "--data-folder", str(tmp_path)])
    assert code == 2
    assert f"Port {port} is in use" in capsys.readouterr().err


def test_a_first_model_that_is_not_there_ends_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["serve", "x=/nowhere.gguf", "--port", "0", "--data-folder", str(tmp_path)])
    assert code == 3
    assert "nowhere.gguf" in capsys.readouterr().err


def test_keys_are_made_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "keys.toml")]
    assert main(["keys", "add", "laptop", *file, "--tier", "flex", "--concurrent", "3", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["key"] not in (tmp_path / "keys.toml").read_text()
    assert main(["keys", "ls", *file, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["id"], listed["tiers"], listed["concurrent"]) == ("laptop", ["flex"], 3)
    assert main(["keys", "add", "scrape", *file, "--metrics", "all", "--bytes-per-minute", "1000000"]) == 0
    capsys.readouterr()
    assert main(["keys", "ls", *file]) == 0
    table = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in table]
    assert cells == [
        ["ID", "TENANT", "TIERS", "EXPIRES", "QUOTAS", "MORE"],
        ["laptop", "laptop", "flex", "never", "3 at a time"],
        ["scrape", "scrape", "default, flex, priority, batch", "never", "1,000,000 bytes/min", "all metrics"],
    ]
    assert main(["keys", "add", "laptop", *file]) == 2
    assert main(["keys", "add", *file]) == 2
    assert main(["keys", "rm", "laptp", *file]) == 2
    assert "Did you mean 'laptop'?" in capsys.readouterr().err
    for name in ("laptop", "scrape"):
        assert main(["keys", "rm", name, *file]) == 0
    assert main(["keys", "ls", *file]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--replicas", "2", "--router", "predictd"), 'Did you mean "predicted"?'),
        (("--replicas", "2", "--router", "x"), 'Choose from: "predicted", "round-robin", "least-loaded"'),
        (("--router", "predicted"), "One replica gets all requests, so it needs no --router."),
        (("--router", "round-robin", "--replicas", "65"), "replicas must be from 1 to 64."),
    ],
)
def test_a_router_that_cannot_be_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    assert main(["serve", "smollm2-135m", *flags, "--data-folder", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("error:") == 1


def test_nodes_need_a_router_too(tmp_path: Path) -> None:
    made = config(ServeOptions(router="round-robin", listen_nodes="127.0.0.1:0", data_folder=tmp_path))
    assert (made.registry.router, made.registry.replicas) == ("round-robin", 1)
