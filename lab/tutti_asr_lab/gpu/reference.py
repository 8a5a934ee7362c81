"""Numerics contract of the GPU path, as plain torch code for any device: the reference for all kernels.

1. Operands of products, states and layer outputs are fp16. All other arithmetic is float32, no operation is
   contracted with another (no fused multiply-add outside of a product).
2. A product W x + b is cut along K into segments whose bounds depend on the layer alone (`model.gpu.segments`). In a
   segment steps of 16 along K ascend from zero in float32, as `mma.sync.m16n8k16` adds them; within a step of 16 the
   order is that of the tensor core, so a CPU agrees with a GPU within tolerance, and each is bit-identical with itself.
   Segments are added ascending, ((s0 + s1) + s2) + ..., then the bias, then the activation, then one rounding to fp16.
3. exp(x) is exp2(x * 1.4426950408889634); sigmoid(x) = 1 / (1 + exp(-x)); tanh(x) = 2 sigmoid(2 x) - 1; divisions and
   square roots are rounded to nearest; SiLU is x sigmoid(x).
4. Features are float32: the windowed Fourier transform is a product of the int16 samples with a matrix, which a GPU
   may compute from two fp16 parts of each; power = (real² + imaginary²) / 2³⁰, mel filters, log(energy + 1e-6),
   (· - mean) * scale, rounded to fp16 once.
5. Layer normalization: mean, then the mean square of the differences, over the whole row in a fixed order; times
   1 / sqrt(variance + eps), or divided by the root after the lookahead; weight and bias; rounded once.
6. GRU: gates g = fp16(W x + b); p = U h + c stays float32; r = sigmoid(g_r + p_r), z = sigmoid(g_z + p_z),
   n = tanh(g_n + r p_n), h' = fp16(n + z (h - n)), each frame. The output of the layer is x' = fp16(x + h').
7. Lookahead: sum of value * weight over the current and the next frames, ascending, float32, input of the
   normalization without rounding. Log-softmax: float32, over the vocabulary, and separately over blank and phones after
   it, if the network has phones: the row of the head decides the group of an output.

So the bits of a row depend on that row only: not on other rows, position, batch size, padding or steps per call. Here
this is achieved with tiles of exactly 16 columns, padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from model.audio.mel import FLOOR
from model.config import CONTEXT, PAIRS
from model.gpu.block import StepBlock
from model.gpu.segments import cut_points, product_segments, recurrent_segments
from model.gpu.triton.fourier import fourier_matrix
from model.torch_network.network import GRULayer, Network, PairConv

LOG2E = 1.4426950408889634
TILE = 16
VECTORS = 32  # rows are padded to pairs of AVX-512 registers; torch's scalar code for a remainder has other bits


def sigmoid(x: Tensor) -> Tensor:
    """Sigmoid with the contract's exponential."""
    return 1 / (1 + torch.exp2(-x * LOG2E))


def tanh(x: Tensor) -> Tensor:
    """By the contract's sigmoid."""
    return 2 * sigmoid(2 * x) - 1


def silu(x: Tensor) -> Tensor:
    """By the contract's sigmoid."""
    return x * sigmoid(x)


def in_tiles(function: Callable[..., Tensor], *inputs: Tensor, rows: int = TILE) -> Tensor:
    """Apply `function` to inputs (N, ...) in tiles of `rows` rows, the last one padded with zeros: (N, ...)."""
    count = len(inputs[0])
    parts = []
    for start in range(0, count, rows):
        tiles = []
        for x in inputs:
            tile = x.new_zeros(rows, *x.shape[1:])
            tile[: count - start] = x[start : start + rows]
            tiles.append(tile)
        parts.append(function(*tiles))
    return torch.cat(parts)[:count]


class ReferenceStep:
    """The network by the contract: `enqueue` computes a step immediately, on the device of the slabs."""

    def __init__(self, network: Network, slabs: Mapping[str, Tensor]) -> None:
        """`network`: in fp16 with float32 features. `slabs`: (capacity + 2, ...) by name."""
        self.network, self.slabs = network, slabs
        features = network.features
        self.real, self.imaginary = fourier_matrix(features.window, features.fft_size)  # (window, bins)

    def enqueue(self, block: StepBlock, rows: int, steps: int) -> None:
        """Compute the first `rows` rows of the block, `steps` steps each."""
        read, write = block.read[:rows].long(), block.write[:rows].long()
        state = {name: slab[read] for name, slab in self.slabs.items()}  # copies
        config = self.network.config
        frames = steps * config.frames_per_step
        out, after = self.compute(block.pcm[:rows, : steps * config.step_samples], state)
        for name, slab in self.slabs.items():
            slab[write] = after[name]
        block.out[:rows, :frames] = out

    def compute(self, pcm: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Map PCM (B, S) int16 and states by name to log-probabilities (B, T, outputs) float32 and states."""
        network = self.network
        rows = len(pcm)
        after: dict[str, Tensor] = {}
        joined = torch.cat([state["pcm"], pcm], dim=1)
        after["pcm"] = joined[:, -network.features.overlap :]
        x, after["conv0"] = self._conv(network.conv0, self._features(joined), state["conv0"])
        x, after["conv1"] = self._conv(network.conv1, x, state["conv1"])
        for i, (norm, gru) in enumerate(zip(network.norms, network.grus, strict=True)):
            name = f"gru{i}"
            x, after[name] = self._gru(cast(GRULayer, gru), cast(nn.LayerNorm, norm), x, state[name])
        waiting = torch.cat([state["lookahead"], x], dim=1)  # (B, lookahead + T, H)
        frames, hidden = x.shape[1:]
        after["lookahead"] = waiting[:, frames:]
        windows = waiting.unfold(1, network.lookahead.frames + 1, 1)[:, :frames]  # (B, T, H, lookahead + 1)
        mixed = in_tiles(self._lookahead_norm, windows.reshape(rows * frames, hidden, -1))  # (B T, H)
        hidden_out = self._product(network.dense, mixed, silu)
        logits = self._product(network.head, hidden_out, lambda v: v, torch.float32)
        log_probs = in_tiles(
            lambda x: torch.cat([_log_softmax(part) for part in network.parts(x)], dim=1), logits, rows=VECTORS
        )
        return log_probs.view(rows, frames, -1), after

    def _features(self, pcm: Tensor) -> Tensor:
        """PCM (B, overlap + S) int16 -> (B, frames, F) fp16."""
        f = self.network.features
        windows = pcm.unfold(1, f.length, f.hop)  # (B, frames, window)

        def log_mel(samples: Tensor) -> Tensor:
            samples = samples.float()
            real, imaginary = samples @ self.real, samples @ self.imaginary
            energy = ((real * real + imaginary * imaginary) * 2.0**-30) @ f.filters
            return ((torch.log(energy + FLOOR) - f.mean) * f.scale).half()

        return in_tiles(log_mel, windows.reshape(-1, f.length)).view(*windows.shape[:2], -1)

    def _product(
        self, layer: nn.Linear, x: Tensor, act: Callable[[Tensor], Tensor], out: torch.dtype = torch.float16,
        cuts: list[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """act(W x + b) of x (N, K) fp16 -> (N, M)."""
        depth, is_head = layer.in_features, layer is self.network.head
        cuts = cuts or cut_points(depth, product_segments(layer.out_features, depth, whole=is_head))
        weight, bias = layer.weight.float(), layer.bias.float()
        return in_tiles(lambda tile: act(_segmented(tile, weight, cuts) + bias).to(out), x)

    def _conv(self, conv: PairConv, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, 2n, C) fp16 and the frames before it (B, CONTEXT, C) -> (B, n, C'), new context."""
        joined = torch.cat([context, x], dim=1)
        windows = joined.unfold(1, 2 * PAIRS, 2).transpose(2, 3)  # (B, n, 6, C)
        rows, count = windows.shape[:2]
        y = self._product(conv.product, windows.reshape(rows * count, -1), silu)
        return y.view(rows, count, -1), joined[:, -CONTEXT:]

    def _gru(self, gru: GRULayer, norm: nn.LayerNorm, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, H) and h (B, H) fp16 -> x', h after the last frame."""
        rows, frames, hidden = x.shape
        normed = in_tiles(lambda tile: _normalize(tile.float(), norm), x.reshape(rows * frames, hidden))
        weight, bias = gru.recurrent.weight.float(), gru.recurrent.bias.float()
        cuts = recurrent_segments(hidden)  # also for W, because one kernel computes both
        gates = self._product(gru.input, normed, lambda v: v, cuts=cuts).view(rows, frames, 3 * hidden)
        out = []
        for t in range(frames):
            state = in_tiles(lambda g, h: _cell(g.float(), _segmented(h, weight, cuts) + bias, h), gates[:, t], state)
            out.append(in_tiles(lambda x, h: (x.float() + h.float()).half(), x[:, t], state))
        return torch.stack(out, dim=1), state

    def _lookahead_norm(self, windows: Tensor) -> Tensor:
        """Values (N, H, lookahead + 1) fp16 -> fp16(norm(row convolution)), (N, H)."""
        weight = self.network.lookahead.weight.float()  # (lookahead + 1, H)
        total = torch.zeros(windows.shape[:2], device=windows.device)
        for ahead in range(len(weight)):
            total = total + windows[:, :, ahead].float() * weight[ahead]
        return _normalize(total, self.network.norm)


def _segmented(x: Tensor, weight: Tensor, cuts: list[int]) -> Tensor:
    """W x of x (N, K) fp16 and W (M, K) float32, segments added ascending: (N, M) float32."""
    total: Tensor | None = None
    for low, high in pairwise(cuts):
        part = x[:, low:high].float() @ weight[:, low:high].t()
        total = part if total is None else total + part
    assert total is not None
    return total


def _cell(gates: Tensor, product: Tensor, state: Tensor) -> Tensor:
    """Map gates and recurrent product (N, 3H) float32, h (N, H) fp16 to h' fp16."""
    g, p = gates.chunk(3, dim=1), product.chunk(3, dim=1)
    reset, update = sigmoid(g[0] + p[0]), sigmoid(g[1] + p[1])
    candidate = tanh(g[2] + reset * p[2])
    return (candidate + update * (state.float() - candidate)).half()


def _normalize(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Normalize rows of (N, H) float32, rounded to fp16."""
    centered = x - x.sum(dim=1, keepdim=True) / x.shape[1]
    variance = (centered * centered).sum(dim=1, keepdim=True) / x.shape[1]
    return (centered / torch.sqrt(variance + norm.eps) * norm.weight.float() + norm.bias.float()).half()


def _log_softmax(x: Tensor) -> Tensor:
    """Compute log-softmax of one group of outputs, (N, V) or (N, P + 1) float32."""
    x = x - x.amax(dim=1, keepdim=True)
    return x - torch.log(torch.exp2(x * LOG2E).sum(dim=1, keepdim=True))
