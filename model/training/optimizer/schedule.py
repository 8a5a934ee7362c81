"""Learning rates over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, flat, then a decay to zero over the last `decay` of the updates."""

    updates: int
    warmup: int = 150
    decay: float = 0.7

    def __call__(self, update: int) -> float:
        """Factor on the peak learning rate at this update (0-based)."""
        if update < self.warmup:
            return (update + 1) / self.warmup
        start = self.updates * (1 - self.decay)
        if update < start:
            return 1.0
        share = min(1.0, (update - start) / max(1.0, self.updates - start))
        return 0.5 * (1 + math.cos(math.pi * share))
