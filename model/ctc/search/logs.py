"""exp and the logarithm of a sum, bit-identical on every processor and with every C library.

numba calls the C library's functions, which have one version per kind of processor with different last bits. Here
products and sums are evaluated as written; no flag allows the compiler to fuse or reorder them.
"""

from __future__ import annotations

import math

import numpy as np

from model.machine.compiled import compiled, entry_point

PER_LN2 = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""High and low part of ln 2; multiples of the high part up to 2 ** 10 are exact. Source: fdlibm, e_exp.c."""
LARGEST_EXPONENT = 700.0  # above it exp nearly overflows; exp of less than -700 is 0 here
EXP = tuple(1 / math.factorial(power) for power in range(13, -1, -1))
"""Taylor series of exp on ±ln 2 / 2, highest power first: relative error 5e-18."""
ATANH = tuple(2 / power for power in range(23, 0, -2))
"""2 atanh(s) / s in powers of s ** 2, highest first, for s in ±0.1716: relative error 2e-20."""
SQRT2, HALF_LN2 = 1.4142135623730951, 0.34657359027997264


@compiled
def exp(x: float) -> float:
    """e to the power of x."""
    if x < -LARGEST_EXPONENT:
        return 0.0
    x = min(x, LARGEST_EXPONENT)
    doublings = np.floor(x * PER_LN2 + 0.5)
    rest = (x - doublings * LN2_HIGH) - doublings * LN2_LOW
    result = EXP[0]
    for coefficient in EXP[1:]:
        result = result * rest + coefficient
    return float(result * np.int64((np.int64(doublings) + 1_023) << 52).view(np.float64))


@entry_point
def probability(log_prob: float) -> float:
    """Return the probability with this logarithm, at most 1."""
    return float(exp(min(0.0, log_prob)))


@compiled
def log_plus_1(x: float) -> float:
    """log(1 + x) for x in 0 … 1."""
    s = x / (2.0 + x) if x <= SQRT2 - 1.0 else (1.0 + x - SQRT2) / (1.0 + x + SQRT2)
    square = s * s
    result = ATANH[0]
    for coefficient in ATANH[1:]:
        result = result * square + coefficient
    return result * s if x <= SQRT2 - 1.0 else HALF_LN2 + result * s


@compiled
def add_logs(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + log_plus_1(exp(b - a))
