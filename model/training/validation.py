"""Scores of a network in training: whole recordings, greedy, by source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from model.config import TAIL_FRAMES
from model.ctc.greedy import best_path
from model.network import Network
from model.scoring import Score, by_source
from model.training.corpus import Corpus

ROWS = 48  # recordings decoded together; they are sorted by length, so little of a batch is padding


@torch.no_grad()
def transcribe_whole(network: Network, recordings: Sequence[NDArray[np.int16]]) -> list[str]:
    """Greedy text of whole recordings, (S,) int16 each, in one padded batch."""
    config = network.config
    frames = [-(-len(pcm) // config.frame_samples) + TAIL_FRAMES for pcm in recordings]
    pcm = torch.zeros(len(recordings), (max(frames) + config.delay_frames) * config.frame_samples, dtype=torch.int16)
    for row, samples in enumerate(recordings):
        pcm[row, : len(samples)] = torch.from_numpy(np.array(samples))
    device = network.head.weight.device
    log_probs, _ = network(pcm.to(device), network.fresh_state(len(recordings)))
    answers = log_probs[:, config.delay_frames :].cpu().numpy()  # (B, T, V)
    return [best_path(row[:count], config.vocabulary) for row, count in zip(answers, frames, strict=True)]


def validate(network: Network, corpus: Corpus) -> dict[str, Score]:
    """Score by source; leaves the network in training mode."""
    network.eval()
    order = sorted(range(len(corpus)), key=corpus.samples)
    scored: list[tuple[str, str, str]] = []
    for start in range(0, len(order), ROWS):
        picked = order[start : start + ROWS]
        texts = transcribe_whole(network, [corpus.pcm(i) for i in picked])
        rows = [corpus.utterances[i] for i in picked]
        scored += [(u.source, u.text, text) for u, text in zip(rows, texts, strict=True)]
    network.train()
    return by_source(scored)
