"""Accuracy of predicted TTFT and TPOT over a grid of prompt lengths, output lengths and batch sizes.

The model is calibrated first; then requests of sizes that the calibration did not run are predicted and measured. A
batch is that number of equal requests that arrive at once. The goal is a mean error of 10% for both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.setting import Setting
from twofold.core.params import SamplingParams
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.llm import LLM
from twofold.planner.calibrate.run import calibrate, calibrated
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.request import Predictor

GOAL = 0.10
FULL = tuple((prompt, output, batch) for prompt in (48, 192, 640) for output in (24, 64) for batch in (1, 3, 6))
QUICK = ((24, 4, 1), (24, 4, 2), (48, 4, 1), (48, 4, 2))
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Times:
    """Mean TTFT and TPOT, in seconds, of equal requests that arrive at once."""

    ttft: float
    tpot: float


class Listener:
    """Collects the metrics of finished requests."""

    def __init__(self) -> None:
        self.reports: list[RequestMetrics] = []

    def on_step(self, report: StepReport) -> None:
        """Ignores steps."""

    def on_request(self, report: RequestMetrics) -> None:
        self.reports.append(report)


def run(setting: Setting) -> dict[str, Any]:
    """Calibrates, predicts and measures one model."""
    calibration = calibrate(setting.path, {"threads": setting.threads})
    predictor = calibrated(setting.path, {"threads": setting.threads})
    assert predictor is not None, "the calibration was not saved"
    held_out = float(calibration.constants.error or 0)
    print(f"\nprediction  calibrated in {calibration.took_s:.0f} s, error of steps held out {held_out:.1%}", flush=True)
    rows = _measure(setting, predictor, QUICK if setting.quick else FULL)
    ttft, tpot = (fmean(abs(row[f"predicted_{name}"] / row[name] - 1) for row in rows) for name in ("ttft", "tpot"))
    print(f"  mean error: TTFT {ttft:.1%}, TPOT {tpot:.1%}; goal {GOAL:.0%}", flush=True)
    return {"held_out": held_out, "ttft_error": ttft, "tpot_error": tpot, "rows": rows}


@dataclass(slots=True)
class Sequence:
    """Progress of a request: prompt tokens computed, tokens generated, seconds of the first and the last one."""

    computed: int = 0
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0


def predict(predictor: Predictor, prompt: int, output: int, batch: int) -> Times:
    """Simulates the engine's steps: generating sequences take one row each, prompts share the rest of the budget."""
    now, sequences = 0.0, [Sequence() for _ in range(batch)]
    while alive := [each for each in sequences if each.tokens < output]:
        room, spans, gaining = CHUNK, list[tuple[int, SequenceRows]](), list[Sequence]()
        for each in sorted(alive, key=lambda each: -each.tokens):
            rows = 1 if each.tokens else min(prompt - each.computed, room)
            if not rows:
                continue
            room, each.computed = room - rows, each.computed + rows
            done = each.computed >= prompt
            spans.append((1, SequenceRows(rows, each.computed - rows, int(done))))
            gaining += [each] if done else []
        now += predictor.steps.demand(spans).seconds(predictor.constants)
        for each in gaining:
            each.tokens, each.first, each.last = each.tokens + 1, each.first or now, now
    ttft = fmean(each.first for each in sequences)
    return Times(ttft, fmean((each.last - each.first) / (output - 1) for each in sequences))


def _measure(setting: Setting, predictor: Predictor, grid: tuple[tuple[int, int, int], ...]) -> list[dict[str, float]]:
    """Medians over rounds. Each round runs every case once, so that a slow minute affects all cases alike."""
    context = max(prompt + output for prompt, output, _ in grid)
    rounds = 1 if setting.quick else max(setting.rounds, 3)
    rows = []
    with LLM(setting.path, max_model_len=context, threads=setting.threads, swap_space_bytes=0) as llm:
        listener = Listener()
        llm.engine.observe(listener)
        _serve(llm, setting, listener, 64, 4, 2, 0)  # warm-up
        turns = [
            [_serve(llm, setting, listener, *case, len(grid) * t + n) for n, case in enumerate(grid)]
            for t in range(rounds)
        ]
    for case, times in zip(grid, zip(*turns, strict=True), strict=True):
        found = Times(median(each.ttft for each in times), median(each.tpot for each in times))
        rows.append(_row(*case, predict(predictor, *case), found))
    return rows


def _serve(llm: LLM, setting: Setting, listener: Listener, prompt: int, output: int, batch: int, seed: int) -> Times:
    rng = random.Random(seed)
    listener.reports.clear()
    for number in range(batch):
        ids = tuple(rng.choices(range(100, min(30_000, setting.vocabulary)), k=prompt))
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        options = RequestOptions(cache_salt=f"{seed}-{number}", speculation=False)
        llm.engine.add(EngineRequest(ids, params, options))
    while llm.engine.has_work:
        llm.engine.step()
    times = [(each.arrival, each.first_token or 0.0, each.last_token or 0.0) for each in listener.reports]
    return Times(
        fmean(first - arrival for arrival, first, _ in times),
        fmean((last - first) / (output - 1) for _, first, last in times),
    )


def _row(prompt: int, output: int, batch: int, expected: Times, found: Times) -> dict[str, float]:
    print(
        f"  {prompt:4d} in, {output:3d} out, {batch:2d} at once  "
        f"TTFT ms {expected.ttft * 1e3:7.1f} predicted, {found.ttft * 1e3:7.1f} measured; "
        f"TPOT ms {expected.tpot * 1e3:6.2f}, {found.tpot * 1e3:6.2f}",
        flush=True,
    )
    return {
        "prompt": prompt,
        "output": output,
        "batch": batch,
        "predicted_ttft": expected.ttft,
        "predicted_tpot": expected.tpot,
        "ttft": found.ttft,
        "tpot": found.tpot,
    }
