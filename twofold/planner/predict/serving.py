"""Laws of serving that need no simulation: bursts, Little's bound, prefill and decode on different machines, guesses.

burst            TTFT = T_p · (b + 1) / 2              the mean of b equal prompts that arrive at once
Little (1961)    X ≤ C · (OSL − 1) / (TTFT + TPOT · (OSL − 1))     output tokens a second with C requests open
disaggregated    min(n_p / T_p, n_d · B / (OSL · t_dec))           requests a second (DistServe, Zhong et al. 2024)
Pollaczek–Khinchine    λ · E[S²] / (2 · (1 − ρ))       mean wait for one server, arrivals at random

Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): a draft proposes γ tokens, each taken with probability
α; the model checks them in one step of γ + 1 rows a sequence.

E          (1 − α^(γ+1)) / (1 − α)     tokens a turn in the mean
speed-up   E / (γ · c + v)             c: a draft's step, v: the checking step, both in steps without speculation

At γ = 1 it pays from α > c + v − 1. Where a step is bound by arithmetic v = γ + 1 ≥ E, and it never does.
"""

from __future__ import annotations

from twofold.core.errors import ParameterError
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.steps import StepPredictor


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


def mean_wait(rate: float, service_s: float, service_s2: float) -> float:
    """Mean seconds in the queue of one server; ``service_s2`` is the mean square of the service time.

    ParameterError where requests come faster than they can be served: the queue then grows without end.
    """
    load = rate * service_s
    if load >= 1:
        raise ParameterError(
            f"{rate:g} requests a second of {service_s:g} s each are {load:.2f} times what one server can do.",
            param="rate",
            hint="Lower the rate, or add replicas.",
        )
    return rate * service_s2 / (2 * (1 - load))


def users_beyond(share: float, users: int, requests: int) -> float:
    """Users of whom at least one of ``requests`` is beyond a percentile: ``share`` = 0.01 beyond P99.

    Percentiles are of requests, not of users; requests of one user are taken as independent.
    """
    return users * (1 - (1 - share) ** requests)


def tokens_a_turn(acceptance: float, guesses: int) -> float:
    """E: tokens that a turn gives in the mean, the model's own included."""
    if not 0 <= acceptance <= 1 or guesses < 0:
        raise ParameterError(
            f"Guesses are accepted with a probability from 0 to 1, not {acceptance}, and are not fewer than none.",
            param="acceptance",
        )
    return sum(acceptance**taken for taken in range(guesses + 1))


def speed_up(acceptance: float, guesses: int, draft: float, check: float) -> float:
    """Tokens a second against those without speculation; ``draft`` is c and ``check`` is v."""
    return tokens_a_turn(acceptance, guesses) / (guesses * draft + check)


def least_acceptance(draft: float, check: float) -> float:
    """α from which one guess a turn pays; above 1 it never does."""
    return draft + check - 1


def check_ratio(steps: StepPredictor, by: Constants, batch: int, context: int, guesses: int) -> float:
    """v: seconds of a step of γ + 1 rows a sequence against one of a single row."""
    rows = guesses + 1
    checking = steps.demand([(batch, SequenceRows(rows, context - 1, rows))])
    return checking.seconds(by) / steps.decode(batch, context).seconds(by)
