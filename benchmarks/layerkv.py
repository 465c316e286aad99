"""LayerKV in the simulator: TTFT, TPOT and time of whole requests, with and without, by memory for keys and values and
by rate. No model runs."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.setting import Setting
from twofold.planner.machines.known import find_machine
from twofold.planner.shapes.known import resolve_shape
from twofold.planner.simulate.figures import SimulatedFigures, figures
from twofold.planner.simulate.jobs import IndependentJobs, SimulatedJob
from twofold.planner.simulate.layerwise import layer_kv
from twofold.planner.simulate.scenario import Scenario
from twofold.planner.simulate.setting import DEFAULT_ROWS, EngineSetting, groups_for

MODEL, MACHINE = "llama-2-7b", "l40s"
PROMPT, OUTPUT, REQUESTS = 1024, 512, 1000
MEMORY_GIB: Final = ((48, 1.2), (28, 1.2), (24, 1.2), (20, 1.2), (16, 1.2), (12, 1.2))
RATES: Final = ((24, 0.5), (24, 1.0), (24, 1.4), (24, 1.8))
HOST_BYTES, TPOT_S = 256 << 30, 0.1
WAYS: Final = {"plain": (False, None), "LayerKV": (True, None), "TPOT ≤ 100 ms": (True, TPOT_S)}


@dataclass(frozen=True, slots=True)
class Means:
    """Mean seconds of requests."""

    ttft: float
    tpot: float
    e2e: float

    @classmethod
    def of(cls, found: SimulatedFigures) -> Means:
        means = found.ttft.mean, found.tpot.mean, found.e2e.mean
        assert all(mean is not None for mean in means), "every request ends"
        return cls(*(mean or 0.0 for mean in means))


def run(setting: Setting) -> list[dict[str, Any]]:
    """Prints and returns the means of each memory and rate."""
    print(f"\nlayerkv  {MODEL} on {MACHINE}, {PROMPT:,} + {OUTPUT} tokens: mean TTFT, TPOT and E2E (simulated)")
    rows = []
    for kv_gib, rate in (*MEMORY_GIB, *RATES):
        means = {
            way: _means(kv_gib, rate, *how, requests=50 if setting.quick else REQUESTS) for way, how in WAYS.items()
        }
        plain = means["plain"]
        shown = (
            f"{way} {each.ttft:8.3f} s (÷{plain.ttft / each.ttft:.3g}) {each.tpot * 1e3:6.1f} ms {each.e2e:6.2f} s"
            for way, each in means.items()
        )
        print(f"  {kv_gib:3d} GiB {rate:4.1f}/s  " + "  ".join(shown), flush=True)
        rows.append({"kv_gib": kv_gib, "rate": rate, **{way: asdict(each) for way, each in means.items()}})
    return rows


def _means(kv_gib: int, rate: float, layered: bool, tpot_s: float | None, *, requests: int) -> Means:
    shape, machine = resolve_shape(MODEL), find_machine(MACHINE)
    groups, lever = groups_for(shape, machine, memory=kv_gib << 30), None
    if layered:
        lever, groups = layer_kv(shape, machine, groups, HOST_BYTES, rows=DEFAULT_ROWS, block_size=16, tpot_s=tpot_s)
    setting = EngineSetting(groups, prefix_caching=False, layer_kv=lever)
    scenario = Scenario(shape=shape, machine=machine, setting=setting)
    return Means.of(figures(scenario.run(IndependentJobs(_jobs(rate, requests)))))


def _jobs(rate: float, requests: int) -> list[SimulatedJob]:
    rng, now, jobs = random.Random(0), 0.0, []
    for number in range(requests):
        now += rng.expovariate(rate)
        jobs.append(SimulatedJob(number, now, PROMPT, OUTPUT, (), number))
    return jobs
