"""Embedding lookup in the file's own rows, for any format.

A value is the one that GGML defines for its format, with each product and each sum rounded to float32 (never fused),
times the embedding's scale:

    offset formats    d · (code − offset)                       Q4_0, Q5_0, Q8_0, IQ4_NL (code looked up)
    "_1" formats      d · code + m                              Q4_1, Q5_1
    K-quants          (d · sc) · (code − offset)                Q3_K, Q6_K
                      (d · sc) · code − (dmin · m)              Q2_K, Q4_K, Q5_K
    float formats     the value                                 F32, F16, BF16
"""

from __future__ import annotations

from typing import Final

from twofold.backends.cpu.kernels.ir import F16, F32, F32X16, I8, I8X64, I32, I32X16, I64, Kernel, Value
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.layout import CHUNK, PACKINGS, Packing
from twofold.backends.cpu.kernels.linear import load_floats
from twofold.backends.cpu.kernels.raw import RAW
from twofold.backends.cpu.kernels.rows import float_bits
from twofold.backends.cpu.kernels.signature import StepFields, kernel, step_pointer
from twofold.core.values import BY_NAME

EMBED_FIELDS: Final = ("source", "row_bytes", "blocks", "out", "out_stride", "scale")
"""Arguments, 8 bytes each: the file's rows, ``row_bytes`` apart and ``blocks`` long (values, in a float format);
float32 rows, ``out_stride`` bytes apart; the bits of a float32. Token ids are the step's; units are its rows."""
POINTERS: Final = frozenset({"source", "out"})
LANES: Final = 16


def embed_kernel(isa: Isa, name: str) -> Kernel:
    """out[row] = scale · table[token of row] for rows ``begin … end``, from a table in format ``name``."""
    with kernel(f"embed_{name}", EMBED_FIELDS, POINTERS) as (k, f, units):
        tokens = step_pointer(k, StepFields.TOKENS)
        scale = float_bits(f["scale"])
        for row in units:
            token = k.load(I32, tokens + row * 4).to(I64)
            source, out = f["source"] + token * f["row_bytes"], f["out"] + row * f["out_stride"]
            if name in PACKINGS:
                _integer_row(k, isa, PACKINGS[name], source, f["blocks"], out, scale)
            else:
                _float_row(k, isa, name, source, f["blocks"], out, scale)
    return k


def _float_row(k: Kernel, isa: Isa, name: str, source: Value, count: Value, out: Value, scale: Value) -> None:
    size = BY_NAME[name].block_bytes
    whole = count // LANES * LANES
    for i in k.range(0, whole, LANES):
        k.store(load_floats(k, isa, name, LANES, source + i * size) * k.splat(F32X16, scale), out + i * 4)
    for i in k.range(whole, count):
        k.store(load_floats(k, isa, name, 1, source + i * size) * scale, out + i * 4)


def _integer_row(k: Kernel, isa: Isa, packing: Packing, source: Value, blocks: Value, out: Value, scale: Value) -> None:
    quads_of = RAW[packing.name].quads
    factor = k.splat(F32.of(4), scale)
    for index in k.range(0, blocks):
        block = source + index * BY_NAME[packing.name].block_bytes
        numbers = _Numbers(k, isa, packing, block)
        for chunk in range(packing.block // CHUNK):
            for quad, word in enumerate(quads_of(k, block, chunk)):
                at = chunk * CHUNK + quad * 4
                value = numbers.value(at // packing.group, _codes(k, isa, packing, word))
                k.store(value * factor, out + index * (packing.block * 4) + at * 4)


def _codes(k: Kernel, isa: Isa, packing: Packing, word: Value) -> Value:
    """Four codes as float32, minus the format's offset."""
    if packing.lookup is not None:
        table = tuple(v + packing.offset for v in packing.lookup)
        looked_up = isa.look_up(k, table, k.splat(I32X16, word).as_bits(I8X64))
        codes = k.shuffle(looked_up, range(4))
    else:
        codes = word.as_bits(I8.of(4))
    wide = codes.to(I32.of(4), unsigned=True)
    return (wide - packing.offset if packing.minimum == "offset" else wide).to(F32.of(4))


class _Numbers:
    """The scales and minima of one block as float32; each is read once."""

    def __init__(self, k: Kernel, isa: Isa, packing: Packing, block: Value) -> None:
        form = RAW[packing.name]
        self._k = k
        self._d = isa.widen(k, k.load(F16, block + form.half_scale))
        self._m = None if form.half_minimum is None else isa.widen(k, k.load(F16, block + form.half_minimum))
        groups = range(packing.block // packing.group)
        self._groups = [self._group(packing, block, group) for group in groups]

    def _group(self, packing: Packing, block: Value, group: int) -> tuple[Value, Value | None]:
        """The scale, and the number that is added to the product."""
        small = RAW[packing.name].small
        if small is None:
            return self._d, self._m
        scale, minimum = small(self._k, block, group)
        if packing.scale == "u4u4":
            scale, minimum = scale & 15, scale >> 4
        d = self._d * scale.to(I32, unsigned=packing.scale != "i8").to(F32)
        if minimum is None or self._m is None:
            return d, None
        return d, -(self._m * minimum.to(I32, unsigned=True).to(F32))

    def value(self, group: int, codes: Value) -> Value:
        scale, added = self._groups[group]
        product = codes * self._k.splat(codes.type, scale)
        return product if added is None else product + self._k.splat(codes.type, added)
