"""Distillation: the divergence from the mean probabilities of teacher networks, frame by frame.

The mean of several networks has fewer errors than each of them, and one network can learn most of that. Teachers get
the same audio, with its noise, rooms and speeds, but without telephone line, masks and dropout. CTC networks may emit
a letter in different frames; networks trained from the same initial weights emit it in the same one, so frames can be
compared.
Source: Hinton et al. 2015, arXiv:1503.02531; for CTC, Kurata and Audhkhasi 2018 (teachers of one alignment).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor
from torch.nn import functional

from model.errors import TrainingError
from model.torch_network.network import Network

_FEATURES = ("sample_rate", "window_samples", "hop_samples", "fft_size", "mel_bins", "mel_low_hz", "mel_high_hz")


class Teachers:
    """Frozen copies of networks with the same outputs as the student."""

    def __init__(self, networks: Sequence[Network], device: torch.device) -> None:
        self.networks = [
            deepcopy(network).to(device).eval().requires_grad_(requires_grad=False) for network in networks
        ]

    @property
    def digest(self) -> str:
        """Digest of the teachers' weights."""
        found = hashlib.sha256()
        for network in self.networks:
            for value in network.state_dict().values():
                found.update(value.cpu().numpy().tobytes())
        return found.hexdigest()

    def check(self, student: Network) -> None:
        """Check that letters, phones, delay and features equal the student's. Raises: TrainingError."""
        config = student.config
        for network in self.networks:
            theirs, name = network.config, f"{network.config.name} {network.config.version}"
            if (theirs.vocabulary, theirs.phones) != (config.vocabulary, config.phones):
                raise TrainingError(f"the teacher {name} has other letters or phones than the model in training")
            if theirs.delay_frames != config.delay_frames:
                raise TrainingError(f"the teacher {name} has another lookahead than the model in training")
            if any(getattr(theirs, each) != getattr(config, each) for each in _FEATURES):
                raise TrainingError(f"the teacher {name} uses other features than the model in training")

    def __call__(self, log_mel: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Logarithms of the mean probabilities: (B, T, V), and (B, T, P + 1) of phones.

        `log_mel` (B, 4T, F) is not normalized: each teacher uses its own statistics. Products are computed in `dtype`.
        No weight requires a gradient; gradients stay enabled because the recurrent layers are fast only then.
        """
        found: list[tuple[Tensor, ...]] = []
        for network in self.networks:
            features = (log_mel - network.features.mean) * network.features.scale
            with torch.autocast(features.device.type, dtype, enabled=dtype != torch.float32):
                outputs, _ = network.encode(features, network.fresh_state(len(features)))
            parts = network.parts(outputs[:, network.config.delay_frames :].float())
            found.append(tuple(functional.log_softmax(part, dim=-1) for part in parts))
        return tuple(torch.logsumexp(torch.stack(part), 0) - math.log(len(found)) for part in zip(*found, strict=True))


def distillation_loss(log_probs: Tensor, taught: Tensor, frames: Tensor) -> Tensor:
    """Divergence of `log_probs` from `taught`, (B, T, V) float32, summed over the first `frames` (B,) of each row."""
    present = torch.arange(log_probs.shape[1], device=log_probs.device) < frames.to(log_probs.device)[:, None]  # (B, T)
    return (divergence(taught, log_probs) * present).sum()


def divergence(target: Tensor, log_probs: Tensor) -> Tensor:
    """Kullback-Leibler divergence of log-probabilities (B, T, V) from those of `target`, per frame, (B, T)."""
    return (target.exp() * (target - log_probs)).sum(2)
