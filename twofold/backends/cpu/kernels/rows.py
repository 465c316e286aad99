"""Kernels over single rows: norms, quantisation, gated activations, additions, selections, soft caps.

Rows are float32, padded with zeros to a multiple of 16. Sums run over 16 lanes, ascending; one tree folds the lanes.
"""

from __future__ import annotations

from typing import Final, Literal

from twofold.backends.cpu.kernels.ir import F32, F32X16, I8X16, I32, I32X16, I64, Kernel, Value
from twofold.backends.cpu.kernels.layout import ACT_SUMS, CHUNK, ActSum
from twofold.backends.cpu.kernels.math import gelu_tanh, silu, tanh
from twofold.backends.cpu.kernels.signature import KernelArguments, StepFields, kernel, step_pointer
from twofold.core.model import Activation

LANES: Final = 16
NEGLIGIBLE: Final = 1e-30
"""Groups with activations up to this are 0: near float32's smallest numbers 127 / amax would be infinite."""

ROW_FIELDS: Final = (
    "x", "x_stride", "y", "y_stride", "out", "out_stride", "acts", "act_stride", "sums", "weight", "width", "eps",
)  # fmt: skip
"""Arguments of the row kernels, 8 bytes each. Strides are in bytes; ``eps`` holds the bits of a float32.

x, y       inputs (y: the residual of a norm, the ``up`` of a gate)
out, acts  the result as float32 and as quantised activations; one of them may be null
sums       the mask of the activations' sums (``layout.ActRow``)
"""
ROW_POINTERS: Final = frozenset({"x", "y", "out", "acts", "weight"})


def float_bits(field: Value) -> Value:
    """The float32 whose bits are the low half of an 8-byte field."""
    return field.to(I32).as_bits(F32)


def sum_of_squares(k: Kernel, x: Value, width: Value | int) -> Value:
    """Σ x² over a padded row, a scalar."""
    total = k.var(F32X16, 0.0)
    for i in k.range(0, width, LANES):
        v = k.load(F32X16, x + i * 4)
        total.set(k.fma(v, v, total.get()))
    return k.reduce_tree(total.get(), "add")


def reciprocal_rms(k: Kernel, x: Value, width: Value, eps: Value) -> Value:
    """1 / sqrt(mean(x²) + eps), a scalar."""
    mean = sum_of_squares(k, x, width) / width.to(F32)
    return k.splat(F32, 1.0) / k.sqrt(mean + eps)


# -- quantised activations --------------------------------------------------------------------------------------------


def quantise_row(k: Kernel, x: Value, acts: Value, width: Value, sums: Value) -> None:
    """float32 → int8 in groups of 32: codes, scales and the sums in the mask ``sums`` (see ``layout.ActRow``).

    scale = amax / 127, code = round_to_even(x · (127 / amax)); 0 where amax is negligible.
    """
    chunks = width >> CHUNK.bit_length() - 1
    regions = _sum_regions(acts + width + chunks * 4, chunks, sums)
    for chunk in k.range(0, chunks):
        codes, at = acts + chunk * CHUNK, x + chunk * (4 * CHUNK)
        low, high = k.load(F32X16, at), k.load(F32X16, at + 64)
        amax = k.reduce_tree(k.fmax(k.abs(low), k.abs(high)), "fmax")
        scale = amax * k.splat(F32, 1 / 127)
        inverse = k.select(amax > NEGLIGIBLE, k.splat(F32, 127.0) / amax, k.splat(F32, 0.0))
        halves = [_quantise_half(k, v, inverse, codes + LANES * part) for part, v in enumerate((low, high))]
        k.store(scale, acts + width + chunk * 4)
        for (group, offset), (wanted, region) in regions.items():
            totals = halves if group == LANES else [halves[0] + halves[1]]
            with k.when(wanted):
                for part, total in enumerate(totals):
                    number = total * -offset if offset else total.to(F32) * scale
                    k.store(number, region + (chunk * len(totals) + part) * 4)


def _sum_regions(first: Value, chunks: Value, sums: Value) -> dict[ActSum, tuple[Value, Value]]:
    """Of each sum: whether the mask ``sums`` has it, and the address of its region; the first is at ``first``."""
    regions = {}
    for index, each in enumerate(ACT_SUMS):
        wanted = sums >> index & 1
        regions[each] = wanted.equals(1), first
        first = first + chunks * (CHUNK // each[0] * 4) * wanted
    return regions


def _quantise_half(k: Kernel, v: Value, inverse: Value, target: Value) -> Value:
    """Sixteen codes; their sum."""
    codes = k.round_even(v * k.splat(F32X16, inverse)).to(I32X16)
    k.store(codes.to(I8X16), target)
    return k.reduce_tree(codes, "add")


def _emit_row(k: Kernel, a: KernelArguments, row: Value, width: Value, result: Value) -> None:
    """Quantises a finished row if the call asks for it."""
    with k.when(k.is_set(a["acts"])):
        quantise_row(k, result, a["acts"] + row * a["act_stride"], width, a["sums"])


def _result_at(k: Kernel, a: KernelArguments, row: Value) -> Value:
    """The address of the float32 result: the output, or scratch if only its quantised form is needed."""
    return k.select(k.is_set(a["out"]), a["out"] + row * a["out_stride"], k.args[4])


def quantise_kernel() -> Kernel:
    """acts = quantised x."""
    with kernel("quantise", ROW_FIELDS, ROW_POINTERS) as (k, a, units):
        for row in units:
            x, acts = a["x"] + row * a["x_stride"], a["acts"] + row * a["act_stride"]
            quantise_row(k, x, acts, a["width"], a["sums"])
    return k


# -- norm, add, gate --------------------------------------------------------------------------------------------------


def norm_kernel() -> Kernel:
    """out = (y +) x / rms(x) · weight, as float32 and/or quantised."""
    with kernel("rms_norm", ROW_FIELDS, ROW_POINTERS) as (k, a, units):
        width, weight = a["width"], a["weight"]
        for row in units:
            x, y = a["x"] + row * a["x_stride"], a["y"] + row * a["y_stride"]
            out = _result_at(k, a, row)
            factor = k.splat(F32X16, reciprocal_rms(k, x, width, float_bits(a["eps"])))
            with k.when(k.is_set(a["y"]).equals(0)):
                for i in k.range(0, width, LANES):
                    k.store(_normed(k, x, weight, factor, i), out + i * 4)
            with k.when(k.is_set(a["y"])):
                for i in k.range(0, width, LANES):
                    k.store(k.load(F32X16, y + i * 4) + _normed(k, x, weight, factor, i), out + i * 4)
            _emit_row(k, a, row, width, out)
    return k


def _normed(k: Kernel, x: Value, weight: Value, factor: Value, i: Value) -> Value:
    return k.load(F32X16, x + i * 4) * factor * k.load(F32X16, weight + i * 4)


def gated_kernel(activation: Activation) -> Kernel:
    """out = activation(x) · y, as float32 and/or quantised."""
    with kernel(f"gated_{activation}", ROW_FIELDS, ROW_POINTERS) as (k, a, units):
        curve = {"silu": silu, "gelu_tanh": gelu_tanh}[activation]
        for row in units:
            x, y = a["x"] + row * a["x_stride"], a["y"] + row * a["y_stride"]
            out = _result_at(k, a, row)
            for i in k.range(0, a["width"], LANES):
                k.store(curve(k, k.load(F32X16, x + i * 4)) * k.load(F32X16, y + i * 4), out + i * 4)
            _emit_row(k, a, row, a["width"], out)
    return k


def add_kernel() -> Kernel:
    """out = x + y."""
    with kernel("add", ROW_FIELDS, ROW_POINTERS) as (k, a, units):
        for row in units:
            x, y, out = (a[n] + row * a[f"{n}_stride"] for n in ("x", "y", "out"))
            for i in k.range(0, a["width"], LANES):
                k.store(k.load(F32X16, x + i * 4) + k.load(F32X16, y + i * 4), out + i * 4)
    return k


def select_kernel(wanted: Literal[StepFields.LOGIT_LIST, StepFields.HIDDEN_LIST]) -> Kernel:
    """out[j] = x[wanted[j]]: the rows that one of the step's lists names."""
    with kernel(f"select_by_{wanted.name.lower()}", ROW_FIELDS, ROW_POINTERS) as (k, a, units):
        rows = step_pointer(k, wanted)
        for j in units:
            row = k.load(I32, rows + j * 4).to(I64)
            x, out = a["x"] + row * a["x_stride"], a["out"] + j * a["out_stride"]
            for i in k.range(0, a["width"], LANES):
                k.store(k.load(F32X16, x + i * 4), out + i * 4)
    return k


def softcap_kernel() -> Kernel:
    """out = cap · tanh(x / cap); ``eps`` holds the cap."""
    with kernel("softcap", ROW_FIELDS, ROW_POINTERS) as (k, a, units):
        cap = k.splat(F32X16, float_bits(a["eps"]))
        for row in units:
            x, out = a["x"] + row * a["x_stride"], a["out"] + row * a["out_stride"]
            for i in k.range(0, a["width"], LANES):
                k.store(tanh(k, k.load(F32X16, x + i * 4) / cap) * cap, out + i * 4)
    return k
