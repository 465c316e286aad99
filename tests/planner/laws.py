"""Closed-form laws of serving; tests compare the planner with them.

burst            TTFT = T_p · (b + 1) / 2              the mean of b equal prompts that arrive at once
Little (1961)    X ≤ C · (OSL − 1) / (TTFT + TPOT · (OSL − 1))     output tokens a second with C requests open
disaggregated    min(n_p / T_p, n_d · B / (OSL · t_dec))           requests a second (DistServe, Zhong et al. 2024)
"""

from __future__ import annotations

from twofold.planner.machines.machine import Machine


def burst_ttft(prefill_s: float, prompts: int) -> float:
    """Mean TTFT of so many equal prompts that arrive at once and are computed one after the other."""
    return prefill_s * (prompts + 1) / 2


def most_tokens_per_s(concurrency: int, output: int, ttft: float, tpot: float) -> float:
    """Little's bound on output tokens after the first, a second, with so many requests open."""
    return concurrency * (output - 1) / (ttft + tpot * (output - 1))


def disaggregated_rate(
    prefill_s: float, step_s: float, batch: int, output: int, *, prefillers: int, decoders: int
) -> float:
    """Requests a second where ``prefillers`` compute prompts and ``decoders`` make answers, ``batch`` at a time."""
    return min(prefillers / prefill_s, decoders * batch / (output * step_s))


def users_beyond(share: float, users: int, requests: int) -> float:
    """Users of whom at least one of ``requests`` is beyond a percentile: ``share`` = 0.01 beyond P99.

    Percentiles are of requests, not of users; requests of one user are taken as independent.
    """
    return users * (1 - (1 - share) ** requests)


def latency_floor(stored: float, machine: Machine, devices: int = 1) -> float:
    """Seconds that no step can go below: so many bytes of weights, read once by all devices together."""
    return stored / (devices * machine.bandwidth)
