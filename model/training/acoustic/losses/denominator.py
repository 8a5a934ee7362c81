"""Log of the probability of all label sequences together, under an n-gram of labels: what CTC is held against.

CTC alone raises the probability of the text, and learns its spelling along the way. Less this sum, only what
distinguishes the text from all others that sound alike is learned, and the language model is left to the decoder: the
maximum mutual information criterion with the topology of CTC. Source: Xiang and Ou 2019, arXiv:1902.09125 (CTC-CRF);
Povey et al. 2016 (lattice-free MMI).

Each state of the graph of labels occurs twice, by whether its last frame was a blank. On a GPU a frame of a batch is a
product of a sparse matrix of arcs (S, S) by probabilities (S, B); on a CPU machine code does the same without passes.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.training.acoustic.losses.forward_backward import TINY, backward, forward
from model.training.acoustic.losses.label_model import LabelGraph, label_graph


class Denominator:
    """The sum for one graph of labels, on one device."""

    def __init__(self, graph: LabelGraph, device: torch.device) -> None:
        self.arcs: GroupedArcs | SparseArcs = GroupedArcs(graph) if device.type == "cpu" else SparseArcs(graph, device)

    def __call__(self, log_probs: Tensor, frames: Tensor) -> Tensor:
        """Sum over a batch, (), of log-probabilities (B, T, K) float32 of which the first `frames` (B,) of a row count.

        A row that has no path in float32 counts 0 and has no gradient.
        """
        function = BySparseProducts if isinstance(self.arcs, SparseArcs) else ByMachineCode
        found: Tensor = function.apply(log_probs, frames, self.arcs)  # type: ignore[no-untyped-call]
        return found.sum()


class GroupedArcs:
    """A graph's arcs by the state that they lead to, and by the one that they leave."""

    def __init__(self, graph: LabelGraph) -> None:
        self.labels, self.ends = graph.labels, graph.ends
        self.into = _grouped(graph.targets, graph.sources, graph.weights, len(graph.labels))
        self.out_of = _grouped(graph.sources, graph.targets, graph.weights, len(graph.labels))


def _grouped(
    keys: NDArray[np.int64], others: NDArray[np.int64], weights: NDArray[np.float32], states: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Number of the first arc of each state (S + 1,), and of the arcs in this order the other end and the weight."""
    order = np.argsort(keys, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=states))])
    return first, others[order], weights[order]


class ByMachineCode(torch.autograd.Function):
    """log Σ over label sequences l of P(l) · Σ over paths of l of Π p(frame), with its gradient by forward-backward."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, frames: Tensor, arcs: GroupedArcs) -> Tensor:
        """log_probs (B, T, K) float32, blank 0; frames (B,) -> (B,)."""
        order = torch.argsort(frames, descending=True, stable=True)
        counts = frames[order].numpy()
        probs = log_probs[order].exp().permute(1, 2, 0).contiguous().numpy()  # (T, K, B)
        seen = np.empty((2, probs.shape[0], len(arcs.labels), probs.shape[2]), np.float32)
        totals = np.empty(probs.shape[2])
        forward(probs, counts, (arcs.labels, arcs.ends, *arcs.into), seen, totals)
        ctx.kept = probs, counts, order, seen, np.isfinite(totals), arcs
        found = torch.empty(len(totals), dtype=log_probs.dtype)
        found[order] = torch.from_numpy(np.where(np.isfinite(totals), totals, 0)).to(log_probs.dtype)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """grad (B,) -> gradient of the log-probabilities (B, T, K): how probable each label is at each frame."""
        probs, counts, order, seen, possible, arcs = ctx.kept
        occupied = np.zeros_like(probs)  # (T, K, B)
        backward(probs, counts, (arcs.labels, arcs.ends, *arcs.out_of), seen, occupied)
        found = torch.from_numpy(occupied * possible).permute(2, 0, 1)  # (B, T, K)
        return torch.empty_like(found).index_copy_(0, order, found) * grad[:, None, None], None, None


class SparseArcs:
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


class BySparseProducts(torch.autograd.Function):
    """As `ByMachineCode`, on any device."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, frames: Tensor, arcs: SparseArcs) -> Tensor:
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
            scale = (new_spoken.sum(0) + new_silent.sum(0)).clamp_min(float(TINY))  # (B,)
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
        arcs: SparseArcs = ctx.arcs
        steps, _, rows = probs.shape
        to_spoken = arcs.ends[:, None].expand(-1, rows)  # (S, B) probability of all that comes, up to a scale
        to_silent = to_spoken
        occupied = torch.zeros_like(probs)
        for t in range(steps - 1, -1, -1):
            labels = arcs.membership @ (all_spoken[t] * to_spoken)  # (K, B); no state has the blank's label
            labels[0] = (all_silent[t] * to_silent).sum(0)
            occupied[t, : len(labels)] = labels * (present[t] / labels.sum(0).clamp_min(float(TINY)))
            arrived = to_spoken * probs[t].index_select(0, arcs.labels)
            onwards = arcs.other_back @ arrived
            blank = to_silent * probs[t, 0]
            silent = blank + onwards + arcs.again_back @ arrived
            spoken = blank + onwards + arrived
            inverse = torch.maximum(silent.amax(0), spoken.amax(0)).clamp_min(float(TINY)).reciprocal()
            to_spoken = torch.where(present[t], spoken * inverse, to_spoken)
            to_silent = torch.where(present[t], silent * inverse, to_silent)
        return (occupied * grad).permute(2, 0, 1), None, None


def compile_ahead() -> None:
    """Compile the machine code and keep it on disk, so that processes that watch one another need not stop for it."""
    denominator = Denominator(label_graph([[1]], order=2, states=2), torch.device("cpu"))
    log_probs = torch.zeros(1, 2, 2).log_softmax(-1).requires_grad_()
    denominator(log_probs, torch.tensor([2])).backward()  # type: ignore[no-untyped-call]
