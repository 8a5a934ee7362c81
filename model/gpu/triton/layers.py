"""Layer normalization, lookahead convolution, and the carried-over states outside of the GRUs."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor, nn

from model.config import CONTEXT
from model.gpu.triton.arithmetic import begin
from model.gpu.triton.features import copy_block
from model.gpu.triton.launching import PLAIN, Launching
from model.torch_network.network import Lookahead

_CONTEXT = tl.constexpr(CONTEXT)


@triton.jit
def normalize(x, unit, weight, bias, EPS: tl.constexpr, H: tl.constexpr):
    """Normalize one frame (BLOCK,) float32 with zero elements from H on; one rounding to fp16."""
    mean = tl.div_rn(tl.sum(x, axis=0), H * 1.0)
    centered = tl.where(unit < H, x - mean, 0.0)
    variance = tl.div_rn(tl.sum(centered * centered, axis=0), H * 1.0)
    scaled = tl.div_rn(centered, tl.sqrt_rn(variance + EPS))
    w = tl.load(weight + unit, mask=unit < H, other=0.0)
    return (scaled * w + tl.load(bias + unit, mask=unit < H, other=0.0)).to(tl.float16)


@triton.jit
def norm_kernel(x, weight, bias, y, H: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """y = fp16(norm(x)), (columns, H); grid (columns)."""
    begin(PDL)
    column, unit = tl.program_id(0), tl.arange(0, BLOCK)
    frame = tl.load(x + column * H + unit, mask=unit < H, other=0.0).to(tl.float32)
    tl.store(y + column * H + unit, normalize(frame, unit, weight, bias, EPS, H), mask=unit < H)


@triton.jit(do_not_specialize=["frames", "pcm_row", "samples"])
def leave_kernel(
    input0, input1, pcm, slab0, slab1, slab_pcm, write, frames, pcm_row, samples,
    MEL: tl.constexpr, CHANNELS: tl.constexpr, OVERLAP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store the states of features and convolutions after a step to the slabs; grid (B).

    The last frames of input0 (B, 4 + 4 frames, MEL) and input1 (B, 4 + 2 frames, CHANNELS), the last samples of pcm.
    Nothing reads these slabs or writes these inputs in the same launch.
    """
    begin(PDL)
    row = tl.program_id(0)
    target = tl.load(write + row).to(tl.int64)
    last0 = input0 + ((row + 1) * (_CONTEXT + 4 * frames) - _CONTEXT) * MEL
    copy_block(last0, slab0 + target * (_CONTEXT * MEL), _CONTEXT * MEL, 1024)
    last1 = input1 + ((row + 1) * (_CONTEXT + 2 * frames) - _CONTEXT) * CHANNELS
    copy_block(last1, slab1 + target * (_CONTEXT * CHANNELS), _CONTEXT * CHANNELS, 1024)
    samples_end = pcm + row.to(tl.int64) * pcm_row + samples
    copy_block(samples_end - OVERLAP, slab_pcm + target * OVERLAP, OVERLAP, 1024)


def enqueue_leave(
    input0: Tensor, input1: Tensor, pcm: Tensor, slabs: dict[str, Tensor], write: Tensor, rows: int, frames: int,
    samples: int, launching: Launching = PLAIN,
) -> None:  # fmt: skip
    """Store the states of features and convolutions after `frames` output frames, `samples` samples, to the slabs."""
    leave_kernel[(rows,)](
        input0, input1, pcm, slabs["conv0"], slabs["conv1"], slabs["pcm"], write, frames, pcm.stride(0), samples,
        MEL=slabs["conv0"].shape[2], CHANNELS=slabs["conv1"].shape[2], OVERLAP=slabs["pcm"].shape[1], num_warps=4,
        **launching.options,
    )  # fmt: skip


@triton.jit(do_not_specialize=["frames"])
def lookahead_kernel(
    x, slab, read, mix, weight, bias, y, frames,
    H: tl.constexpr, AHEAD: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute the lookahead convolution of one frame in fp32, ascending, and normalize it to y; grid (columns).

    x (columns, H) fp16 follows the AHEAD frames of the slab (capacity + 2, AHEAD, H); mix (AHEAD + 1, H) fp16.
    """
    begin(PDL)
    column = tl.program_id(0)
    row, frame = column // frames, column % frames
    waiting = slab + tl.load(read + row).to(tl.int64) * (AHEAD * H)
    unit = tl.arange(0, BLOCK)
    inside = unit < H
    total = tl.zeros((BLOCK,), tl.float32)
    for ahead in tl.static_range(AHEAD + 1):
        place = frame + ahead
        source = x + (row * frames + place - AHEAD) * H
        if place < AHEAD:
            source = waiting + place * H
        value = tl.load(source + unit, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(mix + ahead * H + unit, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + column * H + unit, normalize(total, unit, weight, bias, EPS, H), mask=inside)


@triton.jit(do_not_specialize=["frames"])
def shift_kernel(
    x, slab, read, write, frames,
    H: tl.constexpr, AHEAD: tl.constexpr, FRAMES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Drop the oldest `frames` of a row's waiting frames and append the new ones; grid (B, blocks of H).

    A program reads all waiting frames of its units before it writes one (the barrier), and no other program has
    these units, so a row may be written where it is read.
    """
    begin(PDL)
    row = tl.program_id(0)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.arange(0, FRAMES)
    later = place + frames
    inside = (unit < H)[None, :] & (place < AHEAD)[:, None]
    waiting = slab + tl.load(read + row).to(tl.int64) * (AHEAD * H)
    kept = (later < AHEAD)[:, None]
    old = tl.load(waiting + later[:, None] * H + unit[None, :], mask=inside & kept, other=0.0)
    come = x + (row * frames + later - AHEAD)[:, None] * H + unit[None, :]
    new = tl.load(come, mask=inside & (later >= AHEAD)[:, None], other=0.0)
    tl.debug_barrier()
    target = slab + tl.load(write + row).to(tl.int64) * (AHEAD * H)
    tl.store(target + place[:, None] * H + unit[None, :], tl.where(kept, old, new), mask=inside)


class Norm:
    """Parameters of a layer normalization in float32, and its constants."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self.weight = norm.weight.detach().float().contiguous()
        self.bias = norm.bias.detach().float().contiguous()
        hidden = len(self.weight)
        self.constants: dict[str, Any] = {"H": hidden, "EPS": norm.eps, "BLOCK": triton.next_power_of_2(hidden)}

    def enqueue(self, x: Tensor, y: Tensor, columns: int, launching: Launching = PLAIN) -> None:
        """Normalize x (columns, H) fp16 to y."""
        norm_kernel[(columns,)](
            x, self.weight, self.bias, y, **self.constants, num_warps=4, enable_fp_fusion=False, **launching.options
        )


class LookaheadNorm:
    """The lookahead convolution, the normalization after it, and the update of the waiting frames."""

    def __init__(self, lookahead: Lookahead, norm: Norm) -> None:
        self.mix = lookahead.weight.detach().half().contiguous()  # (AHEAD + 1, H)
        self.ahead, self.norm = lookahead.frames, norm

    def enqueue(
        self, x: Tensor, slab: Tensor, read: Tensor, y: Tensor, rows: int, frames: int, launching: Launching = PLAIN
    ) -> None:
        """Compute y (B, T, H) fp16 from x (B, T, H) and the waiting frames."""
        lookahead_kernel[(rows * frames,)](
            x, slab, read, self.mix, self.norm.weight, self.norm.bias, y, frames, AHEAD=self.ahead,
            **self.norm.constants, num_warps=8, enable_fp_fusion=False, **launching.options,
        )  # fmt: skip

    def enqueue_shift(
        self, x: Tensor, slab: Tensor, read: Tensor, write: Tensor, rows: int, frames: int, launching: Launching = PLAIN
    ) -> None:
        """Store the waiting frames after the step to the slab."""
        hidden = slab.shape[2]
        shift_kernel[rows, -(-hidden // 128)](
            x, slab, read, write, frames, H=hidden, AHEAD=self.ahead,
            FRAMES=max(2, triton.next_power_of_2(self.ahead)), BLOCK=128, num_warps=4,
            **launching.options,
        )  # fmt: skip
