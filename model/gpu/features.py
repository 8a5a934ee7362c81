"""Features: PCM of a step and its overlap to normalised log-mel frames in fp16, which are conv0's input.

Two launches: the power spectrum by a product with the windowed Fourier matrix in fp32, then mel, log and normalisation.
The second one also copies the frames that the convolutions carry over from the slabs to the front of their inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.gpu.arithmetic import begin, prefetch_part
from model.gpu.fourier import DEPTH, fourier_matrix
from model.gpu.launching import PLAIN, Launching
from model.network import CONTEXT, FLOOR, LogMel

FRAMES = 16  # of one program
BINS = 16  # of the spectrum, in one program
MELS = 16  # in one program
_FLOOR, _CONTEXT = tl.constexpr(FLOOR), tl.constexpr(CONTEXT)


@triton.jit(do_not_specialize=["count", "frames", "pcm_row", "ahead_bytes"])
def spectrum_kernel(
    slab, pcm, read, cosine, sine, power, count, frames, pcm_row, ahead, ahead_bytes,
    OVERLAP: tl.constexpr, HOP: tl.constexpr, WINDOW: tl.constexpr, PADDED: tl.constexpr, STEPS: tl.constexpr,
    BF: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Power (count, PADDED) float32 of `count` frames, `frames` of each row; grid (frame tiles, bin tiles).

    slab (capacity + 2, OVERLAP) int16, pcm (B, samples) int16, cosine and sine (STEPS * BK, PADDED) float32.
    """
    if AHEAD:
        part = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        prefetch_part(ahead, ahead_bytes, part, tl.num_programs(0) * tl.num_programs(1))
    begin(PDL)
    frame = tl.program_id(0) * BF + tl.arange(0, BF)
    taken = tl.minimum(frame, count - 1)
    row, start = taken // frames, (taken % frames) * HOP
    before = slab + tl.load(read + row).to(tl.int64) * OVERLAP
    after = pcm + row.to(tl.int64) * pcm_row
    k = tl.arange(0, BK)
    bins = tl.program_id(1) * BB + tl.arange(0, BB)
    matrix_at = k[:, None] * PADDED + bins[None, :]
    real = tl.zeros((BF, BB), tl.float32)
    imaginary = tl.zeros((BF, BB), tl.float32)
    for step in tl.range(0, STEPS):
        inside = (step * BK + k)[None, :] < WINDOW
        sample = start[:, None] + (step * BK + k)[None, :]
        carried = sample < OVERLAP
        old = tl.load(before[:, None] + sample, mask=inside & carried, other=0)
        new = tl.load(after[:, None] + (sample - OVERLAP), mask=inside & (sample >= OVERLAP), other=0)
        samples = (old + new).to(tl.float32)  # one of both is zero
        at = matrix_at + step * (BK * PADDED)
        real = tl.dot(samples, tl.load(cosine + at), real, input_precision="ieee")
        imaginary = tl.dot(samples, tl.load(sine + at), imaginary, input_precision="ieee")
    power_at = power + frame[:, None] * PADDED + bins[None, :]
    tl.store(power_at, real * real + imaginary * imaginary, mask=(frame < count)[:, None])


@triton.jit
def copy_block(source, target, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Copy COUNT consecutive elements."""
    for start in tl.static_range(0, COUNT, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < COUNT), mask=at < COUNT)


@triton.jit(do_not_specialize=["count", "frames"])
def mel_kernel(
    power, filters, mean, scale, input0, input1, slab0, slab1, read, count, frames,
    MEL: tl.constexpr, CHANNELS: tl.constexpr, PADDED: tl.constexpr, STEPS: tl.constexpr,
    BF: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, MELS_PADDED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Log-mel frames of `count` frames to input0 (B, 4 + frames, MEL) fp16; grid (frame tiles + B, mel tiles).

    The programs beyond the frame tiles copy one row's carried frames: slab0 to input0, slab1 to the front of input1
    (B, 4 + frames / 2, CHANNELS).
    """
    begin(PDL)
    tile, part = tl.program_id(0), tl.program_id(1)
    tiles = tl.cdiv(count, BF)
    if tile < tiles:
        frame = tile * BF + tl.arange(0, BF)
        taken = tl.minimum(frame, count - 1)
        k = tl.arange(0, BK)
        mel = part * BM + tl.arange(0, BM)
        energy = tl.zeros((BF, BM), tl.float32)
        for step in tl.range(0, STEPS):
            bins = step * BK + k
            p = tl.load(power + taken[:, None] * PADDED + bins[None, :], mask=(bins < PADDED)[None, :], other=0.0)
            f = tl.load(filters + bins[:, None] * MELS_PADDED + mel[None, :])
            energy = tl.dot(p, f, energy, input_precision="ieee")
        normal = (tl.log(energy + _FLOOR) - tl.load(mean + mel)[None, :]) * tl.load(scale + mel)[None, :]
        at = (frame + _CONTEXT * (frame // frames + 1))[:, None] * MEL + mel[None, :]
        tl.store(input0 + at, normal.to(tl.float16), mask=(frame < count)[:, None] & (mel < MEL)[None, :])
    else:
        row = tile - tiles
        source = tl.load(read + row).to(tl.int64)
        if part == 0:
            copy_block(
                slab0 + source * (_CONTEXT * MEL), input0 + row * (_CONTEXT + frames) * MEL, _CONTEXT * MEL, 1024
            )
            carried1 = input1 + row * (_CONTEXT + frames // 2) * CHANNELS
            copy_block(slab1 + source * (_CONTEXT * CHANNELS), carried1, _CONTEXT * CHANNELS, 1024)


class Features:
    """The Fourier matrix, the mel filters and the normalisation of one network, and both launches."""

    def __init__(self, features: LogMel, channels: int, largest_frames: int) -> None:
        """`channels` of conv1's input; `largest_frames` feature frames of a launch, of all its rows together."""
        device = features.window.device
        bins, self.mel = features.filters.shape
        self.hop, self.window, self.overlap, self.channels = features.hop, features.length, features.overlap, channels
        self.padded = BINS * -(-bins // BINS)
        self.cosine, self.sine = fourier_matrix(features.window, features.fft_size, self.padded)
        self.mels_padded = MELS * -(-self.mel // MELS)
        self.filters = torch.zeros(DEPTH * -(-self.padded // DEPTH), self.mels_padded, device=device)
        self.filters[:bins, : self.mel] = features.filters
        self.mean = torch.zeros(self.mels_padded, device=device)
        self.mean[: self.mel] = features.mean
        self.scale = torch.zeros(self.mels_padded, device=device)
        self.scale[: self.mel] = features.scale
        self.power = torch.empty(largest_frames, self.padded, device=device)

    def enqueue(
        self, pcm: Tensor, slabs: dict[str, Tensor], read: Tensor, input0: Tensor, input1: Tensor, rows: int,
        frames: int, launching: Launching = PLAIN, ahead: Tensor | None = None,
    ) -> None:  # fmt: skip
        """pcm (B, S) int16 and the states of `rows` rows to conv0's input, `frames` new frames a row.

        `ahead` are weights to be fetched meanwhile. The first launch does not overlap what is before the step.
        """
        count = rows * frames
        tiles = -(-count // FRAMES)
        spectrum_kernel[tiles, self.padded // BINS](
            slabs["pcm"], pcm, read, self.cosine, self.sine, self.power, count, frames, pcm.stride(0),
            OVERLAP=self.overlap, HOP=self.hop, WINDOW=self.window, PADDED=self.padded,
            STEPS=self.cosine.shape[0] // DEPTH, BF=FRAMES, BB=BINS, BK=DEPTH, num_warps=4, enable_fp_fusion=False,
            **launching.fetched(ahead, self.cosine), PDL=False,
        )  # fmt: skip
        mel_kernel[tiles + rows, self.mels_padded // MELS](
            self.power, self.filters, self.mean, self.scale, input0, input1, slabs["conv0"], slabs["conv1"], read,
            count, frames, MEL=self.mel, CHANNELS=self.channels, PADDED=self.padded,
            STEPS=self.filters.shape[0] // DEPTH, BF=FRAMES, BM=MELS, BK=DEPTH, MELS_PADDED=self.mels_padded,
            num_warps=4, enable_fp_fusion=False, **launching.options,
        )  # fmt: skip
