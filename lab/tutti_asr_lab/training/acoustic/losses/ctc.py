"""CTC loss of a batch, and the divergence between two sets of outputs."""

from __future__ import annotations

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


def divergence(target: Tensor, log_probs: Tensor) -> Tensor:
    """Kullback-Leibler divergence of log-probabilities (B, T, V) from those of `target`, per frame, (B, T)."""
    return (target.exp() * (target - log_probs)).sum(2)
