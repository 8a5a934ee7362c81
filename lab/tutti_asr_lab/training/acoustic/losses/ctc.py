"""CTC loss of a batch, and the divergence between the outputs for two views of the same recordings."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from model.config import BLANK
from tutti_asr_lab.training.acoustic.data.batches import Targets


def ctc_loss(log_probs: Tensor, frames: Tensor, targets: Targets) -> Tensor:
    """Sum of the CTC losses of a batch, (), from log-probabilities (B, T, V) float32. Source: Graves et al. 2006."""
    return functional.ctc_loss(
        log_probs.transpose(0, 1),  # (T, B, V)
        targets.symbols.to(log_probs.device),
        frames,
        targets.lengths,
        blank=BLANK,
        reduction="sum",
        zero_infinity=True,  # a recording too short for its text has no gradient
    )


def consistency_loss(log_probs: Tensor, frames: Tensor) -> Tensor:
    """Divergence between two views, (): the mean of both directions, summed over the first `frames` (B,) of each row.

    `log_probs` (2B, T, V) float32 has the second view of row i in row B + i. Each direction has a gradient only for the
    view that is moved towards the other. Source: Yao et al. 2024, arXiv:2410.05101.
    """
    one, other = log_probs.chunk(2)  # (B, T, V)
    present = torch.arange(one.shape[1], device=one.device) < frames.to(one.device)[:, None]  # (B, T)
    both = divergence(other.detach(), one) + divergence(one.detach(), other)  # (B, T)
    return (both * present).sum() / 2


def divergence(target: Tensor, log_probs: Tensor) -> Tensor:
    """Kullback-Leibler divergence of log-probabilities (B, T, V) from those of `target`, per frame, (B, T)."""
    return (target.exp() * (target - log_probs)).sum(2)
