"""explain, plan and simulate each show every lever with its predicted gain and with what benchmarks measured of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.planner.explain.scenes import scene
from twofold.cli.bench.options import LoadOptions
from twofold.cli.plan import ChoiceOptions, TrafficOptions, plan
from twofold.cli.simulate import EngineFlags, LeverFlags, ServerOptions, simulate
from twofold.planner.explain.measured import BENCHMARKS, benchmark
from twofold.planner.explain.report import explain, lines
from twofold.planner.predict.request import Case
from twofold.planner.predict.speculation import ACCEPTANCE, TEXT_CLASSES, text_of

LEVERS = ("speculation", "draft model", "KV q8", "KV k8v4", "KV store", "LayerKV", "prompt compression")
DOCUMENT = (Path(__file__).parents[2] / "docs" / "levers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("lever", LEVERS)
def test_figures_of_benchmarks_are_those_of_the_document(lever: str) -> None:
    """LayerKV was never measured: the engine does not have it."""
    assert (benchmark(lever, "code") == "") == (lever == "LayerKV")
    words = BENCHMARKS.get(lever, "").replace(";", "").replace(",", "").split()
    figures = [word.rstrip("×") for word in words if word[0].isdigit() and "." in word]
    assert all(figure in DOCUMENT for figure in figures)


@pytest.mark.parametrize("text", TEXT_CLASSES)
def test_gains_of_speculation_are_those_of_the_document(text: str) -> None:
    known = ACCEPTANCE[text]  # type: ignore[index]
    assert f"{known.lookup_gain:.2f}×" in DOCUMENT
    assert not known.model_gain or f"{known.model_gain:.2f}×" in DOCUMENT
    assert text_of(known.lookup, draft_model=False) == text_of(known.model, draft_model=True) == text
    assert text_of(0.5, draft_model=False) is None


@pytest.mark.parametrize("lever", LEVERS)
def test_explain(lever: str) -> None:
    found = explain(scene("llama-3-8b", "epyc-9654", Case(prompt=2000, output=300)))
    (outcome,) = (each for each in found.document.levers if each.lever == lever)
    assert outcome.why or outcome.gains
    assert outcome.benchmark == benchmark(lever, "prose")
    text = " ".join(" ".join(lines(found, width=400)).split())
    assert not outcome.benchmark or f"Benchmarks measured {outcome.benchmark}." in text


@pytest.mark.parametrize("lever", LEVERS)
def test_plan(lever: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It offers the levers that it was not told to try, each with its gain or the reason why it would not pay."""
    choice = ChoiceOptions(tp="1", weights="stored", kv="bf16", chunks="2048", split=False)
    options: dict[str, Any] = {"simulate": False, "traffic": TrafficOptions(rate=1.0), "choice": choice}
    plan(model="llama-3-8b", hardware="h100", **options)
    text = capsys.readouterr().out
    (line,) = (each for each in text.splitlines() if each.startswith((f"  {lever}, ", f"  {lever}: does not pay.")))
    assert ("TTFT" in line) == ("does not pay" not in line)
    assert benchmark(lever, "prose") in line


@pytest.mark.parametrize("draft", [None, "llama-3.2-1b"])
def test_a_plan_that_has_a_lever_says_what_benchmarks_measured(
    draft: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = ChoiceOptions(
        tp="1", weights="stored", kv="q8", chunks="2048", split=False, text="code", draft=draft, drafts="1"
    )
    plan(
        model="llama-3-8b", hardware="h100", simulate=False, traffic=TrafficOptions(rate=0.2), choice=choice, json=True
    )
    document = json.loads(capsys.readouterr().out)
    assert document["plans"][0]["speculation"]["drafts"] == 1
    for each in document["plans"]:
        reasons = " ".join(each["reasons"])
        assert benchmark("KV q8", None) in reasons
        known = benchmark("draft model" if draft else "speculation", "code")
        assert (known in reasons) == bool(each["speculation"])


@pytest.mark.parametrize("lever", LEVERS)
def test_simulate(lever: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same load runs without the lever, too: here each helps, or at least costs nothing."""
    flags: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
        "speculation": ({}, {}, {"text": "edit"}),
        "draft model": ({}, {}, {"text": "code", "draft": "llama-3.2-1b"}),
        "KV q8": ({"kv": "q8"}, {}, {}),
        "KV k8v4": ({"kv": "k8v4"}, {}, {}),
        "KV store": ({}, {}, {"kv_store_bytes": 10 << 30}),
        "LayerKV": ({}, {"layer_kv": 64 << 30}, {}),
        "prompt compression": ({}, {}, {"keep": 0.5, "scorer": "smollm2-135m"}),
    }
    server, engine, levers = flags[lever]
    shown = []
    for as_json in (False, True):
        simulate(
            server=ServerOptions(**{"model": "llama-3.1-8b", "hardware": "h100", **server}),
            engine=EngineFlags(kv_cache_memory_bytes=2 << 30, **engine),
            levers=LeverFlags(**levers),
            load=LoadOptions(rate=12.0, requests=60, input_tokens="1500", output_tokens="100", seed=1),
            json=as_json,
        )
        shown.append(capsys.readouterr().out)
    text, document = shown[0], json.loads(shown[1])
    assert "without  " in text
    assert benchmark(lever, levers.get("text")) in text
    (name,) = document["figures_without"]
    assert name == lever
    figures, without = document["figures"], document["figures_without"][name]
    measure = "ttft" if lever == "LayerKV" else "e2e"
    assert figures[measure]["mean"] <= without[measure]["mean"] * (1 if lever == "KV store" else 0.999)
