"""exp, log, tanh and the activations made of them: float32 polynomials of multiply-adds and bit operations alone.

They call no mathematics library, so every processor gives the same bits. The largest errors, in units in the last place
of the true value if that is a normal number, are: exp 1.1, log 0.9, tanh and silu 2.5, gelu_tanh 3 for x ≥ −1; below
that, gelu_tanh is as precise as its exponent in float32 allows. A NaN gives a NaN.

Range reduction after Cody and Waite, "Software Manual for the Elementary Functions" (1980); the polynomials are our own
minimax fits (relative error below 2⁻²⁶), coefficients from the lowest power up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from twofold.backends.cpu.kernels.ir import I32, Kernel, Value

LOG2_E: Final = 1.4426950408889634
LN2: Final = 0.6931471824645996
"""ln 2 rounded to float32; ``LN2_REST`` is the difference."""
LN2_REST: Final = -1.9046542e-09
MAGIC: Final = 1.5 * 2.0**23
"""Adding it to a float32 below 2²² rounds that to an integer, which is then in the low bits."""

EXP_LOWEST: Final = -87.33654
"""Below it exp is not a normal float32, and the result is 0."""
EXP_HIGHEST: Final = 88.72283
"""Above it the result of exp is +inf."""
EXP_TAIL: Final = (0.49999997, 0.16666546, 0.041667435, 0.0083662719, 0.0013870696)
"""(exp(r) − 1 − r) / r² on |r| ≤ ln 2 / 2."""
EXP2_TAIL: Final = (0.69311362, 0.24020711, 0.055976883, 0.0097829122)
"""(2^r − 1) / r on |r| ≤ ½, for ``exp2_below_0``."""
LOG_TAIL: Final = (0.33333331, -0.2500082, 0.20001243, -0.16623413, 0.14201540, -0.13159551, 0.12762485, -0.076369405)
"""(log(1 + f) − f + f² / 2) / f³ on √½ − 1 ≤ f ≤ √2 − 1."""

TANH_IS_ONE: Final = 9.02
"""From here on tanh rounds to 1 in float32."""
SQRT_2_OVER_PI: Final = math.sqrt(2 / math.pi)
GELU_CUBIC: Final = 0.044715

ONE_BITS, SQRT_HALF_BITS, SIGN_BIT, FRACTION_BITS = 0x3F800000, 0x3F3504F3, -0x80000000, 23


def exp(k: Kernel, x: Value) -> Value:
    """e^x. exp(0) is 1; 0 if the true value is not a normal number (as for −inf), and +inf if it overflows."""
    shift, r = _reduce(k, x)
    power = _exp_minus_one(k, r) + 1.0
    ints = I32.of(x.type.lanes)
    scaled = (power.as_bits(ints) + shift).as_bits(x.type)
    scaled = k.select(x > EXP_HIGHEST, k.splat(x.type, math.inf), scaled)
    scaled = k.select(x < EXP_LOWEST, k.splat(x.type, 0.0), scaled)
    return k.select(x.equals(x), scaled, x)


def exp2_below_0(k: Kernel, x: Value, lowest: float) -> Value:
    """2^x for x ≤ 0, with a relative error below 4·10⁻⁶; 2^0 is 1. Below ``lowest``, at least −125, it is 0."""
    shifted = x + MAGIC
    r = x - (shifted - MAGIC)
    power = k.fma(r, _polynomial(k, r, EXP2_TAIL), k.splat(x.type, 1.0))
    ints = I32.of(x.type.lanes)
    scaled = power.as_bits(ints) + (shifted.as_bits(ints) << FRACTION_BITS)
    return k.select(x < lowest, k.splat(x.type, 0.0), scaled.as_bits(x.type))


def _reduce(k: Kernel, x: Value) -> tuple[Value, Value]:
    """x = n · ln 2 + r with |r| ≤ ln 2 / 2: n shifted into the exponent's place, and r."""
    shifted = k.fma(x, k.splat(x.type, LOG2_E), k.splat(x.type, MAGIC))
    n = shifted - MAGIC
    r = k.fma(n, k.splat(x.type, -LN2), x)
    r = k.fma(n, k.splat(x.type, -LN2_REST), r)
    return shifted.as_bits(I32.of(x.type.lanes)) << FRACTION_BITS, r


def _exp_minus_one(k: Kernel, r: Value) -> Value:
    return k.fma(r * r, _polynomial(k, r, EXP_TAIL), r)


def _polynomial(k: Kernel, x: Value, coefficients: Sequence[float]) -> Value:
    """Σ cᵢ · xⁱ, from the highest power down."""
    result = k.splat(x.type, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = k.fma(result, x, k.splat(x.type, coefficient))
    return result


def log(k: Kernel, x: Value) -> Value:
    """ln x for every float32: −inf for 0, +inf for +inf, NaN below 0."""
    ints = I32.of(x.type.lanes)
    small = x < 2.0**-126
    normal = k.select(small, x * 2.0**24, x)
    exponent_below = k.select(small, k.splat(x.type, -24.0), k.splat(x.type, 0.0))
    bits = normal.as_bits(ints)
    # Fractions are in √½ … √2, so the exponent changes at √½: shift that to 1 before the exponent is extracted.
    lifted = bits + (ONE_BITS - SQRT_HALF_BITS)
    exponent = (lifted >> FRACTION_BITS) - 127
    e = exponent.to(x.type) + exponent_below
    f = (bits - (exponent << FRACTION_BITS)).as_bits(x.type) - 1.0
    result = _log_of_parts(k, e, f)
    result = k.select(x > 0.0, result, k.splat(x.type, math.nan))
    result = k.select(x.equals(0.0), k.splat(x.type, -math.inf), result)
    return k.select(x.equals(math.inf), x, result)


def _log_of_parts(k: Kernel, e: Value, f: Value) -> Value:
    """e · ln 2 + ln(1 + f), smallest terms first."""
    square = f * f
    tail = (square * f) * _polynomial(k, f, LOG_TAIL)
    tail = k.fma(e, k.splat(f.type, LN2_REST), tail)
    tail = k.fma(square, k.splat(f.type, -0.5), tail)
    return k.fma(e, k.splat(f.type, LN2), f + tail)


def tanh(k: Kernel, x: Value) -> Value:
    """The hyperbolic tangent as m / (m + 2) of m = exp(2·|x|) − 1, with the sign of x."""
    ints = I32.of(x.type.lanes)
    sign = x.as_bits(ints) & SIGN_BIT
    size = k.fmin(k.splat(x.type, TANH_IS_ONE), k.abs(x))
    shift, r = _reduce(k, size + size)
    power = (shift + ONE_BITS).as_bits(x.type)
    m = k.fma(power, _exp_minus_one(k, r), power - 1.0)
    return ((m / (m + 2.0)).as_bits(ints) | sign).as_bits(x.type)


def silu(k: Kernel, x: Value) -> Value:
    """x / (1 + e^−x): Elfwing et al., arXiv:1702.03118."""
    return x / (exp(k, -x) + 1.0)


def gelu_tanh(k: Kernel, x: Value) -> Value:
    """½ · x · (1 + tanh u), u = √(2/π) · (x + 0.044715 · x³), as x / (1 + e^−2u): arXiv:1606.08415."""
    inner = k.fma(x * x, k.splat(x.type, -2 * SQRT_2_OVER_PI * GELU_CUBIC), k.splat(x.type, -2 * SQRT_2_OVER_PI))
    return x / (exp(k, x * inner) + 1.0)
