"""Where one cost outgrows another: of attention, of keys and values, of arithmetic; and what a price step implies.

With P active parameters of the layers, W bytes of weights, kv bytes of K and V a token, ridge = peak / bandwidth:

    S*     P / (L · n_q · d)                        prompt whose attention costs as much as its matrices
    n*     (η_c · peak) / (η_m · bandwidth) · b/2   rows above which arithmetic limits a step of the matrices
    B·c    W / kv                                   tokens in the batch above which K and V outweigh the weights
    c*     2 · P / (ridge · kv)                     context whose reading takes as long as a row's matrices
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from twofold.core.errors import ParameterError
from twofold.core.model import Attention, GroupedAttention, ModelSpec, RecurrentAttention
from twofold.core.values import Arithmetic, ValueFormat
from twofold.planner.count.memory import kv_bytes_per_token, parameters, weight_bytes
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.machines.machine import Machine


def attention_crossover(shape: ModelSpec) -> float:
    """S*: tokens of a prompt whose attention costs as many FLOPs as its matrices, without windows."""
    return parameters(shape).active / sum(count * _mean_width(layer.attention) for count, layer in shape.runs)


def _mean_width(attention: Attention) -> float:
    """n_q · d; of latent attention, which whole prompts make in its expanded form, the mean of keys' and values'."""
    if isinstance(attention, RecurrentAttention):
        return 0
    if isinstance(attention, GroupedAttention):
        return attention.query_size
    return (attention.query_size + attention.output_size) / 2


def knee_rows(
    machine: Machine, weights: ValueFormat, *, compute_efficiency: float = 1.0, memory_efficiency: float = 1.0
) -> float:
    """n*: rows of a step above which arithmetic limits its matrices, not reading the weights."""
    peak = compute_efficiency * machine.peak(weights.arithmetic)
    return peak / (memory_efficiency * machine.bandwidth) * weights.bytes_per_value / 2


def batch_tokens_crossover(shape: ModelSpec, setup: Setting = PLAIN) -> float:
    """B·c: tokens in the batch above which keys and values are more bytes than the weights."""
    return weight_bytes(shape, setup) / kv_bytes_per_token(shape, setup)


def context_crossover(
    shape: ModelSpec, machine: Machine, arithmetic: Arithmetic = "bf16", setup: Setting = PLAIN
) -> float:
    """c*: context whose keys and values take as long to read as the matrices of one row to compute."""
    return 2 * parameters(shape).active / (machine.ridge(arithmetic) * kv_bytes_per_token(shape, setup))


def implied_kv(parameters: float, ridge: float, above: int) -> tuple[float, float]:
    """Bytes of keys and values a token, low and high, that a price step at ``above`` tokens implies.

    For so many active parameters P on a machine with that ridge (FLOP/B), if a provider puts its step at the context c
    where reading the cache takes as long as computing a token's matrices,

        2 · P / peak = c · kv / bandwidth      and so kv = 2 · P / (ridge · c) bytes a token
        P / peak     = c · kv / bandwidth      or kv = P / (ridge · c), if P counts multiply-adds as one operation

    Both readings are published, and a step may have other reasons: P and the machine are guesses, and a round number is
    suspect. The result is a range, not a measurement.
    """
    if parameters <= 0 or ridge <= 0 or above <= 0:
        raise ParameterError(
            "Parameters, ridge and the cliff must be above 0.", param="above", hint="As 70e9, 295 and 200000."
        )
    return parameters / (ridge * above), 2 * parameters / (ridge * above)


@dataclass(frozen=True, slots=True)
class Crossovers:
    """Crossovers of a model on a machine, in tokens.

    attention   S*: of a prompt, attention above the matrices
    batch       B·c: in the batch, bytes of keys and values above those of the weights
    context     c*: of a sequence, reading it above computing a row's matrices
    cliff       a price step, and the bytes of keys and values a token that it implies, low and high
    """

    model: str
    machine: str
    kv_token: int
    attention: float
    batch: float
    context: float
    cliff: int | None
    implied: tuple[float, float] | None

    @classmethod
    def of(cls, shape: ModelSpec, machine: Machine, setup: Setting, cliff: int | None = None) -> Self:
        """Those of a model; the cliff is explained by its active parameters and this machine."""
        arithmetic = setup.activations.arithmetic
        active = parameters(shape).active
        return cls(
            model=shape.name,
            machine=machine.name,
            kv_token=kv_bytes_per_token(shape, setup),
            attention=attention_crossover(shape),
            batch=batch_tokens_crossover(shape, setup),
            context=context_crossover(shape, machine, arithmetic, setup),
            cliff=cliff,
            implied=None if cliff is None else implied_kv(active, machine.ridge(arithmetic), cliff),
        )

    def lines(self) -> list[str]:
        """Lines for a terminal."""
        found = [
            f"{self.model} on {self.machine}: {self.kv_token:,} bytes of keys and values a token",
            f"  attention costs more than the matrices in prompts above {self.attention:,.0f} tokens",
            f"  keys and values outweigh the weights above {self.batch:,.0f} tokens in the batch",
            f"  reading them takes longer than computing a token above {self.context:,.0f} tokens of context",
        ]
        if self.implied is not None:
            low, high = self.implied
            found += [
                f"  a price step at {self.cliff:,} tokens would mean {low:,.0f} bytes a token, or {high:,.0f}: "
                "a multiply-add is one operation or two,",
                "  both are published, and a step may have other reasons",
            ]
        return found

    def document(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": "twofold.crossover/1",
            "model": self.model,
            "machine": self.machine,
            "kv_bytes_a_token": self.kv_token,
            "attention_above_matrices_tokens": self.attention,
            "kv_above_weights_batch_tokens": self.batch,
            "kv_above_compute_context_tokens": self.context,
            "cliff": self.cliff,
            "implied_kv_bytes_a_token": None if self.implied is None else list(self.implied),
        }
