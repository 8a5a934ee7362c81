"""The streaming Deep Speech 2 network: log-mel features, strided convolutions, GRUs, lookahead convolution, head.

A step and a whole utterance use the same code: `forward` takes any number of steps at once and returns all that it
carries over, including samples of feature windows, as named tensors, batch on axis 0, zeros for a new stream.
Source: Amodei et al. 2015, https://arxiv.org/abs/1512.02595 (row convolution: section 3.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from model.audio.mel import FLOOR, FeatureConfig, mel_filters
from model.config import CONTEXT, PAIRS, ModelConfig

State = dict[str, Tensor]
Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Differentiable: gates (B, T, 3H) = Wx + b, U (3H, H), its bias (3H), first state (B, H) -> states (B, T, H)."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # of the products alone


class LogMel(nn.Module):
    """Maps PCM (B, S) and its overlap (B, window - hop) to normalized log-mel frames (B, S / hop, F) float32."""

    window: Tensor
    filters: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, config: FeatureConfig, filters: NDArray[np.float32]) -> None:
        super().__init__()
        self.hop, self.length, self.fft_size = config.hop_samples, config.window_samples, config.fft_size
        self.overlap = config.window_samples - config.hop_samples
        self.register_buffer("window", torch.hann_window(config.window_samples), persistent=False)
        self.register_buffer("filters", torch.from_numpy(filters), persistent=False)
        self.register_buffer("mean", torch.zeros(config.mel_bins))  # over the training set, stored with the weights
        self.register_buffer("scale", torch.ones(config.mel_bins))

    def log_mel(self, pcm: Tensor) -> Tensor:
        """Map float PCM in [-1, 1], (B, overlap + n * hop), to log-mel energies (B, n, F), not normalized."""
        frames = pcm.unfold(-1, self.length, self.hop) * self.window  # (B, n, window)
        spectrum = torch.fft.rfft(frames, self.fft_size)  # (B, n, fft / 2 + 1) complex
        power = spectrum.real.square() + spectrum.imag.square()
        return torch.log(power @ self.filters + FLOOR)  # (B, n, F)

    def forward(self, pcm: Tensor, overlap: Tensor) -> tuple[Tensor, Tensor]:
        """int16 PCM (B, S) and the samples before it (B, overlap) int16 -> frames (B, S / hop, F), new overlap."""
        joined = torch.cat([overlap, pcm], dim=1)  # (B, overlap + S) int16
        features = (self.log_mel(joined.to(torch.float32) * (1 / 32768)) - self.mean) * self.scale
        return features, joined[:, -self.overlap :]


class PairConv(nn.Module):
    """Causal convolution over time, kernel 6, stride 2, as one product over joined frame pairs.

    Rows of a product are independent, whereas a library convolution may choose its algorithm by batch size.
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


def gate_factors(
    state: Tensor, reset: Tensor, update: Tensor, candidate: Tensor, recurrent: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Derivatives of h' by what enters the gates of a GRU, from h, the gates and Uh_n, all of one shape.

    In order: by the sums of reset and update, by Uh_n, and by Wx_n, which the reset gate does not scale.
    """
    to_candidate = (1 - update) * (1 - candidate.square())
    to_reset = to_candidate * recurrent * reset * (1 - reset)
    return to_reset, (state - candidate) * update * (1 - update), to_candidate * reset, to_candidate


class Scan(torch.autograd.Function):
    """Recurrence of a GRU over a whole utterance, time-major, with a backward pass for training on a CPU.

    One large product computes the weight gradient, whereas autograd would add a small one for every frame.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
        """gates (T, B, 3H) = Wx + b, weight (3H, H), bias (3H), first state (B, H) -> states (T, B, H)."""
        steps, rows, width = gates.shape[0], gates.shape[1], weight.shape[1]
        weight_t = weight.to(gates.dtype).t()
        bias = bias.to(gates.dtype)
        hidden = gates.new_empty(steps + 1, rows, width)
        hidden[0] = first
        reset_update = gates.new_empty(steps, rows, 2 * width)
        candidate, recurrent = gates.new_empty(steps, rows, width), gates.new_empty(steps, rows, width)
        for t in range(steps):
            product = torch.addmm(bias, hidden[t], weight_t)  # (B, 3H)
            both = torch.add(gates[t, :, : 2 * width], product[:, : 2 * width], out=reset_update[t]).sigmoid_()
            recurrent[t] = product[:, 2 * width :]
            torch.addcmul(gates[t, :, 2 * width :], both[:, :width], recurrent[t], out=candidate[t]).tanh_()
            torch.lerp(candidate[t], hidden[t], both[:, width:], out=hidden[t + 1])
        ctx.save_for_backward(hidden, reset_update, candidate, recurrent, weight)
        return hidden[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Backpropagate through time; factors independent of the gradient are computed for all frames at once."""
        hidden, reset_update, candidate, recurrent, weight = ctx.saved_tensors
        steps, rows, width = candidate.shape
        reset, update = reset_update[..., :width], reset_update[..., width:]
        *recurrent_side, to_candidate = gate_factors(hidden[:-1], reset, update, candidate, recurrent)
        factors = torch.stack(recurrent_side, dim=2)  # (T, B, 3, H)
        weight = weight.to(grad.dtype)
        grads = torch.empty_like(factors)
        carried = torch.zeros_like(grad[0])
        for t in range(steps - 1, -1, -1):
            carried = carried + grad[t]
            torch.mul(factors[t], carried[:, None], out=grads[t])
            to_candidate[t] *= carried
            carried = torch.addmm(carried * update[t], grads[t].view(rows, 3 * width), weight)
        flat = grads.view(steps * rows, 3 * width)
        grad_weight = flat.t() @ hidden[:-1].reshape(steps * rows, width)
        grad_bias = flat.sum(0, dtype=torch.float32)
        grads[:, :, 2] = to_candidate  # the input side of the candidate is not scaled by the reset gate
        return grads.view(steps, rows, 3 * width), grad_weight.float(), grad_bias, carried


class GRULayer(nn.Module):
    """One GRU layer: maps x (B, T, H) and the state before it (B, H) to outputs (B, T, H) and the state after it.

    The cell is the cuDNN / PyTorch form, in which the reset gate acts after the recurrent product:
        r = σ(Wx_r + Uh_r)   z = σ(Wx_z + Uh_z)   n = tanh(Wx_n + r ∘ Uh_n)   h' = (1 - z) ∘ n + z ∘ h
    Source: Cho et al. 2014 in the variant of https://svail.github.io/diff_graphs/ (about 10 % cheaper, as accurate).
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 3 * hidden)
        self.recurrent = nn.Linear(hidden, 3 * hidden)
        self.hidden = hidden
        self.recurrence: Recurrence | None = None  # for training; otherwise torch's
        bound = 1 / math.sqrt(hidden)
        nn.init.uniform_(self.input.weight, -bound, bound)
        for gate in range(3):
            nn.init.orthogonal_(self.recurrent.weight[gate * hidden : (gate + 1) * hidden])
        nn.init.zeros_(self.recurrent.bias)
        nn.init.zeros_(self.input.bias)
        nn.init.ones_(self.input.bias[hidden : 2 * hidden])  # the update gate starts open for the old state

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """For training use `recurrence`, else cuDNN on a GPU, else the scan; for serving loop over the few frames."""
        if not torch.is_grad_enabled():
            return self.steps(x, state)
        if self.recurrence is not None:
            out = self.recurrence(self.input(x), self.recurrent.weight, self.recurrent.bias, state)
            return out, out[:, -1]
        if x.is_cuda:
            weights = [self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias]
            out, last = torch._VF.gru(x, state[None].to(x.dtype), weights, True, 1, 0.0, False, False, True)
            return out, last[0]
        gates = self.input(x.transpose(0, 1).contiguous())  # (T, B, 3H); slow otherwise for weights without gradients
        states: Tensor = Scan.apply(gates, self.recurrent.weight, self.recurrent.bias, state.to(gates.dtype))  # type: ignore[no-untyped-call]
        return states.transpose(0, 1), states[-1]

    def steps(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute frame by frame; a row's result does not depend on the other rows."""
        width = self.hidden
        gates = self.input(x)  # (B, T, 3H)
        outputs = []
        for gate in gates.unbind(1):
            product = self.recurrent(state)  # (B, 3H)
            both = torch.sigmoid(gate[:, : 2 * width] + product[:, : 2 * width])
            candidate = torch.tanh(torch.addcmul(gate[:, 2 * width :], both[:, :width], product[:, 2 * width :]))
            state = torch.lerp(candidate, state, both[:, width:])  # (B, H)
            outputs.append(state)
        return torch.stack(outputs, dim=1), state


class Lookahead(nn.Module):
    """Row convolution: the output of each unit is a mix of its own current and next `frames` values."""

    def __init__(self, hidden: int, frames: int) -> None:
        super().__init__()
        self.frames = frames
        weight = torch.zeros(frames + 1, hidden)
        weight[0] = 1.0  # initially the identity
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor, waiting: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, H) and earlier frames without an output (B, frames, H) -> outputs (B, T, H), frames without one."""
        joined = torch.cat([waiting, x], dim=1)  # (B, frames + T, H)
        count = x.shape[1]
        out = joined[:, :count] * self.weight[0]
        for ahead in range(1, self.frames + 1):
            out = torch.addcmul(out, joined[:, ahead : ahead + count], self.weight[ahead])
        return out, joined[:, count:]


class Network(nn.Module):
    """Maps PCM to log-probabilities; `forward` is the step function of `model.torch_network.slots.StepModel`."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.features = LogMel(config, mel_filters(config))
        self.conv0 = PairConv(config.mel_bins, config.conv_channels)
        self.conv1 = PairConv(config.conv_channels, config.hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(config.hidden) for _ in range(config.layers))
        self.grus = nn.ModuleList(GRULayer(config.hidden, config.hidden) for _ in range(config.layers))
        self.lookahead = Lookahead(config.hidden, config.lookahead)
        self.norm = nn.LayerNorm(config.hidden)
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.head = nn.Linear(config.hidden, config.outputs)
        self.dropout = nn.Dropout(dropout)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the products."""
        return self.head.weight.dtype

    def state_shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return name, shape without the batch axis, and dtype of each tensor that a stream carries over."""
        c = self.config
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "pcm": ((self.features.overlap,), torch.int16),
            "conv0": ((CONTEXT, c.mel_bins), self.dtype),
            "conv1": ((CONTEXT, c.conv_channels), self.dtype),
        }
        shapes |= {f"gru{i}": ((c.hidden,), self.dtype) for i in range(c.layers)}
        return shapes | {"lookahead": ((c.lookahead, c.hidden), self.dtype)}

    def fresh_state(self, rows: int) -> State:
        """Return the state of `rows` new streams: zeros."""
        device = self.head.weight.device
        return {k: torch.zeros(rows, *s, dtype=d, device=device) for k, (s, d) in self.state_shapes().items()}

    def forward(self, pcm: Tensor, state: State) -> tuple[Tensor, State]:
        """int16 PCM (B, n * step_samples) -> log-probs (B, n * frames_per_step, outputs) float32, next state."""
        features, overlap = self.features(pcm, state["pcm"])
        logits, after = self.encode(features.to(self.dtype), state)
        log_probs = [functional.log_softmax(part, dim=-1) for part in self.parts(logits.float())]
        return log_probs[0] if len(log_probs) == 1 else torch.cat(log_probs, dim=-1), {"pcm": overlap, **after}

    def parts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Split outputs (..., config.outputs) into letters (..., V) and phones (..., P + 1), if it has phones."""
        letters = len(self.config.vocabulary)
        return (outputs[..., :letters], outputs[..., letters:]) if self.config.phones else (outputs,)

    def encode(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Normalized log-mel (B, 4n, F) -> logits (B, n, outputs), next state without the PCM overlap."""
        after: State = {}
        x, after["conv0"] = self.conv0(features, state["conv0"])  # (B, 2n, conv_channels)
        x, after["conv1"] = self.conv1(x, state["conv1"])  # (B, n, H)
        for i, (norm, gru) in enumerate(zip(self.norms, self.grus, strict=True)):
            out, after[f"gru{i}"] = gru(norm(x), state[f"gru{i}"])
            x = x + self.dropout(out)
        x, after["lookahead"] = self.lookahead(x, state["lookahead"])
        x = self.dropout(functional.silu(self.dense(self.norm(x))))
        return self.head(x), after


def cast(network: Network, precision: str, device: torch.device) -> Network:
    """Move a network to its device and precision, in place; features, log-softmax and decoding stay in float32."""
    network.to(device=device, dtype=DTYPES[precision])
    network.features.to(dtype=torch.float32)
    return network
