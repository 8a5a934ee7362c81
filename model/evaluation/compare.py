"""Reduced precisions compared with float32: the largest difference in log-probabilities on the same audio."""

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
LIKELY = 1e-3  # a symbol below this in both precisions is never chosen, so its difference does not matter


@dataclass(frozen=True, slots=True)
class Difference:
    """In natural logarithms; `likely` over the symbols that either precision gives at least 0.1 %."""

    largest: float
    likely: float

    def worse_of(self, other: Difference) -> Difference:
        """The larger of both figures."""
        return Difference(max(self.largest, other.largest), max(self.likely, other.likely))

    def rounded(self) -> Difference:
        """To 1e-4, as reported."""
        return Difference(round(self.largest, 4), round(self.likely, 4))


def differences(
    path: Path | None, precisions: Sequence[str], device: str, recordings: Sequence[NDArray[np.int16]]
) -> dict[str, Difference]:
    """Run the recordings, (S,) int16 each, through the checkpoint in every precision. Raises: ModelError."""
    reduced = {name: AcousticModel.load(path, device=device, precision=name) for name in precisions}
    full = AcousticModel.load(path, device=device, precision="fp32")
    found = dict.fromkeys(reduced, Difference(0.0, 0.0))
    in_length = sorted(recordings, key=len)  # for little padding in a batch
    for start in range(0, len(in_length), ROWS):
        pcm = _batch(in_length[start : start + ROWS], full.config.step_samples).to(full.device)
        exact, _ = full.step(pcm, full.network.fresh_state(len(pcm)))  # (B, T, V)
        for name, model in reduced.items():
            ours, _ = model.step(pcm, model.network.fresh_state(len(pcm)))  # (B, T, V)
            found[name] = found[name].worse_of(_gap(ours, exact))
    return {name: gap.rounded() for name, gap in found.items()}


def _gap(ours: Tensor, exact: Tensor) -> Difference:
    gap = (ours - exact).abs()
    chosen = torch.maximum(ours, exact) > np.log(LIKELY)
    return Difference(float(gap.max()), float(gap[chosen].max()))


def _batch(recordings: Sequence[NDArray[np.int16]], step_samples: int) -> Tensor:
    longest = max(len(pcm) for pcm in recordings)
    batch = torch.zeros(len(recordings), -(-longest // step_samples) * step_samples, dtype=torch.int16)  # (B, S)
    for row, pcm in enumerate(recordings):
        batch[row, : len(pcm)] = torch.from_numpy(np.array(pcm))
    return batch
