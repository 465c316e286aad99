"""The formulas of time written out by hand, and a claim about latency that is one about load."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.planner.constants import LOOP
from tests.planner.laws import disaggregated_rate, most_tokens_per_s
from twofold.planner.count.setting import Setting
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.constants import GPU
from twofold.planner.predict.queueing import Queue
from twofold.planner.predict.request import Case, Predictor
from twofold.planner.predict.speculation import min_acceptance, speed_up, tokens_a_turn
from twofold.planner.shapes.known import find_shape

PARAMETERS, HEAD, LAYERS, HIDDEN = 68.451e9, 1.0507e9, 80, 8192
DEVICES, BATCH, CONTEXT = 4, 16, 2_000
KV_TOKEN = 327_680
CHAT = Case(prompt=2_000, output=300, concurrency=16)


def model() -> Predictor:
    return Predictor(find_shape("llama-3-70b"), find_machine("h100"), GPU, Setting(tp=DEVICES))


def overheads(messages_s: float) -> float:
    """2·L·t_AR + L·t_layer + t_step + B·t_req, where t_AR = α + 2(N−1)/N · m / BW_bus."""
    t_ar = GPU.t_ar + messages_s
    return 2 * LAYERS * t_ar + LAYERS * GPU.t_layer + GPU.t_step + BATCH * GPU.t_req


def test_a_decode_step_by_hand() -> None:
    """max(W/(η_m·BW·N), 2·P·n/(η_c·peak·N)) + KV/(η_k·BW·N), and overheads, of Llama-3-70B on 4 H100."""
    h100 = find_machine("h100")
    assert h100.link is not None
    read = 2 * (PARAMETERS + HEAD) / (GPU.eta_m * h100.bandwidth * DEVICES)
    made = 2 * (PARAMETERS + HEAD) * BATCH / (GPU.eta_c * h100.peak("bf16") * DEVICES)
    kept = BATCH * (CONTEXT + 1) * KV_TOKEN / (GPU.eta_k * h100.bandwidth * DEVICES)
    message = 2 * (DEVICES - 1) / DEVICES * BATCH * HIDDEN * 2 / (GPU.eta_l * h100.link)
    by_hand = max(read, made) + kept + overheads(message)
    assert read > made
    assert model().steps.decode(BATCH, CONTEXT).seconds(GPU) == pytest.approx(by_hand, rel=1e-3)


def test_a_prompt_by_hand() -> None:
    """The same formula where arithmetic bounds: attention is multiplied, and takes longer than its reading."""
    h100, prompt = find_machine("h100"), CHAT.prompt
    assert h100.link is not None
    products = 2 * PARAMETERS * prompt + 2 * HEAD + LAYERS * 2 * HIDDEN * prompt * (prompt + 1)
    made = products / (GPU.eta_c * h100.peak("bf16") * DEVICES)
    message = 2 * (DEVICES - 1) / DEVICES * prompt * HIDDEN * 2 / (GPU.eta_l * h100.link)
    by_hand = made + overheads(message) - (BATCH - 1) * GPU.t_req
    assert model().steps.prefill(prompt).seconds(GPU) == pytest.approx(by_hand, rel=1e-3)


def test_constants_of_a_bare_loop_lie_where_they_were_published() -> None:
    """Of servers, arithmetic (0.824), all-reduces (9 µs) and requests (26 µs) were fitted outside of these ranges."""
    assert all(0.8 <= by.eta_m <= 0.95 for by in (LOOP, GPU))
    assert all(32e-6 <= by.t_layer <= 62e-6 for by in (LOOP, GPU))
    assert 0.67 <= LOOP.eta_c <= 0.78
    assert 5e-6 <= LOOP.t_ar <= 7e-6
    assert (LOOP.t_step, LOOP.t_req) == (126e-6, 4e-6)


def test_answers_share_their_steps_with_others_prompts() -> None:
    """TPOT = t_dec(C) + (C − 1)/OSL · T_prefill, and E2E = TTFT + (OSL − 1) · TPOT (SARATHI, Agrawal et al. 2023)."""
    steps, found = model().steps, model().predict(CHAT)
    t_dec = steps.decode(CHAT.concurrency, CHAT.prompt + CHAT.output // 2).seconds(GPU)
    assert found.tpot == pytest.approx(t_dec + 15 / 300 * steps.prefill(CHAT.prompt).seconds(GPU))
    assert found.e2e == found.ttft + 299 * found.tpot


def test_rates_of_a_whole_service() -> None:
    """Little: X ≤ C·(OSL−1)/(TTFT + TPOT·(OSL−1)). Apart: min(n_p/T_p, n_d·B/(OSL·t_dec))."""
    assert most_tokens_per_s(16, 300, 0.2, 0.025) == pytest.approx(16 * 299 / (0.2 + 0.025 * 299))
    found = disaggregated_rate(0.1, 0.025, 64, 300, prefillers=1, decoders=2)
    assert found == pytest.approx(min(1 / 0.1, 2 * 64 / (300 * 0.025)))


def test_speculation() -> None:
    """E = (1 − α^(γ+1))/(1 − α) and E/(γ·c + v): 3.36 tokens a turn, 2.8 times as fast (Leviathan et al. 2023)."""
    assert tokens_a_turn(0.8, 4) == pytest.approx((1 - 0.8**5) / (1 - 0.8)) == pytest.approx(3.36, abs=0.002)
    assert speed_up(0.8, 4, 0.05, 1.0) == pytest.approx(3.3616 / 1.2)
    assert min_acceptance(0.05, 1.02) == pytest.approx(0.05 + 1.02 - 1)
    assert speed_up(0.99, 4, 0.0, 5.0) < 1


def test_any_factor_in_ttft_can_be_had_by_choosing_the_load() -> None:
    """LayerKV's "69×" (11× in an earlier version of the paper) is up to: near saturation 10% shorter prompts suffice.

    Of one server with equal prompts, by Pollaczek and Khinchine.
    """

    def ttft(rate: float, service: float) -> float:
        return service + Queue(rate, service, service**2).mean_wait

    factors = [ttft(rate, 1.0) / ttft(rate, 0.9) for rate in (0.5, 0.98, 0.999)]
    assert factors[0] < 1.3
    assert factors[1] < 11
    assert factors[2] > 69


@pytest.mark.data
def test_rows_that_were_measured(test_data: Path) -> None:
    """1,336 rows of served TTFT and TPOT; predictions are held to the 545 of dense models that are served whole."""
    with (test_data / "gpu" / "served_ttft_tpot_hopper.csv").open(newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == 1_336
