"""Triton kernels of the probe: read from memory, read one buffer from every multiprocessor, empty, copy, multiply.

Each is the simplest kernel that reaches one ceiling of the device. Imported only with Triton and a GPU.
"""

# ruff: noqa: N803, ANN001, ANN201, PLR0917 - Triton takes compile-time constants by upper-case names, and no annotations
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def empty(_x):
    """Do nothing, to measure the cost of a graph node."""


@triton.jit
def read_all(source, sums, LOOPS: tl.constexpr, BLOCK: tl.constexpr):
    """Read LOOPS blocks of BLOCK int32 per program; the sum is written so that no load is optimized away."""
    program = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for loop in range(LOOPS):
        total += tl.load(source + (program * LOOPS + loop) * BLOCK + offsets)
    tl.store(sums + program, tl.sum(total))


@triton.jit
def read_shared(source, sums, times, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Read the same BLOCKS * BLOCK int32 `times` times in every program, bypassing the L1 cache (.cg)."""
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for repeat in range(times):
        for block in range(BLOCKS):
            at = (block + repeat) % BLOCKS
            total += tl.load(source + at * BLOCK + offsets, cache_modifier=".cg")
    tl.store(sums + tl.program_id(0), tl.sum(total))


@triton.jit
def copy(source, target, words, BLOCK: tl.constexpr):
    """Copy int32 words; source or target may be pinned host memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < words), mask=at < words)


@triton.jit
def multiply(w, x, y, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Compute Y (M, N) fp32 = W (M, K) X (N, K)ᵀ, summing over K in ascending steps of BK."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        a = tl.load(w + m[:, None] * K + start + k[None, :])
        b = tl.load(x + n[None, :] * K + start + k[:, None])
        total = tl.dot(a, b, total)
    tl.store(y + m[:, None] * N + n[None, :], total)
