"""Sizes of a run: full, and tiny ones for `--dry` on a CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of all measurements."""

    networks: tuple[str, ...]
    step_rows: tuple[int, ...]
    replays: int  # of a step measured host to host
    hidden: tuple[int, ...]
    batch_sizes: tuple[int, ...]  # batch sizes in which a row must be bit-identical to the row alone
    streams: tuple[int, ...]
    level_s: float
    sequence: int  # consecutive steps compared with the reference


FULL = Scale(
    networks=("ds2-7x1760", "tutti-small", "ds2-5x1760"),
    step_rows=(1, 2, 4, 8, 16, 32, 64, 128),
    replays=2_000,
    hidden=(1_760, 416, 1_024, 2_048, 2_560),
    batch_sizes=(2, 3, 7, 8, 9, 16, 17, 33, 64, 128),
    streams=(1, 10, 20, 30, 100, 1_000, 4_000),
    level_s=7.0,
    sequence=200,
)
DRY = Scale(
    networks=("tiny",),
    step_rows=(1, 2),
    replays=3,
    hidden=(32,),
    batch_sizes=(2, 3),
    streams=(1, 3),
    level_s=0.3,
    sequence=3,
)


@dataclass(frozen=True, slots=True)
class Context:
    """Input of a section: device, sizes, and the time by which it should end."""

    device: torch.device
    scale: Scale
    ends_s: float = float("inf")  # of time.monotonic

    @property
    def left_s(self) -> float:
        """Seconds until `ends_s`."""
        return self.ends_s - time.monotonic()
