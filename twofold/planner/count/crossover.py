"""Where one cost outgrows another: of attention, of keys and values, of computing.

With P active parameters of the layers, W bytes of weights, kv bytes of K and V a token, ridge = peak / bandwidth:

    S*     P / (L · n_q · d)                        prompt whose attention costs as much as its matrices
    n*     (η_c · peak) / (η_m · bandwidth) · b/2   rows from which a step of the matrices is bound by arithmetic
    B·c    W / kv                                   tokens in the batch from which K and V outweigh the weights
    c*     2 · P / (ridge · kv)                     context whose reading takes as long as a row's matrices
"""

from __future__ import annotations

from twofold.core.model import Attention, GroupedAttention, ModelSpec, RecurrentAttention
from twofold.core.values import Arithmetic, ValueFormat
from twofold.planner.count.memory import kv_bytes_per_token, parameters, weight_bytes
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.machines.machine import Machine


def attention_crossover(shape: ModelSpec) -> float:
    """S*: tokens of a prompt whose attention costs as many FLOPs as its matrices, if no window hid any."""
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
    """n*: rows of a step from which its matrices are bound by arithmetic and no longer by reading the weights."""
    peak = compute_efficiency * machine.peak(weights.arithmetic)
    return peak / (memory_efficiency * machine.bandwidth) * weights.bytes_per_value / 2


def batch_tokens_crossover(shape: ModelSpec, how: Setting = PLAIN) -> float:
    """B·c: tokens in the batch from which keys and values are more bytes than the weights."""
    return weight_bytes(shape, how) / kv_bytes_per_token(shape, how)


def context_crossover(
    shape: ModelSpec, machine: Machine, arithmetic: Arithmetic = "bf16", how: Setting = PLAIN
) -> float:
    """c*: context whose keys and values take as long to read as the matrices of one row to compute."""
    return 2 * parameters(shape).active / (machine.ridge(arithmetic) * kv_bytes_per_token(shape, how))
