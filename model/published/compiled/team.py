"""Threads that compute the products of one compiled step together.

One thread runs the step. It publishes each product, and all threads take panels of its columns until none are left. A
column's sums are exact integers, so they do not depend on who computes them. The thread waits only for panels that
another one has taken: where the others are late, or not there, it computes all of them.
"""

from __future__ import annotations

from typing import Any

from model.int8.product import PANEL_ROW, PANEL_SUMS, multiply_panels
from model.int8.vectors import I32, I64, Vectors, intrinsic_call, kernel
from model.machine.compiled import ZERO, compiled, entry_point, int64_at
from model.machine.compiler import extending, ir, types
from model.machine.instructions import is_x86

# int64 words, those that are written most in cache lines of their own
STATE = 0  # number of the product << 32 | its next panel, or CLOSED
DONE = 8  # panels that are computed
THREADS = 16  # that compute
PRODUCTS = 24  # of an even and of an odd number: a late thread reads the last one unchanged, or learns that it is over
TEAM_BYTES = 5 * 64
INPUTS, OFFSETS, ROWS, WEIGHTS, GROUPS, PANELS, FIRST, SUMS = range(8)  # words of a product
CLOSED = -1  # the step has ended

TOOK, NONE_LEFT, ENDED = range(3)
TURNS = 64  # of waiting, about a microsecond, after which other threads of the core may run


@extending.intrinsic  # type: ignore[untyped-decorator]
def _now(_context: Any, _address: Any) -> Any:
    """Load a word that other threads write, before everything that follows."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def _replaced(_context: Any, _address: Any, _expected: Any, _value: Any) -> Any:
    """Replace a word if it is the expected one; return whether it was."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], I64.as_pointer())
        pair = builder.cmpxchg(word, *arguments[1:], "acq_rel", "acquire")
        return builder.zext(builder.extract_value(pair, 1), I64)

    return types.int64(*[types.int64] * 3), generate


@kernel
def _publish(v: Vectors, address: Any, value: Any) -> None:
    """Store a word after everything before."""
    v.builder.store_atomic(value, v.builder.inttoptr(address, I64.as_pointer()), "release", 8)


@kernel
def _add(v: Vectors, address: Any, value: Any) -> None:
    """Add to a word after everything before."""
    v.builder.atomic_rmw("add", v.builder.inttoptr(address, I64.as_pointer()), value, "acq_rel")


@kernel
def _pause(v: Vectors, _turn: Any) -> None:
    """Wait for some cycles."""
    if is_x86():
        intrinsic_call(v.builder, "llvm.x86.sse2.pause", ir.VoidType())


@kernel
def _yield(v: Vectors, _turn: Any) -> None:
    """Let other threads of the core run, above all one of the team."""
    intrinsic_call(v.builder, "sched_yield", I32)


@compiled
def _rest(turn: int) -> None:
    """Wait shortly for another thread; `turn` counts the calls."""
    if turn % TURNS == 0:
        _yield(turn)
    else:
        _pause(turn)


@compiled
def _product(team: int, number: int) -> Any:
    """Return the words of a product."""
    return int64_at(team + (PRODUCTS + 8 * (number & 1)) * 8)


@compiled
def multiply_together(
    team: int, inputs: int, offsets: int, rows: int, weights: int, groups: int, panels: int, first: int, sums: int
) -> None:
    """Multiply as `model.int8.product.multiply` does, with the help of other threads."""
    words = int64_at(team)
    number = (words[STATE] >> 32) + 1
    product = _product(team, number)
    product[INPUTS], product[OFFSETS], product[ROWS], product[WEIGHTS] = inputs, offsets, rows, weights
    product[GROUPS], product[PANELS], product[FIRST], product[SUMS] = groups, panels, first, sums
    words[DONE] = 0
    _publish(team + STATE * 8, number << 32)
    while _take(team) == TOOK:
        pass
    turn = ZERO
    while _now(team + DONE * 8) < panels:
        turn += 1
        _rest(turn)


@compiled
def _take(team: int) -> int:
    """Compute some panels of the product that is published: many at first, few at its end.

    If another product was published while its words were read, the state is another one, and nothing is computed.
    """
    state = _now(team + STATE * 8)
    if state < 0:
        return ENDED
    product, panel = _product(team, state >> 32), state & 0xFFFFFFFF
    inputs, offsets, rows, weights = product[INPUTS], product[OFFSETS], product[ROWS], product[WEIGHTS]
    groups, panels, first, sums = product[GROUPS], product[PANELS], product[FIRST], product[SUMS]
    if panel >= panels:
        return NONE_LEFT
    count = max(1, (panels - panel) // (2 * int64_at(team)[THREADS]))
    if _replaced(team + STATE * 8, state, state + count):
        taken = weights + panel * groups * PANEL_ROW
        before = panel * PANEL_SUMS
        stride = panels * PANEL_SUMS
        multiply_panels(inputs, offsets, rows, taken, groups, count, first + before, sums + before, stride)
        _add(team + DONE * 8, count)
    return TOOK


@entry_point
def help_out(team: int) -> None:
    """Compute panels of one product after another until the step has ended."""
    turn = taken = ZERO
    while taken != ENDED:
        taken = _take(team)
        if taken == NONE_LEFT:
            turn += 1
            _rest(turn)
