"""Log of the probability of all label sequences together, under a trigram of labels: what CTC is held against.

CTC alone raises the probability of the text, and learns its spelling along the way. Less this sum, only what
distinguishes the text from all others that sound alike is learned, and the language model is left to the decoder: the
maximum mutual information criterion with the topology of CTC. Source: Xiang and Ou 2019, arXiv:1902.09125 (CTC-CRF);
Povey et al. 2016 (lattice-free MMI).

A state is a context, two labels, and whether its last frame was a blank. With labels K - 1 and a trigram they are
2 K², so that a frame of a batch is one product of K matrices (B, K) by (K, K).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TINY = 1e-30  # below the smallest share that float32 keeps of a row's best state


class Denominator(torch.autograd.Function):
    """log Σ over label sequences l of P(l) · Σ over paths of l of Π p(frame), with its gradient by forward-backward."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, frames: Tensor, trigram: Tensor) -> Tensor:
        """log_probs (B, T, K) float32, blank 0; frames (B,); trigram (K, K, K) of `label_trigram` -> (B,)."""
        probs = log_probs.exp().transpose(0, 1)  # (T, B, K)
        steps, rows, size = probs.shape
        present = torch.arange(steps, device=probs.device)[:, None] < frames.to(probs.device)  # (T, B)
        follow, repeated, every = _arcs(trigram)
        spoken = probs.new_zeros(size, rows, size)  # [b, :, a]: the last frame was b, after a
        silent = torch.zeros_like(spoken)  # [b, :, a]: the last frame was a blank, after a and b
        silent[0, :, 0] = 1
        all_spoken, all_silent = probs.new_empty(steps, size, rows, size), probs.new_empty(steps, size, rows, size)
        total = probs.new_zeros(rows)
        for t in range(steps):
            both = spoken + silent
            ahead = torch.bmm(both, follow)  # (b, B, c)
            ahead[every, :, every] = (silent * repeated).sum(2)  # a label again needs a blank between
            new_spoken = (ahead.permute(2, 1, 0) + spoken) * probs[t].t()[:, :, None]  # (c, B, b)
            new_silent = both * probs[t, :, 0][None, :, None]
            scale = new_spoken.sum((0, 2)) + new_silent.sum((0, 2))  # (B,)
            here = present[t][None, :, None]
            spoken = torch.where(here, new_spoken / scale[None, :, None], spoken)
            silent = torch.where(here, new_silent / scale[None, :, None], silent)
            total += torch.where(present[t], scale.log(), torch.zeros_like(scale))
            all_spoken[t], all_silent[t] = spoken, silent
        ends = trigram[:, :, 0]  # (b, a)
        ctx.save_for_backward(probs, all_spoken, all_silent, present, trigram)
        return total + ((spoken + silent) * ends[:, None]).sum((0, 2)).log()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """grad (B,) -> gradient of the log-probabilities (B, T, K): how probable each label is at each frame."""
        probs, all_spoken, all_silent, present, trigram = ctx.saved_tensors
        steps, rows, size = probs.shape
        follow, repeated, every = _arcs(trigram)
        backwards = follow.transpose(1, 2).contiguous()  # (b, c, a)
        to_spoken = trigram[:, :, 0][:, None].expand(size, rows, size)  # probability of all that comes, up to a scale
        to_silent = to_spoken
        occupied = torch.zeros_like(probs)
        for t in range(steps - 1, -1, -1):
            labels = (all_spoken[t] * to_spoken).sum(2)  # (b, B)
            blank = (all_silent[t] * to_silent).sum((0, 2))  # (B,)
            share = present[t] / (labels.sum(0) + blank)
            occupied[t] = (labels * share).t()
            occupied[t, :, 0] = blank * share
            again = to_spoken * probs[t].t()[:, :, None]  # (c, B, b)
            arrived = again.permute(2, 1, 0).contiguous()  # (b, B, c)
            silently = to_silent * probs[t, :, 0][None, :, None] + torch.bmm(arrived, backwards)  # (b, B, a)
            spoken = silently - repeated * arrived[every, :, every][:, :, None] + again
            here = present[t][None, :, None]
            scale = silently.amax((0, 2)).clamp_min(TINY)[None, :, None]
            to_spoken = torch.where(here, spoken / scale, to_spoken)
            to_silent = torch.where(here, silently / scale, to_silent)
        return (occupied * grad[None, :, None]).transpose(0, 1), None, None


def _arcs(trigram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The trigram without ends (b, a, c); of it, each label after itself (b, 1, a); the indices of all labels."""
    follow = trigram.clone()
    follow[:, :, 0] = 0
    repeated = torch.diagonal(follow, dim1=0, dim2=2).t().contiguous()[:, None]  # [b, 0, a] = P(b | a, b)
    return follow, repeated, torch.arange(len(trigram), device=trigram.device)


def denominator(log_probs: Tensor, frames: Tensor, trigram: Tensor) -> Tensor:
    """Sum over a batch, (), of log-probabilities (B, T, K) float32 of which the first `frames` (B,) of a row count."""
    found: Tensor = Denominator.apply(log_probs, frames, trigram)  # type: ignore[no-untyped-call]
    return found.sum()
