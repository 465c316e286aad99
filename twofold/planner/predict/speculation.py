"""The gain of speculative decoding (Leviathan et al. 2023; Chen et al. 2023).

A draft proposes γ tokens, each accepted with probability α; the model checks them in one step of γ + 1 rows a sequence.

    E          (1 − α^(γ+1)) / (1 − α)     mean tokens of a turn
    speed-up   E / (γ · c + v)             c: a draft's step, v: the checking step, both in steps without speculation

At γ = 1 it pays off above α = c + v − 1. Where arithmetic limits a step, v = γ + 1 ≥ E, and it never does."""

from __future__ import annotations

from twofold.core.errors import ParameterError
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.steps import StepPredictor


def tokens_a_turn(acceptance: float, guesses: int) -> float:
    """E: mean tokens of a turn, the model's own included."""
    if not 0 <= acceptance <= 1 or guesses < 0:
        raise ParameterError(
            f"The acceptance rate must be from 0 to 1, not {acceptance}, and the number of draft tokens at least 0.",
            param="acceptance",
        )
    return sum(acceptance**taken for taken in range(guesses + 1))


def speed_up(acceptance: float, guesses: int, draft: float, check: float) -> float:
    """Tokens a second relative to decoding without speculation; ``draft`` is c and ``check`` is v."""
    return tokens_a_turn(acceptance, guesses) / (guesses * draft + check)


def min_acceptance(draft: float, check: float) -> float:
    """α above which one draft token a turn pays off; above 1 it never does."""
    return draft + check - 1


def check_ratio(steps: StepPredictor, by: Constants, batch: int, context: int, guesses: int) -> float:
    """v: seconds of a step of γ + 1 rows a sequence against one of a single row."""
    rows = guesses + 1
    checking = steps.demand([(batch, SequenceRows(rows, context - 1, rows))])
    return checking.seconds(by) / steps.decode(batch, context).seconds(by)
