"""Log of the probability of all label sequences together, under an n-gram of labels: what CTC is held against.

CTC alone raises the probability of the text, and learns its spelling along the way. Less this sum, only what
distinguishes the text from all others that sound alike is learned, and the language model is left to the decoder: the
maximum mutual information criterion with the topology of CTC. Source: Xiang and Ou 2019, arXiv:1902.09125 (CTC-CRF);
Povey et al. 2016 (lattice-free MMI).

Each state of the graph of labels occurs twice, by whether its last frame was a blank. A frame of a batch is a product
of a sparse matrix of arcs (S, S) by probabilities (S, B).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.training.losses.label_model import LabelGraph

TINY = 1e-30  # below the smallest share that float32 keeps of a row's best state


class Arcs:
    """A graph's arcs as sparse matrices on a device, and their transposes for the way back."""

    def __init__(self, graph: LabelGraph, device: torch.device) -> None:
        same = graph.labels[graph.sources] == graph.labels[graph.targets]
        self.labels = torch.from_numpy(graph.labels).to(device)  # (S,)
        self.ends = torch.from_numpy(graph.ends).to(device)  # (S,)
        self.other, self.other_back = _both_ways(graph, ~same, device)
        self.again, self.again_back = _both_ways(graph, same, device)  # a label after itself: a blank lies between
        self.membership = torch.zeros(int(graph.labels.max()) + 1, len(graph.labels), device=device)
        self.membership[self.labels, torch.arange(len(graph.labels))] = 1  # (K, S)


def _both_ways(graph: LabelGraph, which: NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """Arcs as (S, S) by target and source, and by source and target."""
    ends = torch.from_numpy(np.stack([graph.targets[which], graph.sources[which]]))
    weights, size = torch.from_numpy(graph.weights[which]), (len(graph.labels),) * 2
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")  # we use products by dense ones alone
        forward = torch.sparse_coo_tensor(ends, weights, size, check_invariants=True).coalesce().to_sparse_csr()
        back = torch.sparse_coo_tensor(ends.flip(0), weights, size, check_invariants=True).coalesce().to_sparse_csr()
    return forward.to(device), back.to(device)


class Denominator(torch.autograd.Function):
    """log Σ over label sequences l of P(l) · Σ over paths of l of Π p(frame), with its gradient by forward-backward."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, frames: Tensor, arcs: Arcs) -> Tensor:
        """log_probs (B, T, K) float32, blank 0; frames (B,) -> (B,); 0 without gradient where float32 has no path."""
        probs = log_probs.exp().permute(1, 2, 0).contiguous()  # (T, K, B)
        steps, _, rows = probs.shape
        present = torch.arange(steps, device=probs.device)[:, None] < frames.to(probs.device)  # (T, B)
        shape = (len(arcs.labels), rows)
        spoken, silent = probs.new_zeros(shape), probs.new_zeros(shape)  # the last frame was the label, or a blank
        silent[0] = 1
        all_spoken, all_silent = probs.new_empty(steps, *shape), probs.new_empty(steps, *shape)
        total = probs.new_zeros(rows)
        for t in range(steps):
            both = spoken + silent
            ahead = arcs.other @ both + arcs.again @ silent
            new_spoken = (ahead + spoken) * probs[t].index_select(0, arcs.labels)
            new_silent = both * probs[t, 0]
            scale = (new_spoken.sum(0) + new_silent.sum(0)).clamp_min(TINY)  # (B,)
            here, inverse = present[t], scale.reciprocal()
            spoken = torch.where(here, new_spoken * inverse, spoken)
            silent = torch.where(here, new_silent * inverse, silent)
            total += torch.where(here, scale.log(), torch.zeros_like(scale))
            all_spoken[t], all_silent[t] = spoken, silent
        total = total + (arcs.ends[:, None] * (spoken + silent)).sum(0).log()
        ctx.save_for_backward(probs, all_spoken, all_silent, present & total.isfinite())
        ctx.arcs = arcs
        return torch.where(total.isfinite(), total, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """grad (B,) -> gradient of the log-probabilities (B, T, K): how probable each label is at each frame."""
        probs, all_spoken, all_silent, present = ctx.saved_tensors
        arcs: Arcs = ctx.arcs
        steps, _, rows = probs.shape
        to_spoken = arcs.ends[:, None].expand(-1, rows)  # (S, B) probability of all that comes, up to a scale
        to_silent = to_spoken
        occupied = torch.zeros_like(probs)
        for t in range(steps - 1, -1, -1):
            labels = arcs.membership @ (all_spoken[t] * to_spoken)  # (K, B); no state has the blank's label
            labels[0] = (all_silent[t] * to_silent).sum(0)
            occupied[t, : len(labels)] = labels * (present[t] / labels.sum(0).clamp_min(TINY))
            arrived = to_spoken * probs[t].index_select(0, arcs.labels)
            onwards = arcs.other_back @ arrived
            blank = to_silent * probs[t, 0]
            silent = blank + onwards + arcs.again_back @ arrived
            spoken = blank + onwards + arrived
            inverse = torch.maximum(silent.amax(0), spoken.amax(0)).clamp_min(TINY).reciprocal()
            to_spoken = torch.where(present[t], spoken * inverse, to_spoken)
            to_silent = torch.where(present[t], silent * inverse, to_silent)
        return (occupied * grad).permute(2, 0, 1), None, None


def denominator(log_probs: Tensor, frames: Tensor, arcs: Arcs) -> Tensor:
    """Sum over a batch, (), of log-probabilities (B, T, K) float32 of which the first `frames` (B,) of a row count."""
    found: Tensor = Denominator.apply(log_probs, frames, arcs)  # type: ignore[no-untyped-call]
    return found.sum()
