"""The device buffers of one step: which rows take part, where their states lie, audio in, log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Buffers of up to R rows and k steps each. Rows beyond the real ones read the zero row and write the trash row."""

    rows: Tensor  # (1,) int32, real rows
    read: Tensor  # (R,) int32, rows of the slabs that the states are read from
    write: Tensor  # (R,) int32, rows of the slabs that the states are written to
    pcm: Tensor  # (R, k * S) int16
    out: Tensor  # (R, k * frames_per_step, V) float32

    @classmethod
    def allocate(cls, config: ModelConfig, device: torch.device | str, rows: int, steps: int = 1) -> StepBlock:
        """Zeroed buffers of `rows` rows and `steps` steps each."""
        frames = steps * config.frames_per_step
        return cls(
            rows=torch.zeros(1, dtype=torch.int32, device=device),
            read=torch.zeros(rows, dtype=torch.int32, device=device),
            write=torch.zeros(rows, dtype=torch.int32, device=device),
            pcm=torch.zeros(rows, steps * config.step_samples, dtype=torch.int16, device=device),
            out=torch.zeros(rows, frames, len(config.vocabulary), device=device),
        )
