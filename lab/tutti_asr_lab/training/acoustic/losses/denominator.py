"""Log-probability of all label sequences together, under an n-gram of labels: the denominator of CTC-CRF.

CTC alone raises the probability of the text and learns its spelling too. With this sum subtracted, the network learns
only what distinguishes the text from others that sound alike, and the decoder supplies the language model: the maximum
mutual information criterion with the topology of CTC. Source: Xiang and Ou 2019, arXiv:1902.09125 (CTC-CRF); Povey et
al. 2016 (lattice-free MMI).

Each state of the label graph exists twice: with a label or a blank in the last frame. On a GPU, a frame of a batch is a
product of a sparse matrix of arcs (S, S) and probabilities (S, B); on a CPU, compiled loops compute the same.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tutti_asr_lab.training.acoustic.losses.forward_backward import TINY, backward, forward
from tutti_asr_lab.training.acoustic.losses.label_model import LabelGraph, label_graph


class Denominator:
    """Denominator for one graph of labels, on one device."""

    def __init__(self, graph: LabelGraph, device: torch.device) -> None:
        self.arcs: GroupedArcs | SparseArcs = GroupedArcs(graph) if device.type == "cpu" else SparseArcs(graph, device)

    def __call__(self, log_probs: Tensor, frames: Tensor) -> Tensor:
        """Sum over a batch, (), from log-probabilities (B, T, K) float32; the first `frames` (B,) of each row count.

        A row that has no path in float32 counts as 0 and has no gradient.
        """
        function = BySparseProducts if isinstance(self.arcs, SparseArcs) else ByMachineCode
        found: Tensor = function.apply(log_probs, frames, self.arcs)  # type: ignore[no-untyped-call]
        return found.sum()


class GroupedArcs:
    """Arcs of a graph, grouped by target state and by source state."""

    def __init__(self, graph: LabelGraph) -> None:
        self.labels, self.ends = graph.labels, graph.ends
        self.into = _grouped(graph.targets, graph.sources, graph.weights, len(graph.labels))
        self.out_of = _grouped(graph.sources, graph.targets, graph.weights, len(graph.labels))


def _grouped(
    keys: NDArray[np.int64], others: NDArray[np.int64], weights: NDArray[np.float32], states: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Index of the first arc of each state (S + 1,); other end and weight of the arcs in this order."""
    order = np.argsort(keys, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=states))])
    return first, others[order], weights[order]


class ByMachineCode(torch.autograd.Function):
    """Autograd function of log Σ over label sequences l of P(l) · Σ over paths of l of Π p(frame), on a CPU."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, frames: Tensor, arcs: GroupedArcs) -> Tensor:
        """Value (B,) from log_probs (B, T, K) float32, blank 0, and frames (B,)."""
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
        """Gradient of the log-probabilities (B, T, K) from `grad` (B,): the probability of each label at each frame."""
        probs, counts, order, seen, possible, arcs = ctx.kept
        occupied = np.zeros_like(probs)  # (T, K, B)
        backward(probs, counts, (arcs.labels, arcs.ends, *arcs.out_of), seen, occupied)
        found = torch.from_numpy(occupied * possible).permute(2, 0, 1)  # (B, T, K)
        return torch.empty_like(found).index_copy_(0, order, found) * grad[:, None, None], None, None


class SparseArcs:
    """Arcs of a graph as sparse matrices on a device, and their transposes for the backward pass."""

    def __init__(self, graph: LabelGraph, device: torch.device) -> None:
        same = graph.labels[graph.sources] == graph.labels[graph.targets]
        self.labels = torch.from_numpy(graph.labels).to(device)  # (S,)
        self.ends = torch.from_numpy(graph.ends).to(device)  # (S,)
        self.other, self.other_back = _both_ways(graph, ~same, device)
        self.again, self.again_back = _both_ways(graph, same, device)  # a label after itself needs a blank between
        self.membership = torch.zeros(int(graph.labels.max()) + 1, len(graph.labels), device=device)
        self.membership[self.labels, torch.arange(len(graph.labels))] = 1  # (K, S)


def _both_ways(graph: LabelGraph, which: NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """Arcs as matrices (S, S): targets by sources, and sources by targets."""
    ends = torch.from_numpy(np.stack([graph.targets[which], graph.sources[which]]))
    weights, size = torch.from_numpy(graph.weights[which]), (len(graph.labels),) * 2
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")  # only products with dense ones here
        forward = torch.sparse_coo_tensor(ends, weights, size, check_invariants=True).coalesce().to_sparse_csr()
        back = torch.sparse_coo_tensor(ends.flip(0), weights, size, check_invariants=True).coalesce().to_sparse_csr()
    return forward.to(device), back.to(device)


class BySparseProducts(torch.autograd.Function):
    """The same function as `ByMachineCode`, for any device."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, frames: Tensor, arcs: SparseArcs) -> Tensor:
        """Value (B,) from log_probs (B, T, K) float32, blank 0, and frames (B,); 0, without gradient, if no path."""
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
        """Gradient of the log-probabilities (B, T, K) from `grad` (B,): the probability of each label at each frame."""
        probs, all_spoken, all_silent, present = ctx.saved_tensors
        arcs: SparseArcs = ctx.arcs
        steps, _, rows = probs.shape
        to_spoken = arcs.ends[:, None].expand(-1, rows)  # (S, B) probability of the remaining frames, up to a scale
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
    """Compile the CPU code into the disk cache, so that later compilation does not trip the processes' heartbeat."""
    denominator = Denominator(label_graph([[1]], order=2, states=2), torch.device("cpu"))
    log_probs = torch.zeros(1, 2, 2).log_softmax(-1).requires_grad_()
    denominator(log_probs, torch.tensor([2])).backward()  # type: ignore[no-untyped-call]
