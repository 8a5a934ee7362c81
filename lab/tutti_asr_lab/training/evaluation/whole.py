"""Outputs of a torch network for whole recordings, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from model.config import TAIL_FRAMES
from model.ctc.interface import LogProbs
from model.torch_network.network import Network

ROWS = 48  # recordings per batch, sorted by length to reduce padding


@torch.no_grad()
def log_probs_of(
    network: Network, recordings: Sequence[NDArray[np.int16]], report: Callable[[int], None] = lambda _: None
) -> list[LogProbs]:
    """Log-probabilities (T, outputs) of each recording (S,) int16; `report` receives the number of finished ones."""
    order = sorted(range(len(recordings)), key=lambda i: len(recordings[i]))
    found: dict[int, LogProbs] = {}
    for start in range(0, len(order), ROWS):
        picked = order[start : start + ROWS]
        found |= zip(picked, _batch(network, [recordings[i] for i in picked]), strict=True)
        report(len(found))
    return [found[i] for i in range(len(recordings))]


def _batch(network: Network, recordings: Sequence[NDArray[np.int16]]) -> list[LogProbs]:
    config = network.config
    frames = [-(-len(pcm) // config.frame_samples) + TAIL_FRAMES for pcm in recordings]
    pcm = torch.zeros(len(recordings), (max(frames) + config.delay_frames) * config.frame_samples, dtype=torch.int16)
    for row, samples in enumerate(recordings):
        pcm[row, : len(samples)] = torch.from_numpy(np.array(samples))
    device = network.head.weight.device
    log_probs, _ = network(pcm.to(device), network.fresh_state(len(recordings)))
    answers = log_probs[:, config.delay_frames :].cpu().numpy()  # (B, T, outputs)
    return [row[:count].copy() for row, count in zip(answers, frames, strict=True)]
