"""Comparison of reduced precisions with float32: the largest difference in log-probabilities on the same audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.acoustic import load_own, log_probs_of

LIKELY = 1e-3  # a symbol below this probability in both precisions is never chosen


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest difference of natural log-probabilities; `likely`: only symbols above 0.1 % in either precision."""

    largest: float
    likely: float

    def rounded(self) -> Difference:
        """Rounded to 1e-4, as reported."""
        return Difference(round(self.largest, 4), round(self.likely, 4))


def differences(
    path: Path | None, precisions: Sequence[str], device: str, recordings: Sequence[NDArray[np.int16]]
) -> dict[str, Difference]:
    """Compare each precision with float32 on the recordings, (S,) int16 each. Raises: ModelError."""
    full = log_probs_of(load_own(path, device=device, precision="fp32"), recordings)
    found: dict[str, Difference] = {}
    for name in precisions:
        ours = log_probs_of(load_own(path, device=device, precision=name), recordings)
        gaps = [_gap(left, right) for left, right in zip(ours, full, strict=True)]
        found[name] = Difference(max(gap.largest for gap in gaps), max(gap.likely for gap in gaps)).rounded()
    return found


def _gap(ours: NDArray[np.float32], exact: NDArray[np.float32]) -> Difference:
    gap = np.abs(ours - exact)  # (T, V)
    chosen = np.maximum(ours, exact) > np.log(LIKELY)
    return Difference(float(gap.max()), float(gap[chosen].max()))
