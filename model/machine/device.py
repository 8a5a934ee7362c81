"""Device on which a model computes, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Device:
    """A device that needs no torch; as text the name that `--device` and torch have for it."""

    type: Literal["cpu", "cuda"]

    def __str__(self) -> str:
        return self.type


CPU = Device("cpu")
