"""Muon for the weight matrices and AdamW for all other weights, with one step; the learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tutti_asr_lab.training.acoustic.optimizer.muon import Muon
from tutti_asr_lab.training.acoustic.parallel.team import Team


class Optimizers:
    """Muon and AdamW. The caller sets the gradients, which must be equal in every process."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        matrix_lr: float,
        vector_lr: float,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
        team: Team | None = None,
    ) -> None:
        """Assign named parameters: matrices to Muon; heads and element-wise weights to AdamW. `dtype`: Muon's."""
        matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        for name, parameter in parameters:
            inner = parameter.ndim == 2 and not {"head", "lookahead"} & set(name.split("."))
            (matrices if inner else vectors).append(parameter)
        self.matrix_lr, self.vector_lr = matrix_lr, vector_lr
        self.muon = Muon(matrices, weight_decay, dtype, team or Team())
        self.adamw = torch.optim.AdamW(vectors, lr=vector_lr, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, factor: float) -> None:
        """Apply the gradients at `factor` times the peak learning rates."""
        for group in self.adamw.param_groups:
            group["lr"] = self.vector_lr * factor
        self.adamw.step()
        self.muon.step(self.matrix_lr * factor)

    def state_dict(self) -> dict[str, Any]:
        """State for a snapshot."""
        return {"adamw": self.adamw.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.adamw.load_state_dict(states["adamw"])
        self.muon.load_state_dict(states["muon"])


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rate schedule: linear warm-up, constant, then cosine decay to zero over the share `decay` of updates."""

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
