"""How the kernels of a step are launched: overlapped or not, with or without weights fetched ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Launching:
    """Choices that change no bit, only when things happen."""

    overlapped: bool = False
    """Programmatic dependent launch: a kernel is placed on the chip while the one before it ends."""
    ahead: bool = False
    """A kernel asks for the weights of the next one to be brought into the second-level cache."""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of every launch."""
        return {"PDL": True, "launch_pdl": True} if self.overlapped else {"PDL": False}

    def fetched(self, weights: Tensor | None, otherwise: Tensor) -> dict[str, Any]:
        """Arguments of a launch that fetches `weights` ahead, if any; `otherwise` stands for no tensor."""
        if weights is None or not self.ahead:
            return {"ahead": otherwise, "ahead_bytes": 0, "AHEAD": False}
        return {"ahead": weights, "ahead_bytes": weights.numel() * weights.element_size(), "AHEAD": True}


PLAIN = Launching()
