"""A small language for kernels, which writes LLVM IR.

``Kernel`` collects the text of one function. A ``Value`` is an SSA value with its type and its kernel, so Python's
operators emit instructions. Python's own loops unroll at generation time; ``for i in k.range(…)`` is a loop in machine
code. A ``Var`` is a register that changes: a stack slot, which LLVM turns into a register.

    k = Kernel("axpy", [("x", PTR), ("y", PTR), ("n", I64)])
    x, y, n = k.args
    for i in k.range(0, n, 16):
        k.store(k.fma(k.load(F32X16, x + i * 4), k.splat(F32X16, 2.0), k.load(F32X16, y + i * 4)), y + i * 4)
    k.ret()

Floating-point operations are exactly those that are written: no fast-math flag, no reassociation, and ``fma`` is fused
on every target.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Type:
    """An LLVM first-class type: a scalar, or a vector of ``lanes`` of them."""

    scalar: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.scalar if self.lanes == 1 else f"<{self.lanes} x {self.scalar}>"

    @property
    def is_float(self) -> bool:
        return self.scalar in FLOAT_BITS

    @property
    def bits(self) -> int:
        """Bits of one lane."""
        return 64 if self.scalar == "ptr" else FLOAT_BITS.get(self.scalar) or int(self.scalar[1:])

    @property
    def mangled(self) -> str:
        """The type's spelling in the name of an overloaded intrinsic."""
        letter = f"f{self.bits}" if self.is_float else self.scalar
        return letter if self.lanes == 1 else f"v{self.lanes}{letter}"

    def of(self, lanes: int) -> Type:
        return Type(self.scalar, lanes)


FLOAT_BITS: Final = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
VOID, PTR, I1, I8, I16, I32, I64 = (Type(s) for s in ("void", "ptr", "i1", "i8", "i16", "i32", "i64"))
F16, BF16, F32, F64 = Type("half"), Type("bfloat"), Type("float"), Type("double")
F32X16, I32X16, I16X16, I16X32, I8X64, I8X16 = F32.of(16), I32.of(16), I16.of(16), I16.of(32), I8.of(64), I8.of(16)
F16X16 = F16.of(16)


def literal(kind: Type, value: float) -> str:
    """The text of a constant of the scalar type ``kind``; floats are given by their exact bits."""
    if not kind.is_float:
        return str(int(value))
    if kind.scalar == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if kind.scalar == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _binary(integer: str, floating: str = "") -> Callable[[Value, Value | float], Value]:
    """An operator, by its LLVM instructions for integers and for floats; "" if LLVM has no such instruction."""

    def emit(left: Value, other: Value | float) -> Value:
        right = left.kernel.lift(other, left.type)
        op = floating if left.type.is_float else integer
        if not op or right.type != left.type:
            raise TypeError(f"no {integer} of {left.type} and {right.type}")
        return left.kernel.emit(left.type, f"{op} {left.type} {left.name}, {right.name}")

    return emit


def _comparison(order: str) -> Callable[[Value, Value | float], Value]:
    """A comparison: LLVM's condition, without its prefix for floats or signed integers."""

    def emit(left: Value, other: Value | float) -> Value:
        right = left.kernel.lift(other, left.type)
        op = f"fcmp o{order}" if left.type.is_float else f"icmp {order if order == 'eq' else f's{order}'}"
        return left.kernel.emit(I1.of(left.type.lanes), f"{op} {left.type} {left.name}, {right.name}")

    return emit


_add: Final = _binary("add", "fadd")


class Value:
    """An SSA value. Integers wrap and compare as signed; ``>>`` shifts zeros in; ``ptr + n`` adds n bytes."""

    __slots__ = ("kernel", "name", "type")

    def __init__(self, kernel: Kernel, kind: Type, name: str) -> None:
        self.kernel = kernel
        self.type = kind
        self.name = name

    def __add__(self, other: Value | float) -> Value:
        if self.type == PTR:
            offset = self.kernel.lift(other, I64)
            return self.kernel.emit(PTR, f"getelementptr i8, ptr {self.name}, i64 {offset.name}")
        return _add(self, other)

    __sub__ = _binary("sub", "fsub")
    __mul__ = _binary("mul", "fmul")
    __truediv__ = _binary("", "fdiv")
    __floordiv__ = _binary("sdiv")
    __mod__ = _binary("srem")
    __and__ = _binary("and")
    __or__ = _binary("or")
    __xor__ = _binary("xor")
    __lshift__ = _binary("shl")
    __rshift__ = _binary("lshr")
    __lt__ = _comparison("lt")
    __le__ = _comparison("le")
    __gt__ = _comparison("gt")
    __ge__ = _comparison("ge")
    equals = _comparison("eq")

    def __neg__(self) -> Value:
        if self.type.is_float:
            return self.kernel.emit(self.type, f"fneg {self.type} {self.name}")
        return self.kernel.splat(self.type, 0) - self

    def as_bits(self, kind: Type) -> Value:
        """The same bits under another type of the same size."""
        return self.kernel.emit(kind, f"bitcast {self.type} {self.name} to {kind}")

    def to(self, kind: Type, *, unsigned: bool = False) -> Value:
        """Converted by value: widened, narrowed, or between integer and float (rounded to nearest, or truncated)."""
        return self.kernel.convert(self, kind, unsigned=unsigned)


class Var:
    """A register that may be assigned more than once."""

    __slots__ = ("kernel", "slot", "type")

    def __init__(self, kernel: Kernel, kind: Type, slot: Value) -> None:
        self.kernel = kernel
        self.type = kind
        self.slot = slot

    def get(self) -> Value:
        return self.kernel.load(self.type, self.slot)

    def set(self, value: Value | float) -> None:
        self.kernel.store(self.kernel.lift(value, self.type), self.slot)


class Kernel:
    """The text of one LLVM function that returns nothing."""

    def __init__(self, name: str, parameters: Sequence[tuple[str, Type]]) -> None:
        self.name = name
        self._parameters = tuple(parameters)
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._declarations: dict[str, str] = {}
        self._count = 0
        self.args = [Value(self, kind, f"%{arg}") for arg, kind in parameters]

    # -- values ---------------------------------------------------------------------------------------------------

    def emit(self, kind: Type, text: str) -> Value:
        """Appends an instruction and names its result."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {text}")
        return Value(self, kind, name)

    def lift(self, value: Value | float, kind: Type) -> Value:
        """A Python number as a constant of type ``kind``; a Value as it is."""
        return value if isinstance(value, Value) else self.splat(kind, value)

    def splat(self, kind: Type, value: Value | float) -> Value:
        """Every lane equal to ``value``."""
        if isinstance(value, Value):
            return value if kind.lanes == 1 else self._broadcast(kind, value)
        text = literal(kind.of(1), value)
        return Value(self, kind, text if kind.lanes == 1 else f"splat ({kind.scalar} {text})")

    def _broadcast(self, kind: Type, value: Value) -> Value:
        one = self.emit(kind, f"insertelement {kind} poison, {value.type} {value.name}, i64 0")
        zeros = f"<{kind.lanes} x i32> zeroinitializer"
        return self.emit(kind, f"shufflevector {kind} {one.name}, {kind} poison, {zeros}")

    def constants(self, kind: Type, values: Sequence[float]) -> Value:
        """A vector of the given lanes."""
        lanes = ", ".join(f"{kind.scalar} {literal(kind.of(1), v)}" for v in values)
        return Value(self, kind, f"<{lanes}>")

    def var(self, kind: Type, initial: Value | float) -> Var:
        self._count += 1
        name = f"%s{self._count}"
        self._slots.append(f"  {name} = alloca {kind}")
        variable = Var(self, kind, Value(self, PTR, name))
        variable.set(initial)
        return variable

    def buffer(self, size: int) -> Value:
        """``size`` bytes of the stack, aligned to a cache line."""
        self._count += 1
        name = f"%b{self._count}"
        self._slots.append(f"  {name} = alloca [{size} x i8], align 64")
        return Value(self, PTR, name)

    # -- memory ---------------------------------------------------------------------------------------------------

    def load(self, kind: Type, pointer: Value) -> Value:
        return self.emit(kind, f"load {kind}, ptr {pointer.name}, align {min(max(kind.bits // 8, 1), 8)}")

    def store(self, value: Value, pointer: Value) -> None:
        align = min(max(value.type.bits // 8, 1), 8)
        self._lines.append(f"  store {value.type} {value.name}, ptr {pointer.name}, align {align}")

    def prefetch(self, pointer: Value) -> None:
        """Asks for the cache line at ``pointer`` in the second-level cache; never faults.

        Requests for the first level are few at a time: on Zen 4 they limit a core to 12 of 31 GB/s.
        """
        self._declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self._lines.append(f"  call void @llvm.prefetch.p0(ptr {pointer.name}, i32 0, i32 2, i32 1)")

    def field(self, kind: Type, record: Value, index: int) -> Value:
        """The 8-byte field ``index`` of a record of 8-byte fields."""
        return self.load(kind, record + 8 * index)

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a·b + c, rounded once."""
        return self.intrinsic("llvm.fma", a, b, c)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("llvm.sqrt", x)

    def abs(self, x: Value) -> Value:
        return self.intrinsic("llvm.fabs", x)

    def shift_right_signed(self, x: Value, bits: int) -> Value:
        """Integers shifted right; their sign fills the bits on the left."""
        return self.emit(x.type, f"ashr {x.type} {x.name}, {self.splat(x.type, bits).name}")

    def round_even(self, x: Value) -> Value:
        return self.intrinsic("llvm.roundeven", x)

    def smin(self, a: Value, b: Value | int) -> Value:
        return self.intrinsic("llvm.smin", a, self.lift(b, a.type))

    def smax(self, a: Value, b: Value | int) -> Value:
        return self.intrinsic("llvm.smax", a, self.lift(b, a.type))

    def fmax(self, a: Value, b: Value) -> Value:
        """a where a > b, else b: one machine instruction, so a NaN in ``a`` is dropped and one in ``b`` kept."""
        return self.select(a > b, a, b)

    def fmin(self, a: Value, b: Value) -> Value:
        return self.select(a < b, a, b)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.emit(a.type, f"select {condition.type} {condition.name}, {a.type} {a.name}, {b.type} {b.name}")

    def is_set(self, pointer: Value) -> Value:
        """Whether a pointer is not null."""
        return self.emit(I1, f"icmp ne ptr {pointer.name}, null")

    def convert(self, value: Value, kind: Type, *, unsigned: bool = False) -> Value:
        source = value.type
        if source == kind:
            return value
        if source.is_float and kind.is_float:
            op = "fpext" if kind.bits > source.bits else "fptrunc"
        elif source.is_float:
            op = "fptosi"
        elif kind.is_float:
            op = "uitofp" if unsigned else "sitofp"
        elif kind.bits < source.bits:
            op = "trunc"
        else:
            op = "zext" if unsigned else "sext"
        return self.emit(kind, f"{op} {source} {value.name} to {kind}")

    def shuffle(self, a: Value, lanes: Sequence[int], b: Value | None = None) -> Value:
        """The given lanes of ``a``, and of ``b``, whose lanes are numbered after those of ``a``."""
        kind = a.type.of(len(lanes))
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        other = b.name if b else "poison"
        return self.emit(kind, f"shufflevector {a.type} {a.name}, {a.type} {other}, <{len(lanes)} x i32> <{mask}>")

    def extract(self, vector: Value, lane: int) -> Value:
        return self.emit(vector.type.of(1), f"extractelement {vector.type} {vector.name}, i64 {lane}")

    def reduce_tree(self, vector: Value, combine: Literal["add", "fmax", "smin"]) -> Value:
        """All lanes combined: halves are folded onto each other, the same tree on every target."""
        combined = Value.__add__ if combine == "add" else self.fmax if combine == "fmax" else self.smin
        while vector.type.lanes > 2:
            half = vector.type.lanes // 2
            vector = combined(self.shuffle(vector, range(half)), self.shuffle(vector, range(half, 2 * half)))
        return combined(self.extract(vector, 0), self.extract(vector, 1))

    def intrinsic(self, name: str, *args: Value) -> Value:
        """An overloaded LLVM intrinsic whose operands and result share one type."""
        kind = args[0].type
        return self.call(kind, f"{name}.{kind.mangled}", *args)

    def call(self, kind: Type, function: str, *args: Value) -> Value:
        """A call of a named function; its declaration is derived from the operands."""
        self._declare(f"declare {kind} @{function}({', '.join(str(a.type) for a in args)})")
        operands = ", ".join(f"{a.type} {a.name}" for a in args)
        if kind == VOID:
            self._lines.append(f"  call void @{function}({operands})")
            return Value(self, VOID, "")
        return self.emit(kind, f"call {kind} @{function}({operands})")

    def invoke(self, function: Value, *args: Value) -> None:
        """A call through a pointer to a function that returns nothing."""
        operands = ", ".join(f"{a.type} {a.name}" for a in args)
        self._lines.append(f"  call void {function.name}({operands})")

    def fetch_add(self, pointer: Value, amount: Value | int) -> Value:
        """Atomic add; the value before it."""
        value = self.lift(amount, I64)
        return self.emit(I64, f"atomicrmw add ptr {pointer.name}, i64 {value.name} seq_cst, align 8")

    def load_acquire(self, pointer: Value) -> Value:
        return self.emit(I64, f"load atomic i64, ptr {pointer.name} acquire, align 8")

    def store_release(self, value: Value | int, pointer: Value) -> None:
        text = self.lift(value, I64).name
        self._lines.append(f"  store atomic i64 {text}, ptr {pointer.name} release, align 8")

    # -- control --------------------------------------------------------------------------------------------------

    def range(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """A loop in machine code: the body of the Python ``for`` is generated once."""
        index = self.var(I64, self.lift(start, I64))
        head, body, done = self._labels("head", "body", "done")
        self._jump(head)
        self._place(head)
        i = index.get()
        self._branch(i < self.lift(stop, I64), body, done)
        self._place(body)
        yield i
        index.set(i + step)
        self._jump(head)
        self._place(done)

    @contextmanager
    def loop_while(self, condition: Var) -> Iterator[None]:
        """Repeats the body while the i1 register ``condition`` holds; tested before each turn."""
        head, body, done = self._labels("head", "body", "done")
        self._jump(head)
        self._place(head)
        self._branch(condition.get(), body, done)
        self._place(body)
        yield
        self._jump(head)
        self._place(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        body, done = self._labels("then", "done")
        self._branch(condition, body, done)
        self._place(body)
        yield
        self._jump(done)
        self._place(done)

    def ret(self) -> None:
        self._lines.append("  ret void")

    def _labels(self, *names: str) -> list[str]:
        self._count += 1
        return [f"{name}{self._count}" for name in names]

    def _place(self, label: str) -> None:
        self._lines.append(f"{label}:")

    def _jump(self, label: str) -> None:
        self._lines.append(f"  br label %{label}")

    def _branch(self, condition: Value, then: str, other: str) -> None:
        self._lines.append(f"  br i1 {condition.name}, label %{then}, label %{other}")

    def _declare(self, text: str) -> None:
        self._declarations[text] = text

    def text(self) -> str:
        """The LLVM module that holds this one function."""
        parameters = ", ".join(f"{kind} %{arg}" for arg, kind in self._parameters)
        head = f"define void @{self.name}({parameters}) nounwind {{"
        lines = [*self._declarations, head, "entry:", *self._slots, *self._lines, "}"]
        return "\n".join(lines) + "\n"
