"""The gain of speculative decoding (Leviathan et al. 2023; Chen et al. 2023).

A draft proposes γ tokens, each accepted with probability α; the model checks them in one step of γ + 1 rows a sequence.

    E          (1 − α^(γ+1)) / (1 − α)     mean tokens of a turn
    speed-up   E / (γ · c + v)             c: a draft's step, v: the checking step, both in steps without speculation

At γ = 1 it pays off above α = c + v − 1. Where arithmetic limits a step, v = γ + 1 ≥ E, and it never does. The engine
drafts as many tokens as this says, and none where none pay: so its gain is the best over γ, and at least 1.

α depends on the text. ``ACCEPTANCE`` has it by class, for drafts that are looked up in prompt and answer, and for those
of a small model: the α at which the formula gives the gain that was measured, with the seconds of steps of 1, 2, 4 and
8 rows that were measured in the same run (1, 1.07, 1.23 and 1.72), and 0.36 for a pass of the draft model. For a draft
model on edits and extraction, α was counted (``benchmarks/draft_model.py``): there looked-up drafts gain more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.machine import Cited
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.steps import StepPredictor

TextClass = Literal["edit", "extraction", "code", "prose"]
"""Rewriting a file; quoting and extracting; writing code; writing prose."""
TEXT_CLASSES: Final[tuple[TextClass, ...]] = get_args(TextClass)
MAX_DRAFTS: Final = 8
_MEASURED: Final = (
    "the engine with Qwen2.5-Coder-1.5B, one stream on two cores (Zen 4), 2026-11-23: "
    "the lower of temperature 0 and 0.8"
)
_SMALL: Final = "the same with a draft model of 0.5B beside lookup"
_COUNTED: Final = (
    "right ones among the drafts of a model of 0.5B alone that followed right ones only, for Qwen2.5-Coder-1.5B, "
    "the lower of temperature 0 and 0.8, 2026-11-24: "
)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """α of drafts that are looked up in the text, and of those of a draft model; and the gain in decode that each of
    them gave when it was measured, 0 if it was not."""

    lookup: Cited
    model: Cited
    lookup_gain: float
    model_gain: float = 0.0


ACCEPTANCE: Final[Mapping[TextClass, Acceptance]] = {
    "edit": Acceptance(Cited(0.803, _MEASURED), Cited(0.985, _COUNTED + "452 of 459"), 2.44),
    "extraction": Acceptance(Cited(0.619, _MEASURED), Cited(0.914, _COUNTED + "85 of 93"), 1.82),
    "code": Acceptance(Cited(0.166, _MEASURED), Cited(0.855, _SMALL), 1.09, 1.39),
    "prose": Acceptance(Cited(0.134, _MEASURED), Cited(0.473, _SMALL), 1.06, 1.03),
}


def text_of(acceptance: float, *, draft_model: bool) -> TextClass | None:
    """The class of text with this α; None if it is no class's."""
    rates = {text: known.model if draft_model else known.lookup for text, known in ACCEPTANCE.items()}
    return next((text for text, rate in rates.items() if rate == acceptance), None)


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


def draft_ratio(steps: StepPredictor, draft: ModelSpec, by: Constants, batch: int, context: int) -> float:
    """c: seconds of a step of the draft model, on the same devices, against one of the model."""
    drafting = StepPredictor.of(draft, steps.machine, steps.setup).decode(batch, context)
    return drafting.seconds(by) / steps.decode(batch, context).seconds(by)


@dataclass(frozen=True, slots=True)
class Turn:
    """The best turn: ``drafts`` tokens, checked in a step that takes ``check`` times as long, gain ``speed``."""

    drafts: int
    check: float
    speed: float


def best_turn(
    steps: StepPredictor,
    by: Constants,
    batch: int,
    context: int,
    acceptance: float,
    *,
    draft: float = 0.0,
    most: int = MAX_DRAFTS,
) -> Turn:
    """The turn of up to ``most`` drafts that gains most; without drafts its gain is 1."""
    best = Turn(0, 1.0, 1.0)
    for drafts in range(1, most + 1):
        check = check_ratio(steps, by, batch, context, drafts)
        speed = speed_up(acceptance, drafts, draft, check)
        if speed > best.speed:
            best = Turn(drafts, check, speed)
    return best
