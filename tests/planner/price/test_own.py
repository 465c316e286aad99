"""A workload on own hardware: seconds by phase, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from twofold.core.errors import ParameterError, ResourceError
from twofold.observe.billing import MachinePrices
from twofold.planner.count.crossover import Crossovers, implied_kv
from twofold.planner.count.setting import Setting
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.steps import Demand
from twofold.planner.price.catalog import read_table
from twofold.planner.price.document import own_document
from twofold.planner.price.own import OwnCost, OwnMachines, hourly, own_cost
from twofold.planner.price.report import own_lines
from twofold.planner.price.workload import Workload, api_cost
from twofold.planner.shapes.known import resolve_shape

WORK = Workload(input_tokens=1_000, output_tokens=101, requests_per_day=1_000)
OWN = OwnMachines(
    resolve_shape("llama-3-8b"), find_machine("h100"), MachinePrices(Decimal(36), Decimal("0.5")), batch=10
)


def fixed(demand: Demand) -> float:
    """Prefill takes 100 ms, a decode step of 10 sequences 20 ms."""
    return 0.1 if demand.sequences == 1 else 0.02


def found(workload: Workload = WORK, own: OwnMachines = OWN) -> OwnCost:
    return own_cost(own, workload, fixed)


def test_each_phase_pays_for_its_own_tokens() -> None:
    cost = found()
    assert (cost.prefill_s, cost.decode_s) == pytest.approx((0.1, 100 * 0.02 / 10))
    assert cost.per_second == pytest.approx(0.02)
    assert cost.per_million_input == pytest.approx(0.1 * 0.02 * 1_000)
    assert cost.per_million_output == pytest.approx(0.2 * 0.02 * 1e6 / 101)
    parts = cost.per_million_input * 1_000 + cost.per_million_output * 101
    assert cost.per_request == pytest.approx(parts / 1e6)


def test_a_completion_half_as_long_saves_half_of_the_decode() -> None:
    assert found().half_output_saves == pytest.approx(0.2 * 0.02 * 51 / 100 - 0.2 * 0.02 / 100)
    assert found(replace(WORK, output_tokens=1)).half_output_saves == 0


def test_replicas_run_all_day() -> None:
    cost = found()
    assert cost.requests_per_day == pytest.approx(86_400 * 0.5 / 0.3)
    assert cost.replicas == 1
    assert cost.per_month == pytest.approx(36 * 24 * 365 / 12)
    assert found(replace(WORK, requests_per_day=145_000)).replicas == 2


def test_which_is_cheaper_and_from_which_volume() -> None:
    cost = found()
    assert cost.cheaper_from(0.01) == pytest.approx(36 * 24 / 0.01)
    assert cost.cheaper_from(36 * 24 / cost.requests_per_day * 1.001) is not None
    assert cost.cheaper_from(36 * 24 / cost.requests_per_day * 0.999) is None
    assert cost.cheaper_from(0) is None


def test_prefixes_are_filled_once_a_session() -> None:
    def by_rows(demand: Demand) -> float:
        return demand.messages

    two = replace(OWN, setup=Setting(tp=2))  # which send each other a message of each row
    whole = own_cost(two, WORK, by_rows).prefill_s
    rest = own_cost(two, replace(WORK, prefix_tokens=900), by_rows).prefill_s
    session = own_cost(two, replace(WORK, prefix_tokens=900, session=4), by_rows).prefill_s
    assert rest == pytest.approx(whole / 10)
    assert session == pytest.approx((whole + 3 * rest) / 4)
    assert own_cost(two, replace(WORK, prefix_tokens=1_000), by_rows).prefill_s == pytest.approx(whole / 1_000)


def test_a_step_holds_no_more_sequences_than_fit() -> None:
    cost = found(own=replace(OWN, batch=None))
    assert cost.batch == cost.sequences
    assert found(own=replace(OWN, batch=1_000_000)).batch == cost.sequences


def test_predicted_steps_are_no_faster_than_the_machine() -> None:
    cost = own_cost(OWN, WORK)
    weights = 2 * 7.5e9  # 8 B parameters in bf16, but for the embedding
    assert cost.step_s > weights / OWN.machine.bandwidth
    assert cost.prefill_s > 2 * 6.9e9 * 1_000 / OWN.machine.peak("bf16")
    assert cost.prefill_s < 0.1


def test_a_model_that_has_no_room_is_refused_with_the_bytes() -> None:
    own = OwnMachines(resolve_shape("llama-3-70b"), find_machine("h100"), MachinePrices(Decimal(2)))
    with pytest.raises(ResourceError, match=r"llama-3-70b does not fit into 1 × h100: each needs 131\.8 GiB") as caught:
        own_cost(own, WORK, fixed)
    assert "--tp" in (caught.value.hint or "")
    assert own_cost(replace(own, setup=Setting(tp=4)), WORK, fixed).per_hour == 8


def test_the_price_of_an_hour() -> None:
    assert hourly(Decimal(2)) == 2
    assert hourly(watts=Decimal(700), per_kwh=Decimal("0.20")) == Decimal("0.14")
    assert hourly(Decimal(1), capital=Decimal(35_064), years=Decimal(4)) == 2
    impossible: tuple[dict[str, Decimal], ...] = (
        {},
        {"watts": Decimal(1)},
        {"per_kwh": Decimal(1)},
        {"per_hour": Decimal(-1)},
        {"per_hour": Decimal("nan")},
        {"capital": Decimal(1), "years": Decimal(0)},
    )
    for given in impossible:
        with pytest.raises(ParameterError):
            hourly(**given)
    with pytest.raises(ParameterError) as caught:
        hourly(watts=Decimal(1))
    assert caught.value.param == "price_per_kwh"


def test_own_hardware_is_compared_with_the_api() -> None:
    api = api_cost(read_table().find("gpt-5"), WORK, datetime(2026, 11, 21, tzinfo=UTC))
    cost = found()
    text = "\n".join(own_lines(OWN, cost, float(api.per_request)))
    assert "llama-3-8b on 1 × h100, $36.00 per hour, 50% utilization (predicted)" in text
    assert "The API is cheaper at any volume: one replica serves 144,000 requests a day, for $864.00." in text
    assert own_document(OWN, cost, float(api.per_request))["cheaper_from_requests_per_day"] is None
    cheap = replace(cost, per_hour=0.36)
    assert "Own hardware is cheaper from " in "\n".join(own_lines(OWN, cheap, float(api.per_request)))


def test_a_price_cliff_implies_one_of_two_sizes() -> None:
    """kv = P / (ridge · c), or twice that: a multiply-add is one operation or two."""
    low, high = implied_kv(70e9, 295, 200_000)
    assert low == pytest.approx(1_186, abs=1)
    assert high == 2 * low
    with pytest.raises(ParameterError):
        implied_kv(70e9, 295, 0)


def test_crossovers_of_a_model() -> None:
    cross = Crossovers.of(resolve_shape("llama-3-70b"), find_machine("h100"), Setting(), 1_415)
    assert (round(cross.attention), round(cross.batch), round(cross.context)) == (104_448, 430_626, 1_415)
    assert cross.implied is not None
    assert cross.implied[1] == pytest.approx(cross.kv_token, rel=1e-3)
    assert "both are published" in "\n".join(cross.lines())
    assert cross.document()["implied_kv_bytes_a_token"] == list(cross.implied)
    assert len(Crossovers.of(resolve_shape("llama-3-8b"), find_machine("h100"), Setting()).lines()) == 4
