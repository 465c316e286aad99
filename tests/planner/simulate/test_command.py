"""``twofold simulate`` as it is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.planner.simulate.test_check import measured, written
from twofold.cli.bench.options import LoadOptions, TraceOptions
from twofold.cli.simulate import EngineFlags, LeverFlags, ServerOptions, simulate
from twofold.core.errors import ModelNotFoundError, ParameterError, ResourceError, TwofoldError
from twofold.planner.predict.speculation import ACCEPTANCE

LOAD = LoadOptions(rate=4.0, duration=20.0)
SERVER = ServerOptions(model="llama-3.1-8b", hardware="h100")


def printed(capsys: pytest.CaptureFixture[str], **flags: Any) -> dict[str, Any]:
    simulate(json=True, **flags)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_made_up_load(capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(capsys, slo="ttft=1s,tpot=50ms", server=SERVER, load=LOAD)
    assert document["schema"] == "twofold.simulate/1"
    assert document["figures"]["requests"] > 50
    assert document["figures"]["goodput"]["attainment"] == 1
    assert 0.01 < document["figures"]["ttft"]["p50"] < 0.2


def test_both_modes_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    exact = ServerOptions(model="llama-3.1-8b", hardware="h100", exact=True)
    found = [printed(capsys, server=server, load=LOAD)["figures"] for server in (SERVER, exact)]
    for measure in ("ttft", "tpot", "e2e"):
        assert found[0][measure] == pytest.approx(found[1][measure])


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    split = ServerOptions(model="llama-3.1-8b", hardware="h100", disaggregate="1:2")
    simulate(slo="ttft=1s", server=split, load=LOAD)
    text = capsys.readouterr().out
    assert "prefill: " in text
    assert "2 decode: " in text
    assert "met" in text


def test_a_document_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(capsys, check=written(measured(), tmp_path), server=SERVER)
    assert [each["measure"] for each in document["runs"][0]["compared"]] == ["ttft", "ttft", "tpot", "tpot"]


def test_layer_wise_keys_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    server = ServerOptions(model="llama-2-7b", hardware="l40s")
    load = LoadOptions(rate=2.0, duration=60.0, input_tokens="1024", output_tokens="256")
    few, many = 8 << 30, 64 << 30
    plain, layered = (
        printed(capsys, server=server, engine=EngineFlags(kv_cache_memory_bytes=few, layer_kv=each), load=load)
        for each in (None, many)
    )
    assert plain["layer_kv"] is None
    assert layered["layer_kv"]["layers"] == 32
    assert plain["figures"]["ttft"]["mean"] > 5 * layered["figures"]["ttft"]["mean"]


def test_levers(capsys: pytest.CaptureFixture[str]) -> None:
    plain, edits, small = (
        printed(capsys, server=SERVER, levers=levers, load=LOAD)
        for levers in (LeverFlags(), LeverFlags(text="edit"), LeverFlags(keep=0.5, scorer="smollm2-135m"))
    )
    assert plain["speculation"] is plain["compression"] is None
    assert edits["speculation"] == {"acceptance": ACCEPTANCE["edit"].lookup, "max_drafts": 8, "draft": None}
    assert plain["figures"]["tpot"]["mean"] > 3 * edits["figures"]["tpot"]["mean"]
    assert small["compression"] == {"keep": 0.5, "scorer": "smollm2-135m"}
    assert small["figures"]["prompt_tokens"] == pytest.approx(plain["figures"]["prompt_tokens"] / 2, rel=0.01)


@pytest.mark.data
def test_a_million_requests_take_memory_in_columns(test_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of an hour of Azure's trace, twice."""
    trace = TraceOptions(trace=test_data / "traces/azure_conv_2023.csv", trace_until=360)
    figures = printed(capsys, repeat=2, server=SERVER, trace=trace, load=LoadOptions())["figures"]
    assert figures["requests"] > 2000
    assert figures["refused"] == 0


def here() -> None:
    simulate(server=ServerOptions(), load=LOAD)


def split_of_nothing() -> None:
    simulate(server=ServerOptions(model="llama-3.1-8b", hardware="h100", disaggregate="3"), load=LOAD)


def too_large() -> None:
    simulate(server=ServerOptions(model="llama-3-70b", hardware="h100"), load=LOAD)


def unknown() -> None:
    simulate(server=ServerOptions(model="llama-3-8c", hardware="h100"), load=LOAD)


def gaps() -> None:
    simulate(slo="itl=50ms", server=SERVER, load=LOAD)


def target() -> None:
    simulate(server=SERVER, engine=EngineFlags(tpot_target_ms=50), load=LOAD)


def target_of_nothing() -> None:
    simulate(server=SERVER, engine=EngineFlags(layer_kv_tpot_ms=50), load=LOAD)


def one_memory() -> None:
    simulate(
        server=ServerOptions(model="llama-3.1-8b", hardware="epyc-9654"),
        engine=EngineFlags(layer_kv=64 << 30),
        load=LOAD,
    )


def drafts_of_no_text() -> None:
    simulate(server=SERVER, levers=LeverFlags(draft="llama-3.2-1b"), load=LOAD)


def scorer_of_nothing() -> None:
    simulate(server=SERVER, levers=LeverFlags(scorer="smollm2-135m"), load=LOAD)


def turns_compressed() -> None:
    simulate(server=SERVER, levers=LeverFlags(keep=0.5), load=LoadOptions(rate=4.0, duration=20.0, turns="3"))


def no_load() -> None:
    simulate(server=SERVER)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (here, ParameterError),
        (split_of_nothing, ParameterError),
        (too_large, ResourceError),
        (unknown, ModelNotFoundError),
        (gaps, ParameterError),
        (target, ParameterError),
        (target_of_nothing, ParameterError),
        (one_memory, ParameterError),
        (drafts_of_no_text, ParameterError),
        (scorer_of_nothing, ParameterError),
        (turns_compressed, ParameterError),
        (no_load, ParameterError),
    ],
)
def test_errors_have_hints(call: Callable[[], None], kind: type[TwofoldError]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("option", "server", "engine"),
    [
        ("--replicas", ServerOptions(model="smollm2-135m", replicas=2), EngineFlags()),
        ("--disaggregate", ServerOptions(model="smollm2-135m", disaggregate="1:1"), EngineFlags()),
        ("--memory-share", ServerOptions(model="smollm2-135m"), EngineFlags(memory_share=0.5)),
        ("--layer-kv", ServerOptions(model="smollm2-135m"), EngineFlags(layer_kv=1 << 30)),
        ("--threads", SERVER, EngineFlags(threads=2)),
    ],
)
def test_an_option_without_effect_is_refused(option: str, server: ServerOptions, engine: EngineFlags) -> None:
    with pytest.raises(ParameterError, match=f"{option} is not possible on"):
        simulate(server=server, engine=engine, load=LOAD)


def test_zero_is_not_the_default() -> None:
    with pytest.raises(ParameterError, match="at least 1, not 0"):
        simulate(server=SERVER, engine=EngineFlags(max_num_seqs=0), load=LOAD)
