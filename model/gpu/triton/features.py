"""Features: PCM of a step and its overlap to normalized fp16 log-mel frames, the input of conv0.

Two launches: the power spectrum by a product with the windowed Fourier matrix, then mel, log and normalization. The
second one also copies the frames that the convolutions carry over from the slabs to the front of their inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.audio.mel import FLOOR
from model.config import CONTEXT
from model.gpu.triton.arithmetic import arrives_last, begin, prefetch_part, segment_sum
from model.gpu.triton.fourier import filter_rows, fourier_matrix, split_matrix
from model.gpu.triton.launching import PLAIN, Launching
from model.gpu.triton.products import Scratch
from model.torch_network.network import LogMel

FRAMES = 16  # of one program
BINS = 16  # of the spectrum, in one program
MELS = 16  # in one program
DEPTH = 64  # samples of a window, in one program
_FLOOR, _CONTEXT = tl.constexpr(FLOOR), tl.constexpr(CONTEXT)
_UNIT = tl.constexpr(2.0**-30)  # of a sample's square


@triton.jit(do_not_specialize=["count", "frames", "pcm_row", "ahead_bytes"])
def spectrum_kernel(
    slab, pcm, read, matrix, power, partial, counters, count, frames, pcm_row, ahead, ahead_bytes,
    OVERLAP: tl.constexpr, HOP: tl.constexpr, WINDOW: tl.constexpr, SEGMENTS: tl.constexpr, PADDED: tl.constexpr,
    BF: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Power (count, PADDED) float32 of `count` frames, `frames` of each row; grid (frame tiles, bin tiles, SEGMENTS).

    slab (capacity + 2, OVERLAP) int16, pcm (B, samples) int16, matrix (2, 2, PADDED, SEGMENTS BK) fp16: see
    `split_matrix`. A program takes BK samples of each window; the last one of a tile adds up. A sample is 256 times one
    fp16 number and another one, exactly, so the tensor cores compute what float32 would.
    """
    place = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    segment = tl.program_id(2)
    if AHEAD:
        prefetch_part(
            ahead, ahead_bytes, place * SEGMENTS + segment, tl.num_programs(0) * tl.num_programs(1) * SEGMENTS
        )
    begin(PDL)
    frame = tl.program_id(0) * BF + tl.arange(0, BF)
    taken = tl.minimum(frame, count - 1)
    row, start = taken // frames, (taken % frames) * HOP
    before = slab + tl.load(read + row).to(tl.int64) * OVERLAP
    after = pcm + row.to(tl.int64) * pcm_row
    k = segment * BK + tl.arange(0, BK)
    sample = start[:, None] + k[None, :]
    old = tl.load(before[:, None] + sample, mask=(k < WINDOW)[None, :] & (sample < OVERLAP), other=0)
    new = tl.load(after[:, None] + (sample - OVERLAP), mask=(k < WINDOW)[None, :] & (sample >= OVERLAP), other=0)
    samples = (old + new).to(tl.int32)  # one of both is zero
    high = (samples + 128) >> 8
    low = (samples - high * 256).to(tl.float16)  # -128 to 127: quiet samples have no high part
    bins = tl.program_id(1) * BB + tl.arange(0, BB)
    at = matrix + bins[:, None] * (SEGMENTS * BK) + k[None, :]
    size: tl.constexpr = PADDED * SEGMENTS * BK
    within = tl.arange(0, BF)[:, None] * BB + tl.arange(0, BB)[None, :]
    here = partial + place * (SEGMENTS * 2 * BF * BB) + within
    mine = here + segment * (2 * BF * BB)
    tl.store(mine, transformed(high.to(tl.float16), low, at, size))
    tl.store(mine + BF * BB, transformed(high.to(tl.float16), low, at + 2 * size, size))
    if arrives_last(counters + place, SEGMENTS):
        real = segment_sum(here, SEGMENTS, 2 * BF * BB)
        imaginary = segment_sum(here + BF * BB, SEGMENTS, 2 * BF * BB)
        energy = (real * real + imaginary * imaginary) * _UNIT
        tl.store(power + frame[:, None] * PADDED + bins[None, :], energy, mask=(frame < count)[:, None])


@triton.jit
def transformed(high, low, at, SIZE: tl.constexpr):
    """(256 high + low) times (first + second / 2048) of a matrix in two parts."""
    first = tl.trans(tl.load(at))
    second = tl.trans(tl.load(at + SIZE))
    upper = tl.dot(high, first) * 256.0 + tl.dot(low, first)
    return upper + (tl.dot(high, second) * 256.0 + tl.dot(low, second)) / 2048.0


@triton.jit
def copy_block(source, target, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Copy COUNT consecutive elements."""
    for start in tl.static_range(0, COUNT, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < COUNT), mask=at < COUNT)


@triton.jit(do_not_specialize=["count", "frames"])
def mel_kernel(
    power, first, filters, mean, scale, input0, input1, slab0, slab1, read, count, frames,
    MEL: tl.constexpr, CHANNELS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
    BF: tl.constexpr, BM: tl.constexpr, MELS_PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Log-mel frames of `count` frames to input0 (B, 4 + frames, MEL) fp16; grid (frame tiles + B, mel tiles).

    A filter is WIDTH weights from the bin `first` on: first (MELS_PADDED,) int32, filters (WIDTH, MELS_PADDED) float32.
    Programs after the frame tiles copy one row's carried frames: slab0 to input0, slab1 to the front of input1
    (B, 4 + frames / 2, CHANNELS).
    """
    begin(PDL)
    tile, part = tl.program_id(0), tl.program_id(1)
    tiles = tl.cdiv(count, BF)
    if tile < tiles:
        frame = tile * BF + tl.arange(0, BF)
        mel = part * BM + tl.arange(0, BM)
        at = power + tl.minimum(frame, count - 1)[:, None] * PADDED + tl.load(first + mel)[None, :]
        energy = tl.zeros((BF, BM), tl.float32)
        for i in tl.static_range(WIDTH):
            energy += tl.load(at + i) * tl.load(filters + i * MELS_PADDED + mel)[None, :]
        normal = (tl.log(energy + _FLOOR) - tl.load(mean + mel)[None, :]) * tl.load(scale + mel)[None, :]
        place = (frame + _CONTEXT * (frame // frames + 1))[:, None] * MEL + mel[None, :]
        tl.store(input0 + place, normal.to(tl.float16), mask=(frame < count)[:, None] & (mel < MEL)[None, :])
    else:
        row = tile - tiles
        source = tl.load(read + row).to(tl.int64)
        if part == 0:
            carried0 = input0 + row * (_CONTEXT + frames) * MEL
            copy_block(slab0 + source * (_CONTEXT * MEL), carried0, _CONTEXT * MEL, 1024)
            carried1 = input1 + row * (_CONTEXT + frames // 2) * CHANNELS
            copy_block(slab1 + source * (_CONTEXT * CHANNELS), carried1, _CONTEXT * CHANNELS, 1024)


class Features:
    """The Fourier matrix, the mel filters and the normalization of one network, and both launches."""

    def __init__(self, features: LogMel, channels: int, largest_frames: int) -> None:
        """`channels`: of conv1's input. `largest_frames`: feature frames of a launch, over all its rows."""
        device = features.window.device
        self.mel = features.filters.shape[1]
        self.hop, self.window, self.overlap, self.channels = features.hop, features.length, features.overlap, channels
        real, imaginary = fourier_matrix(features.window, features.fft_size)
        self.segments = -(-self.window // DEPTH)
        self.padded = BINS * -(-real.shape[1] // BINS)
        self.matrix = torch.stack(
            [split_matrix(part, self.padded, self.segments * DEPTH) for part in (real, imaginary)]
        )
        self.mels_padded = MELS * -(-self.mel // MELS)
        first, weights = filter_rows(features.filters, self.mels_padded)
        self.first, self.filters = first.to(device), weights.t().contiguous().to(device)  # (mels,), (width, mels)
        self.mean = torch.zeros(self.mels_padded, device=device)
        self.mean[: self.mel] = features.mean
        self.scale = torch.zeros(self.mels_padded, device=device)
        self.scale[: self.mel] = features.scale
        self.power = torch.empty(largest_frames, self.padded, device=device)

    def scratch_size(self, frames: int) -> tuple[int, int]:
        """Return the partial sums and tiles that a launch of up to this many frames needs."""
        tiles = -(-frames // FRAMES) * (self.padded // BINS)
        return tiles * self.segments * 2 * FRAMES * BINS, tiles

    def enqueue(
        self, pcm: Tensor, slabs: dict[str, Tensor], read: Tensor, input0: Tensor, input1: Tensor, rows: int,
        frames: int, scratch: Scratch, launching: Launching = PLAIN, ahead: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Compute conv0's input from pcm (B, S) int16 and states, `frames` new frames per row.

        `ahead`: weights to prefetch. The first launch does not overlap work before the step.
        """
        count = rows * frames
        tiles = -(-count // FRAMES)
        assert scratch.holds(tiles * (self.padded // BINS), self.segments * 2 * FRAMES * BINS)
        spectrum_kernel[tiles, self.padded // BINS, self.segments](
            slabs["pcm"], pcm, read, self.matrix, self.power, scratch.partial, scratch.counters, count, frames,
            pcm.stride(0), OVERLAP=self.overlap, HOP=self.hop, WINDOW=self.window, SEGMENTS=self.segments,
            PADDED=self.padded, BF=FRAMES, BB=BINS, BK=DEPTH, num_warps=2, enable_fp_fusion=False,
            **launching.fetched(ahead, self.matrix), PDL=False,
        )  # fmt: skip
        mel_kernel[tiles + rows, self.mels_padded // MELS](
            self.power, self.first, self.filters, self.mean, self.scale, input0, input1, slabs["conv0"],
            slabs["conv1"], read, count, frames, MEL=self.mel, CHANNELS=self.channels, PADDED=self.padded,
            WIDTH=len(self.filters), BF=FRAMES, BM=MELS, MELS_PADDED=self.mels_padded, num_warps=4,
            enable_fp_fusion=False, **launching.options,
        )  # fmt: skip
