"""Muon optimizer: momentum matrices are orthogonalized before they are applied, each by one of the processes.

torch.optim.Muon always orthogonalizes in bf16, and all matrices in every process; the arithmetic here equals it to the
bit (tests/lab/training/acoustic/test_muon.py). Source: https://kellerjordan.github.io/posts/muon/; factor on the
learning rate: Liu et al. 2025, arXiv:2502.16982, so that an update has the size of one of AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from tutti_asr_lab.training.acoustic.parallel.team import Team

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic; steepest at zero
ITERATIONS = 5
SMALLEST = 1e-7  # lower bound of the norm, so that a zero gradient stays zero


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Nearest matrix with singular values of about one (0.5 to 1.5), computed and returned in `dtype`."""
    a, b, c = COEFFICIENTS
    found = matrix.to(dtype, copy=True)
    wide = found.size(0) <= found.size(1)
    if not wide:
        found = found.T
    found.div_(found.norm().clamp(min=SMALLEST))  # now the largest singular value is at most one
    for _ in range(ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found if wide else found.T


def cost(shape: Sequence[int]) -> int:
    """Multiplications of one iteration."""
    small, large = sorted(shape)
    return 2 * small * small * large + small**3


def share_out(costs: Sequence[int], processes: int) -> list[list[int]]:
    """Assign indices to processes at about equal cost: largest first, each to the least loaded process."""
    shares: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        lightest = loads.index(min(loads))
        shares[lightest].append(index)
        loads[lightest] += costs[index]
    return shares


class Muon:
    """Optimizer of matrices. Every process holds all matrices and their momentum, and gets the same bits."""

    def __init__(self, matrices: Sequence[nn.Parameter], weight_decay: float, dtype: torch.dtype, team: Team) -> None:
        self.matrices, self.weight_decay, self.dtype, self.team = list(matrices), weight_decay, dtype, team
        self.momentum = [torch.zeros_like(matrix) for matrix in self.matrices]
        shares = share_out([cost(matrix.shape) for matrix in self.matrices], team.size)
        self._mine = shares[team.rank]
        order = [index for share in shares for index in share]
        ends = list(accumulate(self.matrices[index].numel() for index in order))
        self._place = {i: slice(end - self.matrices[i].numel(), end) for i, end in zip(order, ends, strict=True)}
        sizes = [sum(self.matrices[i].numel() for i in share) for share in shares]
        self._bounds = [0, *accumulate(sizes)]  # bounds of each process's part of the joined results

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Apply the gradients; every matrix must have one. Raises: TrainingError if another process has ended."""
        for matrix, momentum in zip(self.matrices, self.momentum, strict=True):
            assert matrix.grad is not None
            momentum.lerp_(matrix.grad, 1 - MOMENTUM)
        joined = torch.empty(self._bounds[-1], dtype=self.dtype, device=self.matrices[0].device)
        for index in self._mine:
            gradient = self.matrices[index].grad
            assert gradient is not None
            ahead = gradient.lerp(self.momentum[index], MOMENTUM)  # Nesterov's
            joined[self._place[index]] = orthogonal(ahead, self.dtype).reshape(-1)
        self.team.gather(joined, self._bounds)
        for index, matrix in enumerate(self.matrices):
            found = joined[self._place[index]].view_as(matrix)
            matrix.mul_(1 - learning_rate * self.weight_decay)
            matrix.add_(found, alpha=-learning_rate * 0.2 * math.sqrt(max(matrix.shape)))

    def state_dict(self) -> list[Tensor]:
        """State for a snapshot."""
        return self.momentum

    def load_state_dict(self, momentum: Sequence[Tensor]) -> None:
        """Restore from `state_dict`."""
        for own, stored in zip(self.momentum, momentum, strict=True):
            own.copy_(stored)
