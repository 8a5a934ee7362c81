"""Muon for the weight matrices, AdamW for the rest, one schedule for both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


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


class Optimizers:
    """Both optimizers behind one step; Source of Muon: https://kellerjordan.github.io/posts/muon/."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        matrix_lr: float,
        vector_lr: float,
        weight_decay: float,
    ) -> None:
        """Take named parameters; heads and element-wise weights are vectors here."""
        matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        for name, parameter in parameters:
            inner = parameter.ndim == 2 and not {"head", "lookahead"} & set(name.split("."))
            (matrices if inner else vectors).append(parameter)
        self.both: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.AdamW(vectors, lr=vector_lr, betas=(0.9, 0.98), weight_decay=0.0),
            torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        )
        self.peaks = [[g["lr"] for g in o.param_groups] for o in self.both]

    def step(self, factor: float) -> None:
        """Apply the gradients at this factor of the peak rates, and clear them."""
        for optimizer, peaks in zip(self.both, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()
        self.clear()

    def clear(self) -> None:
        """Drop the gradients."""
        for optimizer in self.both:
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, object]]:
        """For a training checkpoint."""
        return [o.state_dict() for o in self.both]

    def load_state_dict(self, states: list[dict[str, object]]) -> None:
        """Restore from `state_dict`."""
        for optimizer, state in zip(self.both, states, strict=True):
            optimizer.load_state_dict(state)
