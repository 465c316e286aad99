"""The model size and training tokens with the minimum compute over a model's life, serving included.

    minimize   6 · N · D + 2 · N · T           FLOPs: N parameters trained on D tokens, T tokens served
    subject to E + A / N^α + B / D^β = ℓ       the given loss

The loss and its constants are Chinchilla's (Hoffmann et al. 2022, approach 3, with the paper's unrounded exponents);
counting the served tokens is Sardana et al. 2023, "Beyond Chinchilla-Optimal". Without served tokens the optimum is
Chinchilla's: α · A / N^α = β · B / D^β. Limits of data, memory and latency are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from twofold.core.errors import ParameterError

GOLDEN: Final = (math.sqrt(5) - 1) / 2
MAX_PARAMETERS: Final = 1e15


@dataclass(frozen=True, slots=True)
class LossLaw:
    """The loss after training ``N`` parameters on ``D`` tokens: floor + a / N^alpha + b / D^beta."""

    floor: float = 1.69
    a: float = 406.4
    b: float = 410.7
    alpha: float = 0.336
    beta: float = 0.283

    def loss(self, parameters: float, tokens: float) -> float:
        return float(self.floor + self.a / parameters**self.alpha + self.b / tokens**self.beta)

    def tokens_for(self, parameters: float, loss: float) -> float:
        """Returns the training tokens with which a model of this size reaches the loss; infinite if it never does."""
        rest = loss - self.floor - self.a / parameters**self.alpha
        return float((self.b / rest) ** (1 / self.beta)) if rest > 0 else math.inf

    def best_tokens(self, parameters: float) -> float:
        """Training tokens for which no other size reaches the same loss with fewer training FLOPs."""
        return float((self.beta * self.b * parameters**self.alpha / (self.alpha * self.a)) ** (1 / self.beta))

    def min_parameters(self, loss: float) -> float:
        """Parameters below which no training reaches that loss."""
        return float((self.a / (loss - self.floor)) ** (1 / self.alpha))


CHINCHILLA: Final = LossLaw()


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A model's life: parameters, training tokens, served tokens, and the FLOPs of training and serving."""

    parameters: float
    training_tokens: float
    served_tokens: float

    @property
    def training_flops(self) -> float:
        return 6 * self.parameters * self.training_tokens

    @property
    def serving_flops(self) -> float:
        return 2 * self.parameters * self.served_tokens

    @property
    def flops(self) -> float:
        return self.training_flops + self.serving_flops


def chinchilla(parameters: float, served_tokens: float = 0) -> Lifetime:
    """A model of that size, trained as is best without serving. Raises ParameterError for impossible numbers."""
    if not 1e3 <= parameters <= MAX_PARAMETERS or not 0 <= served_tokens < math.inf:
        raise ParameterError(
            "A model must have 1e3 to 1e15 parameters and serve at least 0 tokens.",
            param="parameters",
            hint="For example: --parameters 13e9 --served-tokens 2e12",
        )
    return Lifetime(parameters, CHINCHILLA.best_tokens(parameters), served_tokens)


def best_lifetime(loss: float, served_tokens: float) -> Lifetime:
    """The size and training that reach ``loss`` with the minimum FLOPs, serving included.

    Raises ParameterError if no model reaches that loss. The cost has one minimum over the logarithm of the size:
    smaller models need ever more training, and each token of larger ones costs more.
    """
    if not loss > CHINCHILLA.floor:
        raise ParameterError(
            f"No model reaches a loss of {loss:g} under this scaling law.",
            param="loss",
            hint=f"Its floor is {CHINCHILLA.floor:g}.",
        )
    low, high = math.log(CHINCHILLA.min_parameters(loss)), math.log(MAX_PARAMETERS)

    def cost(logarithm: float) -> float:
        size = math.exp(logarithm)
        return Lifetime(size, CHINCHILLA.tokens_for(size, loss), served_tokens).flops

    size = math.exp(_argmin(cost, low, high))
    return Lifetime(size, CHINCHILLA.tokens_for(size, loss), served_tokens)


def better_than(parameters: float, served_tokens: float) -> tuple[Lifetime, Lifetime]:
    """A model of that size as Chinchilla trains it, and the cheapest model with the same loss."""
    given = chinchilla(parameters, served_tokens)
    return given, best_lifetime(CHINCHILLA.loss(parameters, given.training_tokens), served_tokens)


def _argmin(cost: Callable[[float], float], low: float, high: float) -> float:
    """The minimum point of a function with only one (golden-section search, Kiefer 1953)."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    while high - low > 1e-9:
        if cost(left) <= cost(right):
            high, right, left = right, left, right - GOLDEN * (right - low)
        else:
            low, left, right = left, right, left + GOLDEN * (high - left)
    return (low + high) / 2


def lifetime_lines(given: Lifetime, best: Lifetime) -> list[str]:
    """Both models in words."""
    saved = 1 - best.flops / given.flops
    return [
        f"{given.served_tokens:.3g} tokens served",
        f"  as Chinchilla trains it   {_model(given)}",
        f"  cheapest of that loss     {_model(best)}: {saved:.1%} less",
    ]


def _model(life: Lifetime) -> str:
    return (
        f"{life.parameters / 1e9:,.1f} B parameters, {life.training_tokens / 1e9:,.0f} B tokens of training "
        f"({life.training_tokens / life.parameters:,.0f} a parameter), {life.flops:.3g} FLOPs"
    )


def lifetime_document(given: Lifetime, best: Lifetime) -> dict[str, Any]:
    """Both models as plain data."""
    return {
        "schema": "twofold.lifetime/1",
        "served_tokens": given.served_tokens,
        "chinchilla": _described(given),
        "best": _described(best),
        "saved_share": 1 - best.flops / given.flops,
    }


def _described(life: Lifetime) -> dict[str, float]:
    return {
        "parameters": life.parameters,
        "training_tokens": life.training_tokens,
        "training_flops": life.training_flops,
        "serving_flops": life.serving_flops,
    }
