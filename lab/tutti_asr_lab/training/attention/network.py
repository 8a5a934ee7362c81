"""The attention network in torch, for training: whole recordings, whose frames see what masks show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention_config import GELU_FACTOR, HOPS, AttentionConfig
from model.audio.mel import slaney_filters
from model.torch_network.network import LogMel

EPSILON = 1e-5


class FeedForward(nn.Module):
    """Norm, product, SiLU, product: (..., D) -> (..., D)."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, EPSILON)
        self.inner = nn.Linear(config.width, config.feed_forward)
        self.outer = nn.Linear(config.feed_forward, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D)."""
        return cast(Tensor, self.outer(functional.silu(self.inner(self.norm(x)))))


class Block(nn.Module):
    """One block; its parts are added to their input."""

    def __init__(self, config: AttentionConfig, dropout: float) -> None:
        super().__init__()
        width = config.width
        self.heads, self.before = config.heads, config.before
        self.feed1, self.feed2 = FeedForward(config), FeedForward(config)
        self.attention_norm, self.convolution_norm = nn.LayerNorm(width, EPSILON), nn.LayerNorm(width, EPSILON)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.pointwise_in, self.pointwise_out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.depthwise = nn.Conv1d(width, width, config.kernel, groups=width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, chunk: int) -> Tensor:
        """x (B, T, D), the keys of each frame `mask` (B or 1, 1, T, T) -> (B, T, D); T is a multiple of `chunk`."""
        x = x + self.dropout(0.5 * self.feed1(x))
        x = x + self.dropout(self.attend(x, mask))
        x = x + self.dropout(self.convolve(x, chunk))
        x = x + self.dropout(0.5 * self.feed2(x))
        return cast(Tensor, self.norm(x))

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attention of each head to the frames of the mask."""
        rows, frames, width = x.shape
        joined = self.attention_in(self.attention_norm(x)).view(rows, frames, 3, self.heads, width // self.heads)
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)  # (B, H, T, D / H)
        return cast(Tensor, self.attention_out(mixed.transpose(1, 2).reshape(rows, frames, width)))

    def convolve(self, x: Tensor, chunk: int) -> Tensor:
        """Gated convolution; frames after a frame's chunk count as zeros."""
        rows, frames, width = x.shape
        gated = functional.glu(self.pointwise_in(self.convolution_norm(x)), -1).transpose(1, 2)  # (B, D, T)
        spans = functional.pad(gated, (self.before, 0)).unfold(2, self.before + chunk, chunk)  # (B, D, T / chunk, span)
        spans = spans.permute(0, 2, 1, 3).reshape(-1, width, self.before + chunk)
        mixed = self.depthwise(functional.pad(spans, (0, self.before)))  # (B * T / chunk, D, chunk)
        mixed = mixed.view(rows, -1, width, chunk).transpose(2, 3).reshape(rows, frames, width)
        return cast(Tensor, self.pointwise_out(functional.silu(mixed)))


class AttentionNetwork(nn.Module):
    """Maps normalized log-mel features to logits of letters and phones."""

    def __init__(self, config: AttentionConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.features = LogMel(config, slaney_filters(config))
        self.stem = nn.Conv1d(config.mel_bins, config.width, 3, stride=HOPS)
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.blocks))
        self.head = nn.Linear(config.width, config.outputs)

    def read(self, pcm: Tensor) -> Tensor:
        """int16 PCM (B, S), S a multiple of the frame's samples -> normalized log-mel (B, 2T, F) float32."""
        silence = torch.zeros(len(pcm), self.features.overlap, dtype=torch.int16)
        return cast(Tensor, self.features(pcm, silence)[0])

    def forward(self, features: Tensor, frames: Tensor, chunk: int = 0, left: int = 0) -> Tensor:
        """Normalized log-mel (B, 2T, F) of recordings of `frames` (B,) frames -> logits (B, T, outputs).

        `chunk`: frames that are computed together, which see `left` frames before them and none after; 0: all.
        """
        x = functional.pad(features, (0, 0, 1, 0)).transpose(1, 2)  # (B, F, 2T + 1)
        x = self.stem(x).transpose(1, 2)
        x = x * torch.sigmoid(GELU_FACTOR * x)
        count = x.shape[1]
        length = chunk or count
        x = functional.pad(x, (0, 0, 0, -count % length))
        mask = seen(x.shape[1], frames, chunk, left)
        for block in self.blocks:
            x = block(x, mask, length)
        return cast(Tensor, self.head(x[:, :count]))

    def parts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Split outputs (..., config.outputs) into letters (..., V) and phones (..., P + 1), if it has phones."""
        letters = len(self.config.vocabulary)
        return (outputs[..., :letters], outputs[..., letters:]) if self.config.phones else (outputs,)

    def body(self) -> Iterator[nn.Parameter]:
        """Parameters before the head."""
        return (parameter for name, parameter in self.named_parameters() if not name.startswith("head."))


def seen(count: int, frames: Tensor, chunk: int, left: int) -> Tensor:
    """Keys of each of `count` frames, (B or 1, 1, T or 1, T) bool; after a recording's end only chunks have some."""
    position = torch.arange(count)
    if not chunk:
        return (position < frames[:, None])[:, None, None]
    begin = (position // chunk * chunk)[:, None]
    return ((position < begin + chunk) & (position >= begin - left))[None, None]
