"""Functions that several kernels share: the two exponentials of the contract, and the sum of a product's segments."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), the exponential by ex2.approx, the division rounded to nearest."""
    return tl.div_rn(1.0, 1.0 + tl.exp2(-x * LOG2E))


@triton.jit
def tanh(x):
    """2 sigmoid(2x) - 1."""
    return 2.0 * sigmoid(2.0 * x) - 1.0


@triton.jit
def segment_first(segment, base: tl.constexpr, more: tl.constexpr):
    """First position along K of a segment; see `model.gpu.segments.cut_points`."""
    return (segment * base + tl.minimum(segment, more)) * 16


@triton.jit
def segment_length(segment, base: tl.constexpr, more: tl.constexpr):
    """Length along K of a segment."""
    return (base + (segment < more).to(tl.int32)) * 16


@triton.jit
def arrives_last(counter, segments: tl.constexpr):
    """Whether this program is the last of a tile's segments to come here; what the others stored is then visible.

    The barrier puts the stores of all threads before the atomic, which is both a release and an acquire. The last one
    sets the counter back to zero for the next launch.
    """
    tl.debug_barrier()
    seen = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    last = seen == segments - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def segment_sum(here, SEGMENTS: tl.constexpr, STRIDE: tl.constexpr):
    """Partial sums added in ascending order, read past the first-level cache, which may be old."""
    total = tl.load(here, cache_modifier=".cg")
    for segment in tl.static_range(1, SEGMENTS):
        total += tl.load(here + segment * STRIDE, cache_modifier=".cg")
    return total
