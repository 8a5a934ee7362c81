"""Vector code for numba: arithmetic on sixteen numbers at a time, bit-identical on every processor.

A kernel is a Python function of addresses and vectors of sixteen lanes; `kernel` makes it an intrinsic for compiled
functions. LLVM splits the lanes into the processor's registers. It rounds after each operation as IEEE
754 specifies and keeps the order: no fused multiply-add, no reassociation, unless a flag permits them, and none is
set here. A sum over lanes is a fixed tree. So results depend neither on the register width nor on the
other rows of a batch. exp and log are implemented here because each library has its own version.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from model.machine.compiler import cgutils as _cgutils
from model.machine.compiler import extending, ir, types
from model.machine.instructions import instruction_set

LANES = 16
ROWS = 4 if instruction_set() == "vnni512" else 2
"""Rows of a `row_kernel`: while one waits for a result, the processor computes the others."""
ROW = 4 * LANES  # bytes of sixteen floats

I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()

ROUNDER = 12_582_912.0  # 1.5 * 2 ** 23: adding it leaves the nearest integer in the low bits, ties to even
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # nine bits and the rest, so multiples of the high part are exact
LARGEST_EXPONENT = 87.0  # exp of more overflows in float32
EXP = (0.0013941213, 0.00837521, 0.04166635, 0.16666414, 0.5, 1.0, 1.0)
"""exp on ±ln 2 / 2, highest power first, by interpolation at the seven Chebyshev nodes: relative error 2e-8."""
ATANH = (2 / 9, 2 / 7, 2 / 5, 2 / 3, 2.0)
"""2 atanh(s) / s in powers of s ** 2, highest first: log m = 2 atanh((m - 1) / (m + 1)); error 4e-9 for m in ±√2."""
SQRT_HALF_BITS = 0x3F3504F3


class Vectors:
    """Builder of one kernel's code: loads, stores, loops.

    With several `rows` it has sixteen lanes of each; their addresses are a list, and a load from one address gives all
    of them the same numbers.
    """

    def __init__(self, builder: Any, rows: int = 1) -> None:
        self.builder, self.lanes = builder, rows * LANES

    def number(self, value: Any) -> Any:
        """Return a 64-bit integer of the code; Python integers become constants."""
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def at(self, address: Any, offset: Any) -> Any:
        """Address plus offset, both in bytes."""
        if isinstance(address, list):
            return [self.at(row, offset) for row in address]
        return self.builder.add(self.number(address), self.number(offset))

    def times(self, left: Any, right: Any) -> Any:
        """Product of two 64-bit integers."""
        return self.builder.mul(self.number(left), self.number(right))

    def load(self, address: Any, kind: Any) -> Any:
        """Load any LLVM type from an address, aligned or not."""
        return self.builder.load(self.builder.inttoptr(self.number(address), kind.as_pointer()), align=1)

    def lanes_at(self, address: Any, element: Any) -> Any:
        """Load sixteen elements of each row."""
        rows = address if isinstance(address, list) else (address,)
        parts = [self.load(row, vector(element)) for row in rows] * (self.lanes // LANES // len(rows))
        while len(parts) > 1:
            order = ir.Constant(vector(I32, 2 * parts[0].type.count), [*range(2 * parts[0].type.count)])
            parts = [self.builder.shuffle_vector(*pair, order) for pair in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def store(self, value: Any, address: Any) -> None:
        """Store any LLVM value at an address, aligned or not; of several rows sixteen lanes each."""
        if isinstance(address, list):
            for row, to in enumerate(address):
                order = ir.Constant(vector(I32), [*range(row * LANES, (row + 1) * LANES)])
                self.store(self.builder.shuffle_vector(value, value, order), to)
            return
        self.builder.store(value, self.builder.inttoptr(self.number(address), value.type.as_pointer()), align=1)

    def floats(self, address: Any, offset: Any = 0) -> Floats:
        """Load sixteen floats."""
        return Floats(self.builder, self.lanes_at(self.at(address, offset), F32))

    def halves(self, address: Any, offset: Any = 0) -> Floats:
        """Load sixteen bfloat16 as floats."""
        wide = self.builder.zext(self.lanes_at(self.at(address, offset), I16), vector(I32, self.lanes))
        return Ints(self.builder, wide).shifted_left(16).as_floats()

    def ints(self, address: Any, offset: Any = 0) -> Ints:
        """Load sixteen 32-bit integers."""
        return Ints(self.builder, self.lanes_at(self.at(address, offset), I32))

    def all(self, address: Any, offset: Any = 0) -> Floats:
        """Load one float into all lanes."""
        return Floats(self.builder, splat(self.builder, self.load(self.at(address, offset), F32), self.lanes))

    def all_ints(self, address: Any, offset: Any = 0) -> Ints:
        """Load one 32-bit integer into all lanes."""
        return Ints(self.builder, splat(self.builder, self.load(self.at(address, offset), I32), self.lanes))

    def floats_of_shorts(self, address: Any) -> Floats:
        """Load sixteen 16-bit integers as floats."""
        wide = self.builder.sext(self.load(address, vector(I16)), vector(I32))
        return Ints(self.builder, wide).to_floats()

    def floats_of_bytes(self, address: Any) -> Floats:
        """Load sixteen signed 8-bit integers as floats."""
        wide = self.builder.sext(self.load(address, vector(I8)), vector(I32))
        return Ints(self.builder, wide).to_floats()

    def bytes_as_ints(self, address: Any) -> Ints:
        """Load sixteen unsigned 8-bit integers as 32-bit integers."""
        return Ints(self.builder, self.builder.zext(self.load(address, vector(I8)), vector(I32)))

    def count(self, value: Any) -> Floats:
        """Convert a 64-bit integer to a float in all lanes."""
        return Floats(self.builder, splat(self.builder, self.builder.sitofp(self.number(value), F32), self.lanes))

    def interleaved(self, left: Floats, right: Floats) -> tuple[Floats, Floats]:
        """Interleave the lanes of both: those of the first halves, then those of the second halves."""
        orders = ([first + lane // 2 + LANES * (lane % 2) for lane in range(LANES)] for first in (0, LANES // 2))
        low, high = (
            Floats(self.builder, self.builder.shuffle_vector(left.value, right.value, ir.Constant(vector(I32), order)))
            for order in orders
        )
        return low, high

    def constant(self, value: float) -> Floats:
        """One number in all lanes."""
        return Floats(self.builder, ir.Constant(vector(F32, self.lanes), [value] * self.lanes))

    def keep(self, value: Floats, address: Any, offset: Any = 0) -> None:
        """Store sixteen floats."""
        self.store(value.value, self.at(address, offset))

    def keep_bytes(self, value: Ints, address: Any, offset: Any = 0) -> None:
        """Store the low bytes of sixteen integers."""
        self.store(self.builder.trunc(value.value, value.of(I8)), self.at(address, offset))

    def keep_shorts(self, value: Ints, address: Any, offset: Any = 0) -> None:
        """Store the low 16 bits of sixteen integers."""
        self.store(self.builder.trunc(value.value, value.of(I16)), self.at(address, offset))

    def keep_halves(self, value: Floats, address: Any, offset: Any = 0) -> None:
        """Store sixteen floats as bfloat16, rounded to nearest, ties to even."""
        self.keep_shorts(value.half().as_ints().shifted_right(16), address, offset)

    def loop(self, count: Any, carried: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]) -> list[Any]:
        """Run `body(index, carried)` for 0 … count - 1, count >= 1, and return its last result.

        Carried values are LLVM values, `Floats` or `Ints`.
        """
        builder, before = self.builder, self.builder.block
        inside, after = builder.append_basic_block("inside"), builder.append_basic_block("after")
        builder.branch(inside)
        builder.position_at_end(inside)
        index = builder.phi(I64)
        index.add_incoming(ir.Constant(I64, 0), before)
        phis = []
        for each in carried:
            phis.append(builder.phi(_raw(each).type))
            phis[-1].add_incoming(_raw(each), before)
        results = body(index, [_like(each, phi) for each, phi in zip(carried, phis, strict=True)])
        following = builder.add(index, ir.Constant(I64, 1))
        index.add_incoming(following, builder.block)
        for phi, result in zip(phis, results, strict=True):
            phi.add_incoming(_raw(result), builder.block)
        builder.cbranch(builder.icmp_signed("<", following, self.number(count)), inside, after)
        builder.position_at_end(after)
        return list(results)

    def copy(self, to: Any, source: Any, size: Any) -> None:
        """Copy `size` bytes; the two ranges do not overlap."""
        pointer = I8.as_pointer()
        function = self.builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, I64])
        places = [self.builder.inttoptr(self.number(each), pointer) for each in (to, source)]
        self.builder.call(function, [*places, self.number(size), ir.Constant(ir.IntType(1), 0)])


class _Lanes:
    """Sixteen numbers of each row; a Python number in arithmetic is used in all lanes."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def of(self, element: Any) -> Any:
        """LLVM's type of as many elements."""
        return vector(element, self.value.type.count)

    def all(self, number: float) -> Any:
        """A constant in all lanes."""
        return ir.Constant(self.value.type, [number] * self.value.type.count)


class Ints(_Lanes):
    """Sixteen 32-bit integers."""

    def __add__(self, other: Ints | int) -> Ints:
        """Sum."""
        return Ints(self.builder, self.builder.add(self.value, self._other(other)))

    def __sub__(self, other: Ints | int) -> Ints:
        """Difference."""
        return Ints(self.builder, self.builder.sub(self.value, self._other(other)))

    def __and__(self, other: Ints | int) -> Ints:
        """Bitwise and."""
        return Ints(self.builder, self.builder.and_(self.value, self._other(other)))

    def shifted_left(self, bits: int) -> Ints:
        """Shift left."""
        return Ints(self.builder, self.builder.shl(self.value, self._other(bits)))

    def shifted_right(self, bits: int) -> Ints:
        """Logical shift right."""
        return Ints(self.builder, self.builder.lshr(self.value, self._other(bits)))

    def divided(self, bits: int) -> Ints:
        """Quotient by 2 ** bits, rounded down."""
        return Ints(self.builder, self.builder.ashr(self.value, self._other(bits)))

    def as_floats(self) -> Floats:
        """The same bits as floats."""
        return Floats(self.builder, self.builder.bitcast(self.value, self.of(F32)))

    def to_floats(self) -> Floats:
        """The same numbers as floats, rounded to nearest."""
        return Floats(self.builder, self.builder.sitofp(self.value, self.of(F32)))

    def _other(self, other: Ints | int) -> Any:
        return other.value if isinstance(other, Ints) else self.all(other)


class Floats(_Lanes):
    """Sixteen 32-bit floats."""

    def __add__(self, other: Floats | float) -> Floats:
        """Sum."""
        return Floats(self.builder, self.builder.fadd(self.value, self._other(other)))

    def __sub__(self, other: Floats | float) -> Floats:
        """Difference."""
        return Floats(self.builder, self.builder.fsub(self.value, self._other(other)))

    def __mul__(self, other: Floats | float) -> Floats:
        """Product."""
        return Floats(self.builder, self.builder.fmul(self.value, self._other(other)))

    def __truediv__(self, other: Floats | float) -> Floats:
        """Quotient."""
        return Floats(self.builder, self.builder.fdiv(self.value, self._other(other)))

    def __neg__(self) -> Floats:
        """Opposite."""
        return self * -1.0

    def least(self, other: Floats | float) -> Floats:
        """Minimum of each lane."""
        return self._chosen("<", other)

    def most(self, other: Floats | float) -> Floats:
        """Maximum of each lane."""
        return self._chosen(">", other)

    def root(self) -> Floats:
        """Square root."""
        name = f"llvm.sqrt.v{self.value.type.count}f32"
        return Floats(self.builder, intrinsic_call(self.builder, name, self.value.type, self.value))

    def as_ints(self) -> Ints:
        """The same bits as integers."""
        return Ints(self.builder, self.builder.bitcast(self.value, self.of(I32)))

    def to_ints(self) -> Ints:
        """Nearest integers, ties to even; for numbers within ±2 ** 22."""
        return (self + ROUNDER).as_ints() - Floats(self.builder, self.all(ROUNDER)).as_ints()

    def half(self) -> Floats:
        """Floats rounded to bfloat16: to nearest, ties to even."""
        bits = self.as_ints()
        odd = bits.shifted_right(16) & 1
        return ((bits + odd + 0x7FFF) & 0xFFFF0000).as_floats()

    def exp(self) -> Floats:
        """e to the power of each lane; arguments are clipped to ±87."""
        x = self.least(LARGEST_EXPONENT).most(-LARGEST_EXPONENT)
        shifted = x * (1 / 0.6931471805599453) + ROUNDER
        count = shifted - ROUNDER  # of doublings
        rest = (x - count * LN2_HIGH) - count * LN2_LOW
        power = shifted.as_ints().shifted_left(23)  # ROUNDER's own low bits are zero
        return (rest.polynomial(EXP).as_ints() + power).as_floats()

    def log(self) -> Floats:
        """Natural logarithm of positive normal numbers."""
        bits = self.as_ints()
        exponent = (bits - SQRT_HALF_BITS).divided(23)
        mantissa = (bits - exponent.shifted_left(23)).as_floats()  # in √½ … √2
        s = (mantissa - 1.0) / (mantissa + 1.0)
        count = exponent.to_floats()
        return count * LN2_HIGH + (count * LN2_LOW + s * (s * s).polynomial(ATANH))

    def sigmoid(self) -> Floats:
        """1 / (1 + exp(-x))."""
        return Floats(self.builder, self.all(1.0)) / ((-self).exp() + 1.0)

    def silu(self) -> Floats:
        """x / (1 + exp(-x))."""
        return self / ((-self).exp() + 1.0)

    def tanh(self) -> Floats:
        """(1 - exp(-2x)) / (1 + exp(-2x))."""
        power = (self * -2.0).exp()
        return (Floats(self.builder, self.all(1.0)) - power) / (power + 1.0)

    def polynomial(self, coefficients: Sequence[float]) -> Floats:
        """Value of a polynomial, highest power first."""
        result = self * coefficients[0] + coefficients[1]
        for coefficient in coefficients[2:]:
            result = result * self + coefficient
        return result

    def mirrored(self) -> Floats:
        """The lanes in reverse order."""
        order = ir.Constant(vector(I32), [*reversed(range(LANES))])
        return Floats(self.builder, self.builder.shuffle_vector(self.value, self.value, order))

    def sum(self) -> Floats:
        """Sum of all lanes of a row, in all of them: halves are added until one is left."""
        return self._folded(operator.add)

    def largest(self) -> Floats:
        """Largest of all lanes of a row, in all of them."""
        return self._folded(Floats.most)

    def _folded(self, join: Callable[[Floats, Floats], Floats]) -> Floats:
        result, distance = self, LANES // 2
        while distance:
            order = ir.Constant(self.of(I32), [lane ^ distance for lane in range(self.value.type.count)])
            swapped = self.builder.shuffle_vector(result.value, result.value, order)
            result, distance = join(result, Floats(self.builder, swapped)), distance // 2
        return result

    def _chosen(self, sign: str, other: Floats | float) -> Floats:
        right = self._other(other)
        return Floats(
            self.builder, self.builder.select(self.builder.fcmp_ordered(sign, self.value, right), self.value, right)
        )

    def _other(self, other: Floats | float) -> Any:
        return other.value if isinstance(other, Floats) else self.all(other)


def vector(kind: Any, lanes: int = LANES) -> Any:
    """Return LLVM's type of a vector."""
    return ir.VectorType(kind, lanes)


def splat(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector with one LLVM number in all lanes."""
    empty = ir.Constant(vector(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(vector(I32, lanes), [0] * lanes))


def intrinsic_call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call one of LLVM's intrinsics by its full name."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(_cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def kernel(function: Callable[..., None], strided: Sequence[str] = ()) -> Callable[..., None]:
    """Turn a function of `Vectors` and 64-bit integers (addresses and counts) into an intrinsic.

    Compiled functions call it without the first argument. With `strided` it computes `ROWS` rows, with the bits of one
    at a time: each address named there is that of the first row, and the bytes from one row to the next follow it.
    """
    names = [*inspect.signature(function).parameters][1:]
    words = [word for name in names for word in (name, f"{name}_stride")[: 1 + (name in strided)]]

    def typed(_context: Any, *_arguments: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            v, values = Vectors(builder, ROWS if strided else 1), dict(zip(words, arguments, strict=True))
            for name in strided:
                apart = values[f"{name}_stride"]
                values[name] = [v.at(values[name], v.times(apart, row)) for row in range(ROWS)]
            function(v, *(values[name] for name in names))
            return context.get_dummy_value()

        return types.void(*[types.int64] * len(words)), generate

    typed.__name__ = function.__name__
    typed.__doc__ = function.__doc__
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD  # numba folds the arguments by the signature
    parameters = [inspect.Parameter(name, plain) for name in ("context", *words)]
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made: Callable[..., None] = extending.intrinsic(typed)
    return made


def row_kernel(*strided: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator of a kernel of several rows; `strided`: see `kernel`."""
    return partial(kernel, strided=strided)


def _raw(value: Any) -> Any:
    return value.value if isinstance(value, _Lanes) else value


def _like(example: Any, raw: Any) -> Any:
    return type(example)(example.builder, raw) if isinstance(example, _Lanes) else raw
