"""Validation: loss and error rates on held-out recordings; the same results for any number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from model.config import BLANK
from model.ctc.greedy import best_path
from model.evaluation.scoring import Score, by_source, report
from model.torch_network.network import Network
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.parallel.team import Team
from tutti_asr_lab.training.evaluation.whole import ROWS, log_probs_of


@dataclass(frozen=True, slots=True)
class Validation:
    """Result of a validation: CTC loss in nats per letter, without masks or dropout; scores of greedy decoding."""

    loss: float
    scores: dict[str, Score]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"loss": round(self.loss, 4), **report(self.scores)}


def validate(network: Network, corpus: Corpus, team: Team) -> Validation:
    """Validate on all recordings, distributed over the processes; leaves the network in training mode.

    Raises: TrainingError if another process has ended.
    """
    order = sorted(range(len(corpus)), key=corpus.samples)
    blocks = [order[start : start + ROWS] for start in range(0, len(order), ROWS)]
    network.eval()
    own = {index: row for block in blocks[team.rank :: team.size] for index, row in _read(network, corpus, block)}
    network.train()
    rows = {index: row for part in team.objects(own) for index, row in part.items()}
    losses, letters, texts = zip(*(rows[index] for index in range(len(corpus))), strict=True)
    vocabulary = frozenset(network.config.vocabulary)  # excludes tone numbers
    written = ("".join(c for c in u.text if c in vocabulary) for u in corpus.utterances)
    scored = ((u.source, text, found) for u, text, found in zip(corpus.utterances, written, texts, strict=True))
    return Validation(sum(losses) / max(1, sum(letters)), by_source(scored))


def _read(network: Network, corpus: Corpus, block: list[int]) -> list[tuple[int, tuple[float, int, str]]]:
    """Index, loss, letters and text of each recording of a block."""
    vocabulary = network.config.vocabulary
    symbols = {symbol: number for number, symbol in enumerate(vocabulary)}
    found: list[tuple[int, tuple[float, int, str]]] = []
    for index, row in zip(block, log_probs_of(network, [corpus.pcm(i) for i in block]), strict=True):
        target = [symbols[c] for c in corpus.utterances[index].text if c in symbols]
        letters = row[:, : len(vocabulary)]
        loss = functional.ctc_loss(
            torch.from_numpy(letters)[:, None],  # (T, 1, V)
            torch.tensor([target]),
            torch.tensor([len(row)]),
            torch.tensor([len(target)]),
            blank=BLANK,
            reduction="sum",
            zero_infinity=True,
        )
        found.append((index, (float(loss), len(target), best_path(letters, vocabulary))))
    return found
