"""CTC loss of a batch."""

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
