"""Triton's interpreter with products whose bits do not depend on the number of columns, like those of a tensor core.

Import it before any module with kernels: the decorator decides whether a kernel is interpreted.
"""

import os
from contextlib import contextmanager

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder


def _dot(builder, a, b, d, *options):
    """Add one term after the other in float32; numpy's product uses another order for another width."""
    left, right = a.data.astype(np.float32), b.data.astype(np.float32)
    total = d.data.astype(np.float32)
    for k in range(left.shape[1]):
        total = total + left[:, k, None] * right[None, k, :]
    return TensorHandle(total, d.dtype.scalar)


InterpreterBuilder.create_dot = _dot


@contextmanager
def programs_reversed():
    """Run the programs of each grid from the last to the first."""

    def set_grid_idx(*index):
        ordinary(*(size - 1 - i for size, i in zip(interpreter_builder.grid_dim, index, strict=True)))

    ordinary = interpreter_builder.set_grid_idx
    interpreter_builder.set_grid_idx = set_grid_idx
    try:
        yield
    finally:
        del interpreter_builder.set_grid_idx
