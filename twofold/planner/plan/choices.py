"""What a planner may choose from, and one choice of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.values import BF16, FP8, INT4, ValueFormat
from twofold.planner.count.memory import weight_bytes
from twofold.planner.count.setting import Setting
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.speculation import tokens_a_turn

MIN_SAVED: Final = 0.98
"""Of the bytes that a model comes with: a format that leaves more of them is none to choose."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """``drafts`` tokens are guessed for each step, each right with ``acceptance`` if those before it were.

    ``draft`` is the model that guesses; None where guessing costs nothing beside a step, as looking them up in the
    prompt.
    """

    drafts: int
    acceptance: float
    draft: ModelSpec | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1:
            raise ParameterError(
                f"The acceptance rate must be from 0 to 1, not {self.acceptance:g}.", param="speculate"
            )
        if not 1 <= self.drafts <= 16:
            raise ParameterError(f"Draft tokens per step must be from 1 to 16, not {self.drafts}.", param="drafts")

    @property
    def tokens(self) -> float:
        """Tokens that a step gives, in the mean."""
        return tokens_a_turn(self.acceptance, self.drafts)


@dataclass(frozen=True)
class Configuration:
    """One way to serve: everything but how many of it.

    shape        with its weights in the format that they are served in
    weights      the name of the format that most of them are in
    stored       whether that is how the model comes
    chunk        most rows of a step
    split        prefill and decode on replicas of their own
    """

    shape: ModelSpec
    machine: Machine
    weights: str
    how: Setting
    chunk: int
    split: bool = False
    speculation: Speculation | None = None
    stored: bool = True

    @property
    def tp(self) -> int:
        return self.how.tp

    @cached_property
    def name(self) -> str:
        """In a few words."""
        parts = [self.shape.name, f"{self.tp}×{self.machine.name}", self.weights, f"kv {self.how.kv.name}"]
        parts.append("split" if self.split else f"chunk {self.chunk}")
        if self.speculation:
            parts.append(f"{self.speculation.drafts} guesses")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Every combination of these is tried.

    weights   formats; None is as the model comes. One that makes it no smaller is left out
    drafts    tokens to guess for each step, where ``acceptance`` says how often a guess is right
    split     whether prefill and decode may be on replicas of their own
    devices   most, of all replicas together
    """

    models: tuple[ModelSpec, ...]
    machines: tuple[Machine, ...]
    tp: tuple[int, ...] = (1, 2, 4, 8)
    weights: tuple[ValueFormat | None, ...] = (None, FP8, INT4)
    kv: tuple[ValueFormat, ...] = (BF16, FP8)
    chunks: tuple[int, ...] = (512, 2048, 8192)
    split: bool = True
    acceptance: float | None = None
    drafts: tuple[int, ...] = (1, 3, 5)
    draft: ModelSpec | None = None
    devices: int = 4096

    def __post_init__(self) -> None:
        for name in ("models", "machines", "tp", "weights", "kv", "chunks", "drafts"):
            if not getattr(self, name):
                raise ParameterError(f"{name} must not be empty.", param=name)
        for name in ("tp", "chunks"):
            if min(getattr(self, name)) < 1:
                raise ParameterError(f"{name} must be at least 1.", param=name)
        if self.devices < 1:
            raise ParameterError("A plan needs at least one device.", param="max-devices")

    def configurations(self) -> Iterator[Configuration]:
        """Each way to serve, models and machines first. Split ones have no chunks to choose: prompts run whole."""
        for model, machine, tp in product(self.models, self.machines, self.tp):
            for shape, kv in product(stored_as(model, self.weights), self.kv):
                how, name = Setting(tp=tp, kv=kv), main_format(shape).name
                for speculation in self._speculations():
                    each = Configuration(
                        shape, machine, name, how, max(self.chunks), False, speculation, shape is model
                    )
                    yield from (replace(each, chunk=chunk) for chunk in self.chunks)
                    if self.split:
                        yield replace(each, split=True)

    def _speculations(self) -> Iterator[Speculation | None]:
        yield None
        if self.acceptance is not None:
            for drafts in self.drafts:
                yield Speculation(drafts, self.acceptance, self.draft)


def stored_as(model: ModelSpec, formats: Iterable[ValueFormat | None]) -> Iterator[ModelSpec]:
    """The model in each format, None being its own; without those that it is in, or that make it no smaller.

    Where all of them would be left out, the model as it comes.
    """
    own, most = main_format(model), MIN_SAVED * weight_bytes(model)
    found = []
    for form in formats:
        if form is None or form == own:
            found.append(model)
        elif weight_bytes(smaller := model.stored_as(form)) < most:
            found.append(smaller)
    yield from dict.fromkeys(found or [model])
