"""What a reduced precision changes: the largest difference in log-probabilities against float32 on the same audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.acoustic import AcousticModel

ROWS = 48
LIKELY = 1e-3  # a symbol below this in both precisions is never chosen, whatever its logarithm does


@dataclass(frozen=True, slots=True)
class Difference:
    """Natural logarithms. `likely` looks only at symbols that either precision gives at least 0.1 %."""

    largest: float
    likely: float


def difference(path: Path | None, precision: str, device: str, recordings: Sequence[NDArray[np.int16]]) -> Difference:
    """Run the recordings, (S,) int16 each, through the checkpoint in both precisions. Raises: ModelError."""
    reduced = AcousticModel.load(path, device=device, precision=precision)
    full = AcousticModel.load(path, device=device, precision="fp32")
    largest = likely = 0.0
    for start in range(0, len(recordings), ROWS):
        pcm = _batch(recordings[start : start + ROWS], full.config.step_samples).to(full.device)
        ours, _ = reduced.step(pcm, reduced.network.fresh_state(len(pcm)))
        exact, _ = full.step(pcm, full.network.fresh_state(len(pcm)))
        gap = (ours - exact).abs()
        largest = max(largest, float(gap.max()))
        chosen = torch.maximum(ours, exact) > np.log(LIKELY)
        likely = max(likely, float(gap[chosen].max()))
    return Difference(round(largest, 4), round(likely, 4))


def _batch(recordings: Sequence[NDArray[np.int16]], step_samples: int) -> Tensor:
    longest = max(len(pcm) for pcm in recordings)
    batch = torch.zeros(len(recordings), -(-longest // step_samples) * step_samples, dtype=torch.int16)  # (B, S)
    for row, pcm in enumerate(recordings):
        batch[row, : len(pcm)] = torch.from_numpy(np.array(pcm))
    return batch
