"""Functions shared by kernels: exponentials of the contract, sums of segments, the start of a kernel."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

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
    """Return whether this program is the last of a tile's segments to arrive; stores of the others are visible then.

    The barrier orders the stores of all threads before the atomic, which is both a release and an acquire. The last one
    resets the counter to zero for the next launch.
    """
    tl.debug_barrier()
    seen = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    last = seen == segments - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def segment_sum(here, SEGMENTS: tl.constexpr, STRIDE: tl.constexpr):
    """Add partial sums in ascending order; loads bypass the first-level cache, which may be stale."""
    total = tl.load(here, cache_modifier=".cg")
    for segment in tl.static_range(1, SEGMENTS):
        total += tl.load(here + segment * STRIDE, cache_modifier=".cg")
    return total


@triton.jit
def begin(PDL: tl.constexpr):
    """Allow the next kernel to be scheduled, then wait for the end of the kernels before this one.

    Every kernel of a step does this before it reads or writes anything but weights, so it runs after all previous ones.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(start, size_bytes):
    """Prefetch memory into the second-level cache; address and size are multiples of 16 bytes."""
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred first;
            .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [start, size_bytes], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def prefetch_part(ahead, total_bytes, part, parts):
    """Prefetch part `part` of `parts` of the weights for a later kernel."""
    size = tl.minimum((total_bytes + parts * 16 - 1) // (parts * 16) * 16, 1 << 19)
    start = part * size
    if start < total_bytes:
        prefetch(ahead.to(tl.int64) + start, tl.minimum(size, total_bytes - start))
