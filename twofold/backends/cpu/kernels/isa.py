"""Instruction sets: the operations that each of them implements with instructions of its own.

Vendors' instructions are used in this module only. Each operation has one meaning, and all instruction sets give the
same result:

    dot4(acc, codes, acts)   acc[i] + Σ_{j<4} codes[4i+j] · acts[j]   codes unsigned 8 bit, acts signed 8 bit in one i32
    look_up(table, codes)    table[codes[i]] for 64 codes below 16
    widen(h)                 float16 → float32, exact
    narrow(x)                float32 → float16, to nearest even, |x| ≤ 65504
    narrow2(x)               float32 → bfloat16, to nearest even, x 0 or a normal number; where there is ``dot2``
    dot_pairs(acc, a, b)     acc[i] + a[2i] · b[2i] + a[2i+1] · b[2i+1] of signed 16 bit; b pairs in i32 lanes
    dot2(acc, a, b)          fma(a[2i], b[2i], fma(a[2i+1], b[2i+1], acc[i])) of bfloat16 pairs; may be None
    pause()                  the core's hint that the thread spins

A tile unit multiplies small matrices beside the vector units. It has eight tile registers of up to 16 rows × 64 bytes;
``configure`` sets their shapes, and ``release`` must follow before the kernel returns:

    zero(t)                  t = 0
    load(t, at, stride)      the rows of t from memory, ``stride`` bytes apart
    multiply(s, a, c)        s[i, n] += Σ_{j} a[i, j] · c[j // 4, 4n + j % 4]   a signed 8 bit, c unsigned 8 bit, s i32
    store(t, at, stride)     the rows of t to memory
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from twofold.backends.cpu.kernels.ir import BF16, F16, F32, I8, I8X64, I16, I32, I64, VOID, Kernel, Type, Value
from twofold.core.errors import ParameterError, did_you_mean

TileShape = tuple[int, int]
"""Rows, and bytes of a row, of a tile register."""


@dataclass(frozen=True, slots=True)
class TileUnit:
    """The operations of a tile unit; a tile is the number of its register."""

    configure: Callable[[Kernel, Sequence[TileShape]], None]
    zero: Callable[[Kernel, int], None]
    load: Callable[[Kernel, int, Value, Value | int], None]
    multiply: Callable[[Kernel, int, int, int], None]
    store: Callable[[Kernel, int, Value, Value | int], None]
    release: Callable[[Kernel], None]


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set, and its implementation of each operation.

    needs      LLVM's names of the features that it requires
    cpu        LLVM's name of the processor that code is generated for; empty: this machine's
    registers  how many 16-lane float registers a tile may fill
    dot2       None: attention multiplies the numbers of bfloat16 pairs one after the other, as float32
    unpacks    whether linear layers of many rows unpack their weights into the cache first
    tile       multiplies 16 rows at a time where weights are unpacked; None: vector instructions do
    """

    name: str
    needs: frozenset[str]
    cpu: str
    registers: int
    dot4: Callable[[Kernel, Value, Value, Value, int], Value]
    look_up: Callable[[Kernel, tuple[int, ...], Value], Value]
    widen: Callable[[Kernel, Value], Value]
    narrow: Callable[[Kernel, Value], Value]
    dot_pairs: Callable[[Kernel, Value, Value, Value], Value]
    pause: Callable[[Kernel], None]
    dot2: Callable[[Kernel, Value, Value, Value], Value] | None = None
    narrow2: Callable[[Kernel, Value], Value] | None = None
    unpacks: bool = True
    tile: TileUnit | None = None


# -- dot4 -----------------------------------------------------------------------------------------------------------


def dot4_vnni(k: Kernel, acc: Value, codes: Value, acts: Value, _bits: int) -> Value:
    """AVX-512 VNNI: one instruction."""
    wide = k.splat(acc.type, acts)
    return k.call(acc.type, "llvm.x86.avx512.vpdpbusd.512", acc, codes, wide.as_bits(codes.type))


def dot4_avx2(k: Kernel, acc: Value, codes: Value, acts: Value, bits: int) -> Value:
    """AVX2: 16-bit sums of pairs, then sums of two of these. Codes of 8 bits are split so that no sum saturates."""
    if bits < 8:
        return acc + _pairs_avx2(k, codes, acts)
    low = _pairs_avx2(k, codes & 0x7F, acts)
    return acc + low + _pairs_avx2(k, codes & -0x80, acts)


def _pairs_avx2(k: Kernel, codes: Value, acts: Value) -> Value:
    """Σ of four products in each 32-bit lane, 256 bits at a time."""
    wide = k.splat(I32.of(8), acts).as_bits(I8.of(32))
    ones = k.splat(I16.of(16), 1)
    halves = []
    for first in (0, 32):
        half = k.shuffle(codes, range(first, first + 32))
        pairs = k.call(I16.of(16), "llvm.x86.avx2.pmadd.ub.sw", half, wide)
        halves.append(k.call(I32.of(8), "llvm.x86.avx2.pmadd.wd", pairs, ones))
    return k.shuffle(halves[0], range(16), halves[1])


def dot4_portable(k: Kernel, acc: Value, codes: Value, acts: Value, _bits: int) -> Value:
    """Four 32-bit multiplications a lane; any target."""
    quads = codes.as_bits(acc.type)
    for byte in range(4):
        code = (quads >> (8 * byte)) & 0xFF
        act = (acts << (24 - 8 * byte)).as_bits(I32)
        act = k.emit(I32, f"ashr i32 {act.name}, 24")
        acc = acc + code * k.splat(acc.type, act)
    return acc


# -- dot_pairs --------------------------------------------------------------------------------------------------------


def dot_pairs_vnni(k: Kernel, acc: Value, a: Value, b: Value) -> Value:
    """AVX-512 VNNI: one instruction."""
    return k.call(acc.type, "llvm.x86.avx512.vpdpwssd.512", acc, a, b.as_bits(a.type))


def dot_pairs_avx2(k: Kernel, acc: Value, a: Value, b: Value) -> Value:
    """AVX2: 256 bits at a time."""
    pairs = b.as_bits(a.type)
    low, high = (
        k.call(I32.of(8), "llvm.x86.avx2.pmadd.wd", *(k.shuffle(v, range(first, first + 16)) for v in (a, pairs)))
        for first in (0, 16)
    )
    return acc + k.shuffle(low, range(16), high)


def dot_pairs_portable(k: Kernel, acc: Value, a: Value, b: Value) -> Value:
    """Two 32-bit multiplications a lane; any target."""
    (a_low, a_high), (b_low, b_high) = (
        (k.shift_right_signed(v << 16, 16), k.shift_right_signed(v, 16)) for v in (a.as_bits(b.type), b)
    )
    return acc + a_low * b_low + a_high * b_high


# -- look_up ----------------------------------------------------------------------------------------------------------


def look_up_avx512(k: Kernel, table: tuple[int, ...], codes: Value) -> Value:
    return k.call(codes.type, "llvm.x86.avx512.pshuf.b.512", _repeated(k, codes.type, table), codes)


def look_up_avx2(k: Kernel, table: tuple[int, ...], codes: Value) -> Value:
    half = codes.type.of(32)
    values = _repeated(k, half, table)
    parts = [
        k.call(half, "llvm.x86.avx2.pshuf.b", values, k.shuffle(codes, range(first, first + 32))) for first in (0, 32)
    ]
    return k.shuffle(parts[0], range(64), parts[1])


def look_up_portable(k: Kernel, table: tuple[int, ...], codes: Value) -> Value:
    result = k.splat(codes.type, _signed(table[0]))
    for index in range(1, 16):
        result = k.select(codes.equals(index), k.splat(codes.type, _signed(table[index])), result)
    return result


def _repeated(k: Kernel, kind: Type, table: tuple[int, ...]) -> Value:
    return k.constants(kind, [_signed(v) for v in table] * (kind.lanes // 16))


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


# -- half precision ---------------------------------------------------------------------------------------------------


def widen_native(_k: Kernel, h: Value) -> Value:
    return h.to(F32.of(h.type.lanes))


def narrow_native(_k: Kernel, x: Value) -> Value:
    return x.to(F16.of(x.type.lanes))


def widen_portable(_k: Kernel, h: Value) -> Value:
    """Moves exponent and fraction into place, then scales by 2^112: exact, also for subnormal numbers."""
    ints, floats = I32.of(h.type.lanes), F32.of(h.type.lanes)
    bits = h.as_bits(I16.of(h.type.lanes)).to(ints, unsigned=True)
    magnitude = ((bits & 0x7FFF) << 13).as_bits(floats) * 2.0**112
    sign = (bits & 0x8000) << 16
    return (magnitude.as_bits(ints) | sign).as_bits(floats)


def narrow_portable(k: Kernel, x: Value) -> Value:
    """Rounds by adding a number whose last place is that of a float16 of x's size, then moves the bits into place."""
    lanes = x.type.lanes
    ints, floats = I32.of(lanes), F32.of(lanes)
    bits = x.as_bits(ints)
    magnitude = (bits & 0x7FFFFFFF).as_bits(floats)
    exponent = k.smax(magnitude.as_bits(ints) & 0x7F800000, 113 << 23)
    magic = (exponent + (13 << 23)).as_bits(floats)
    rounded = (magnitude + magic) - magic
    scaled = (rounded * 2.0**-112).as_bits(ints) >> 13
    sign = (bits & k.splat(ints, -0x80000000)) >> 16
    return (scaled | sign).to(I16.of(lanes)).as_bits(F16.of(lanes))


# -- bfloat16 ---------------------------------------------------------------------------------------------------------


def bfloat16_bits(x: Value) -> Value:
    """A finite float32 as the float32 bits of the nearest bfloat16, to even."""
    bits = x.as_bits(I32.of(x.type.lanes))
    return (bits + 0x7FFF + (bits >> 16 & 1)) & ~0xFFFF


def narrow2_avx512(k: Kernel, x: Value) -> Value:
    return k.call(BF16.of(16), "llvm.x86.avx512bf16.cvtneps2bf16.512", x)


def dot2_avx512(k: Kernel, acc: Value, a: Value, b: Value) -> Value:
    """AVX-512 BF16: one instruction. It takes numbers below 2⁻¹²⁶ for 0, and such sums become 0."""
    pairs = BF16.of(32)
    return k.call(acc.type, "llvm.x86.avx512bf16.dpbf16ps.512", acc, a.as_bits(pairs), b.as_bits(pairs))


# -- tiles ------------------------------------------------------------------------------------------------------------


def amx_config(shapes: Sequence[TileShape]) -> bytes:
    """The operand of LDTILECFG: palette 1, then bytes of a row from byte 16 and rows from byte 48.

    Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, "Programming with Intel AMX".
    """
    config = bytearray(64)
    config[0] = 1
    for tile, (rows, row_bytes) in enumerate(shapes):
        config[16 + 2 * tile] = row_bytes
        config[48 + tile] = rows
    return bytes(config)


def configure_amx(k: Kernel, shapes: Sequence[TileShape]) -> None:
    config = k.buffer(64)
    k.store(k.constants(I8X64, [_signed(byte) for byte in amx_config(shapes)]), config)
    k.call(VOID, "llvm.x86.ldtilecfg", config)


def zero_amx(k: Kernel, tile: int) -> None:
    k.call(VOID, "llvm.x86.tilezero", k.lift(tile, I8))


def load_amx(k: Kernel, tile: int, at: Value, stride: Value | int) -> None:
    k.call(VOID, "llvm.x86.tileloadd64", k.lift(tile, I8), at, k.lift(stride, I64))


def multiply_amx(k: Kernel, sums: int, acts: int, codes: int) -> None:
    k.call(VOID, "llvm.x86.tdpbsud", k.lift(sums, I8), k.lift(acts, I8), k.lift(codes, I8))


def store_amx(k: Kernel, tile: int, at: Value, stride: Value | int) -> None:
    k.call(VOID, "llvm.x86.tilestored64", k.lift(tile, I8), at, k.lift(stride, I64))


def release_amx(k: Kernel) -> None:
    """Without it the system would save 8 KiB of tiles at every switch of threads."""
    k.call(VOID, "llvm.x86.tilerelease")


# -- spinning ---------------------------------------------------------------------------------------------------------


def pause_x86(k: Kernel) -> None:
    k.call(VOID, "llvm.x86.sse2.pause")


def pause_none(_k: Kernel) -> None:
    """No hint: the thread spins at full speed."""


NO_FEATURES: Final = frozenset[str]()
NO_REASONS: Final[Mapping[str, str]] = {}
X86_V3 = frozenset({"avx2", "fma", "f16c", "bmi2"})
AVX512 = Isa(
    name="avx512",
    needs=X86_V3 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"},
    cpu="",
    registers=32,
    dot4=dot4_vnni,
    look_up=look_up_avx512,
    widen=widen_native,
    narrow=narrow_native,
    dot_pairs=dot_pairs_vnni,
    pause=pause_x86,
)
AVX512_BF16 = replace(
    AVX512, name="avx512_bf16", needs=AVX512.needs | {"avx512bf16"}, dot2=dot2_avx512, narrow2=narrow2_avx512
)
TILE_FEATURES: Final = frozenset({"amx-tile", "amx-int8"})
"""Features that a process may use only with the system's permission (``host.machine.request_tiles``)."""
AMX = TileUnit(configure_amx, zero_amx, load_amx, multiply_amx, store_amx, release_amx)
TABLES: tuple[Isa, ...] = (
    replace(AVX512_BF16, name="amx", needs=AVX512_BF16.needs | TILE_FEATURES, tile=AMX),
    AVX512_BF16,
    AVX512,
    Isa(
        "avx2", X86_V3, "x86-64-v3", 8, dot4_avx2, look_up_avx2, widen_native, narrow_native, dot_pairs_avx2, pause_x86
    ),
    Isa(
        "portable",
        NO_FEATURES,
        "generic",
        8,
        dot4_portable,
        look_up_portable,
        widen_portable,
        narrow_portable,
        dot_pairs_portable,
        pause_none,
    ),
)
"""The fastest first. A machine can run those whose ``needs`` it has."""


PACKED_ONLY: Final = ("znver",)
"""Processors, by the beginning of LLVM's names, on which tiles straight from packed panels are faster for any number of
rows: 1.1 to 1.25 times as fast on Zen 4 with AVX-512."""


def tuned(isa: Isa, cpu: str) -> Isa:
    """``isa`` as it is fastest on a processor, by LLVM's name of it. Results do not depend on it."""
    packed_only = isa.tile is None and isa.needs >= AVX512.needs and cpu.startswith(PACKED_ONLY)
    return replace(isa, unpacks=False) if packed_only else isa


def obstacle(isa: Isa, features: frozenset[str], refused: Mapping[str, str] = NO_REASONS) -> str | None:
    """Why a machine with ``features`` cannot run a table, or None. ``refused``: reasons why it lacks some of them."""
    missing = isa.needs - features
    absent = sorted(missing - refused.keys())
    if absent:
        return f"the processor lacks {', '.join(absent)}"
    reasons = sorted({refused[name] for name in missing})
    return f"the system refuses {', '.join(sorted(missing))} ({'; '.join(reasons)})" if missing else None


def choose(features: frozenset[str], forced: str | None = None, refused: Mapping[str, str] = NO_REASONS) -> Isa:
    """The fastest instruction set for a machine with ``features``, or the one named ``forced``.

    Raises ParameterError if that name is unknown, or if the machine lacks features that it needs.
    """
    if forced is None:
        return next(isa for isa in TABLES if isa.needs <= features)
    isa = next((isa for isa in TABLES if isa.name == forced), None)
    if isa is None:
        names = [isa.name for isa in TABLES]
        hint = did_you_mean(forced, names)
        raise ParameterError(f"There is no instruction set named {forced!r}.", param="isa", hint=hint)
    reason = obstacle(isa, features, refused)
    if reason is not None:
        raise ParameterError(
            f"This machine cannot run {forced} kernels: {reason}.",
            param="isa",
            hint="Omit isa to use the best available.",
        )
    return isa
