"""The streaming Deep Speech 2 network: strided convolutions, forward GRUs, lookahead convolution, CTC head.

One code path serves a step and a whole utterance: `forward` takes any number of steps at once and carries all that it
must remember in a dict of named tensors, batch on axis 0, zeros for a fresh stream.
Source: Amodei et al. 2015, https://arxiv.org/abs/1512.02595 (row convolution: section 3.7).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import ModelConfig
from model.features import LogMel
from model.gru import GRULayer

State = dict[str, Tensor]
PAIRS = 3  # a convolution sees three pairs of frames (kernel 6, stride 2) and so remembers two pairs
CONTEXT = 2 * (PAIRS - 1)  # frames of context that a convolution carries over


class PairConv(nn.Module):
    """Causal convolution over time, kernel 6, stride 2, written as one product over joined frame pairs.

    A product's rows do not depend on one another, where a library convolution may choose its algorithm by batch size.
    """

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.product = nn.Linear(2 * PAIRS * channels, out)

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, 2n, C) and the frames before it (B, CONTEXT, C) -> (B, n, C'), new context."""
        joined = torch.cat([context, x], dim=1)  # (B, CONTEXT + 2n, C)
        pairs = joined.view(joined.shape[0], -1, 2 * joined.shape[2])  # (B, PAIRS - 1 + n, 2C)
        count = x.shape[1] // 2
        windows = torch.cat([pairs[:, i : i + count] for i in range(PAIRS)], dim=2)  # (B, n, 2 * PAIRS * C)
        return functional.silu(self.product(windows)), joined[:, -CONTEXT:]


class Lookahead(nn.Module):
    """Row convolution: each unit's output mixes its own present and next `frames` values."""

    def __init__(self, hidden: int, frames: int) -> None:
        super().__init__()
        self.frames = frames
        weight = torch.zeros(frames + 1, hidden)
        weight[0] = 1.0  # start as the identity
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor, waiting: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, H) and the frames not answered yet (B, frames, H) -> answers for the oldest T frames."""
        joined = torch.cat([waiting, x], dim=1)  # (B, frames + T, H)
        count = x.shape[1]
        out = joined[:, :count] * self.weight[0]
        for ahead in range(1, self.frames + 1):
            out = torch.addcmul(out, joined[:, ahead : ahead + count], self.weight[ahead])
        return out, joined[:, count:]


class Network(nn.Module):
    """PCM in, log-probabilities out; `forward` is the step function of `batching.StepModel`."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.features = LogMel(config)
        self.conv0 = PairConv(config.mel_bins, config.conv_channels)
        self.conv1 = PairConv(config.conv_channels, config.hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(config.hidden) for _ in range(config.layers))
        self.grus = nn.ModuleList(GRULayer(config.hidden, config.hidden) for _ in range(config.layers))
        self.lookahead = Lookahead(config.hidden, config.lookahead)
        self.norm = nn.LayerNorm(config.hidden)
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.head = nn.Linear(config.hidden, len(config.vocabulary))
        self.dropout = nn.Dropout(dropout)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the products run in."""
        return self.head.weight.dtype

    def state_shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Name, shape without the batch axis, and dtype of each tensor that a stream carries over."""
        c = self.config
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "pcm": ((self.features.overlap,), torch.int16),
            "conv0": ((CONTEXT, c.mel_bins), self.dtype),
            "conv1": ((CONTEXT, c.conv_channels), self.dtype),
        }
        shapes |= {f"gru{i}": ((c.hidden,), self.dtype) for i in range(c.layers)}
        return shapes | {"lookahead": ((c.lookahead, c.hidden), self.dtype)}

    def fresh_state(self, rows: int) -> State:
        """State of `rows` streams that have heard nothing: zeros."""
        device = self.head.weight.device
        return {k: torch.zeros(rows, *s, dtype=d, device=device) for k, (s, d) in self.state_shapes().items()}

    def forward(self, pcm: Tensor, state: State) -> tuple[Tensor, State]:
        """int16 PCM (B, n * step_samples) -> log-probs (B, n * frames_per_step, V) float32, next state."""
        features, overlap = self.features(pcm, state["pcm"])
        logits, after = self.encode(features.to(self.dtype), state)
        return functional.log_softmax(logits.float(), dim=-1), {"pcm": overlap, **after}

    def encode(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Normalised log-mel (B, 4n, F) -> logits (B, n, V), next state without the PCM overlap."""
        after: State = {}
        x, after["conv0"] = self.conv0(features, state["conv0"])  # (B, 2n, conv_channels)
        x, after["conv1"] = self.conv1(x, state["conv1"])  # (B, n, H)
        for i, (norm, gru) in enumerate(zip(self.norms, self.grus, strict=True)):
            out, after[f"gru{i}"] = gru(norm(x), state[f"gru{i}"])
            x = x + self.dropout(out)
        x, after["lookahead"] = self.lookahead(x, state["lookahead"])
        x = self.dropout(functional.silu(self.dense(self.norm(x))))
        return self.head(x), after
