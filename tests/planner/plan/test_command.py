"""``twofold plan`` and ``twofold plan fit``, called as the command line calls them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.planner.plan.support import configuration
from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.cpu.machine import MachineProbe
from twofold.cli.bench.options import TraceOptions
from twofold.cli.main import app
from twofold.cli.plan import ChoiceOptions, TrafficOptions, fit, plan, read_slo
from twofold.core.errors import ModelNotFoundError, ParameterError
from twofold.core.limits import MachineLimits, ReadSpeed
from twofold.core.values import FP8
from twofold.planner.plan.commands import obstacle
from twofold.planner.predict.speculation import ACCEPTANCE

FEW = ChoiceOptions(tp="1", weights="stored", kv="bf16", chunks="2048", split=False)
LIMITS = MachineLimits(
    "some processor", "any", 1, (ReadSpeed(32 << 20, 2e10),), 1e11, 5e10, "2026-01-01T00:00:00+00:00"
)
SOME = TrafficOptions(rate=5, input_tokens="lognormal:800,0.5", output_tokens="100-300")


@pytest.mark.parametrize(
    ("name", "ttft", "tpot"),
    [
        ("llama2-70b", 2.0, 0.2),
        ("llama2-70b-interactive", 0.45, 0.04),
        ("llama3.1-405b", 6.0, 0.175),
        ("llama3.1-8b", 2.0, 0.1),
    ],
)
def test_scenarios_of_mlperf(name: str, ttft: float, tpot: float) -> None:
    """MLPerf Inference, server scenario: P99 of TTFT and TPOT."""
    slo = read_slo(f"mlperf:{name}", None)
    assert (slo.ttft, slo.tpot, slo.e2e, slo.attainment) == (ttft, tpot, None, 0.99)
    assert read_slo(f"mlperf:{name}", 0.9).attainment == 0.9


def test_limits_as_a_text() -> None:
    slo = read_slo("ttft=500ms,tpot=50ms,e2e=10s", None)
    assert (slo.ttft, slo.tpot, slo.e2e, slo.attainment) == (0.5, 0.05, 10.0, 0.9)
    assert str(slo) == "TTFT ≤ 500 ms, TPOT ≤ 50 ms, E2E ≤ 10 s, for 90% of requests"


@pytest.mark.parametrize("text", ["tpot", "itl=10ms", "mlperf:llama2-70b-interactiv", "tpot=5", "speed=1s"])
def test_texts_that_are_no_limits(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        read_slo(text, None)
    assert caught.value.param == "slo"
    assert caught.value.hint


def test_the_lines_of_a_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    plan(model="llama-3-8b", traffic=SOME, choice=FEW, svg=picture)
    out = capsys.readouterr().out
    assert "1 configuration tried" in out
    assert "1×h100" in out
    assert "dominated by" in out
    assert "Mean TPOT against cost" in out
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_speculation_is_chosen_for_texts_that_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    """Its answers are the same bits, so the class of text alone allows it; and its plans are simulated."""
    found = {}
    for text in (None, "prose", "edit"):
        choice = ChoiceOptions(tp="1", weights="stored", kv="bf16", chunks="2048", split=False, text=text)
        plan(model="llama-3-8b", slo="tpot=20ms", traffic=TrafficOptions(rate=12), choice=choice, json=True)
        found[text] = json.loads(capsys.readouterr().out)["plans"][0]
    assert found[None]["speculation"] is None
    assert found["edit"]["speculation"]["acceptance"] == ACCEPTANCE["edit"].lookup
    assert found["edit"]["source"] == "simulation"
    tpot = {text: each["tpot"]["mean_s"] for text, each in found.items()}
    assert 2 * tpot["edit"] < tpot["prose"] <= 1.01 * tpot[None]


def test_smaller_keys_and_values_are_planned_where_they_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for kv in ("bf16", "bf16,q8,k8v4"):
        choice = ChoiceOptions(tp="1", weights="stored", kv=kv, chunks="2048", split=False)
        traffic = TrafficOptions(rate=6, input_tokens="6000", output_tokens="500")
        plan(
            model="llama-3.1-8b",
            hardware="a10g",
            slo="tpot=100ms",
            simulate=False,
            traffic=traffic,
            choice=choice,
            json=True,
        )
        found.append(json.loads(capsys.readouterr().out)["plans"][0])
    assert found[1]["kv"] in {"q8", "k8v4"}
    assert found[1]["devices"] < found[0]["devices"]


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    plan(model="llama-3-8b", hardware="h100,h200", traffic=SOME, choice=FEW, json=True, show=1)
    found = json.loads(capsys.readouterr().out)
    (best,) = found["plans"]
    assert best["model"] == "llama-3-8b"
    assert best["ttft"]["floor_s"] < best["ttft"]["at_attainment_s"] < 1
    assert best["tpot"]["low_s"] < best["tpot"]["high_s"]
    assert best["memory"]["weights_bytes"] == pytest.approx(16.06e9, rel=1e-2)
    assert best["dollars_per_hour"] == pytest.approx(4.916)
    assert found["traffic"]["rate"] == 5
    assert found["frontier"]


def test_a_plan_for_this_machine(
    tiny_gguf: Callable[[TinyOptions], TinyModel],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(MachineProbe, "limits", lambda _self: LIMITS)
    model = str(tiny_gguf(TinyOptions()).path)
    choice = ChoiceOptions(tp="1", weights="stored", kv="bf16", chunks="512", split=False, price=["this=0.5"])
    traffic = TrafficOptions(rate=1, input_tokens="32", output_tokens="8")
    plan(model=model, hardware="this", slo="ttft=9s", traffic=traffic, choice=choice, json=True, simulate=False)
    (best,) = json.loads(capsys.readouterr().out)["plans"]
    assert (best["hardware"], best["dollars_per_hour"]) == ("this machine", 0.5)
    fit(model=model, hardware="this", context=64)
    assert "1 × this machine" in capsys.readouterr().out


def test_a_trace_as_traffic(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"at_s": n / 2, "input_tokens": 100 + n, "output_tokens": 20} for n in range(50)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    plan(model="llama-3-8b", trace=TraceOptions(trace=trace), choice=FEW, json=True)
    assert json.loads(capsys.readouterr().out)["traffic"]["rate"] == pytest.approx(2.0)


def test_points_of_the_picture_have_labels_of_their_own(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    plan(model="llama-3-8b", hardware="l4", traffic=TrafficOptions(rate=5), simulate=False, svg=picture)
    labels = re.findall(r">(\d+×l4 [^<]*)<", picture.read_text(encoding="utf-8"))
    assert len(labels) > 4
    assert len(set(labels)) == len(labels)


def test_a_damaged_trace_names_its_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at_s": 0, "input_tokens": 5, "output_tokens": 5}\nnonsense\n', encoding="utf-8")
    with pytest.raises(ParameterError, match="2"):
        plan(model="llama-3-8b", trace=TraceOptions(trace=trace), choice=FEW)


def test_impossible_limits_are_an_error_with_a_way_out() -> None:
    with pytest.raises(ParameterError, match="floor of TPOT is") as caught:
        plan(model="llama-3-8b", traffic=SOME, choice=FEW, slo="tpot=1ms")
    assert caught.value.hint
    assert caught.value.exit_code != 0


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"hardware": "h1000"}, "hardware"),
        ({"choice": ChoiceOptions(tp="two")}, "tp"),
        ({"choice": ChoiceOptions(weights="int3")}, "format"),
        ({"choice": ChoiceOptions(acceptance=1.5)}, "speculate"),
        ({"choice": ChoiceOptions(price=["h100=cheap"])}, "price"),
        ({"choice": ChoiceOptions(price=["h200=2"])}, "price"),
        ({"traffic": TrafficOptions()}, "rate"),
        ({"traffic": TrafficOptions(rate=1, input_tokens="many")}, "input-tokens"),
    ],
)
def test_wrong_flags_are_named(wrong: dict[str, object], param: str) -> None:
    arguments: dict[str, object] = {"model": "llama-3-8b", "traffic": SOME, "choice": FEW} | wrong
    with pytest.raises(ParameterError) as caught:
        plan(**arguments)  # type: ignore[arg-type]
    assert caught.value.param == param


def test_unknown_models_have_a_nearest_name() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        fit(model="llama-3-7b")
    assert caught.value.hint
    assert "llama-3-70b" in caught.value.hint or "llama-3-8b" in caught.value.hint


def test_lines_and_json_of_a_fit(capsys: pytest.CaptureFixture[str]) -> None:
    fit(model="llama-3-70b", context=131_072)
    assert "does not fit" in capsys.readouterr().out
    fit(model="llama-3-8b", context=8192, concurrency=4, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is True
    assert found["needed_kv_bytes"] == 4 * 8192 * 131_072
    assert any(way["tp"] == 8 for way in found["ways"])


def test_a_price_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    priced = ChoiceOptions(tp="1", weights="stored", kv="bf16", chunks="2048", split=False, price=["h100=2"])
    plan(model="llama-3-8b", traffic=SOME, choice=priced, json=True)
    assert json.loads(capsys.readouterr().out)["plans"][0]["dollars_per_hour"] == 2


def test_a_plan_for_cpus_has_the_commands_that_serve_it(capsys: pytest.CaptureFixture[str]) -> None:
    choice = ChoiceOptions(tp="1", weights="stored", kv="q8", chunks="512", split=False)
    for rate, nodes in ((0.3, 0), (8, 2)):
        traffic = TrafficOptions(rate=rate, input_tokens="1000", output_tokens="200")
        plan(
            model="llama-3.2-1b",
            hardware="epyc-9654",
            slo="ttft=3s,tpot=200ms",
            traffic=traffic,
            choice=choice,
            json=True,
        )
        best = json.loads(capsys.readouterr().out)["plans"][0]
        assert best["both"] == nodes + 1
        commands = [each for each in best["commands"] if each.startswith(("twofold serve", "twofold node"))]
        for command in commands:
            app().parse_args(shlex.split(command, comments=True)[1:])
        assert len(commands) == 1 + bool(nodes)
        assert "--replicas" not in " ".join(commands), "a replica takes a machine"
        assert f"--max-num-seqs {best['batch_limit']} --max-num-batched-tokens 512" in commands[0]
        assert "--kv-cache-dtype q8" in commands[0]
        assert ("on 2 more" in commands[-1]) == bool(nodes)


def test_a_plan_with_prefill_and_decode_apart_has_commands_with_roles(capsys: pytest.CaptureFixture[str]) -> None:
    choice = ChoiceOptions(tp="1", weights="stored", kv="q8", chunks="512")
    traffic = TrafficOptions(rate=12, input_tokens="1000", output_tokens="200")
    model, machine, slo = "llama-3.2-1b", "epyc-9654", "ttft=3s,tpot=200ms"
    plan(model=model, hardware=machine, slo=slo, traffic=traffic, choice=choice, json=True, simulate=False)
    found = json.loads(capsys.readouterr().out)["plans"]
    split = next(each for each in found if each["decode"])
    for command in split["commands"]:
        app().parse_args(shlex.split(command, comments=True)[1:])
    _, server, *nodes = split["commands"]
    assert "--prefill-replicas 1" in server
    numbers = {"prefill": split["prefill"] - 1, "decode": split["decode"]}
    roles = [f"--role {role}  # on {number} more" for role, number in numbers.items() if number]
    assert [role in node for node, role in zip(nodes, roles, strict=True)] == [True] * len(roles)
    plan(model=model, hardware=machine, slo=slo, traffic=traffic, choice=choice, simulate=False)
    assert "Prefill and decode apart: ×" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "on CPUs, not on h100"),
        ({"machine": "epyc-9654", "tp": 2}, "no tensor parallelism"),
    ],
)
def test_what_twofold_cannot_serve_is_named(changed: dict[str, Any], why: str) -> None:
    assert why in (obstacle(configuration(**changed)) or "")


def test_converted_weights_and_foreign_formats_of_keys_cannot_be_served() -> None:
    own = configuration(machine="epyc-9654")
    assert obstacle(own) is None
    assert "does not convert weights to int4" in (obstacle(replace(own, weights="int4", stored=False)) or "")
    assert "no fp8 KV cache" in (obstacle(replace(own, setup=replace(own.setup, kv=FP8))) or "")
