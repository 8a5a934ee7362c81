"""Trains the punctuation tagger on the texts written by `tutti_asr_lab.training.punctuation.texts`.

Usage: `python -m tutti_asr_lab.training.punctuation.train TEXTS --out FILE`.

Cross-entropy of the marks and of the capital, AdamW with a cosine schedule, new finals for each update. The last part
of each text is held out for validation.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.errors import TrainingError
from model.machine.precision import native_bf16
from model.punctuation.marks import MARKS
from model.punctuation.network import TaggerNetwork
from model.punctuation.weights import save
from tutti_asr_lab.training.punctuation.corpus import (
    HELD_OUT,
    IGNORED,
    Confusions,
    Final,
    Sampler,
    as_text,
    most_frequent,
    read_tokens,
)

VOCABULARY = 20_000
UPDATES = 1_500
FINALS = 64  # per update
DRAWN = 8 * FINALS  # drawn together, so that finals of similar length share a batch
RATE = 2e-3
WARM_UP = 300
CAPITAL_WEIGHT = 0.5  # weight of the capital's loss; the mark's is 1
SHARES = {"chitchat": 0.10, "requests": 0.04, "speeches": 0.06}  # books divide the rest in proportion to their words
SEED = 22
_REPORT_EVERY = 500


def train(folder: Path, out: Path, updates: int) -> None:
    """Train on the texts in the subfolder `training` and write the weights. Raises: TrainingError."""
    unseen = {path.name for path in (folder / "unseen").glob("*.txt")}
    if both := sorted(unseen & {path.name for path in (folder / "training").glob("*.txt")}):
        raise TrainingError(f"{', '.join(both)}: in both training and unseen; remove from one of them")
    flat = {path.stem: read_tokens(path) for path in sorted((folder / "training").glob("*.txt"))}
    vocabulary = most_frequent(flat.values(), VOCABULARY)
    kept = {name: int(len(words) * (1 - HELD_OUT)) for name, words in flat.items()}
    training = [as_text(name, words[: kept[name]], vocabulary) for name, words in flat.items()]
    held_out = [as_text(name, words[kept[name] :], vocabulary) for name, words in flat.items()]
    confusions = Confusions(vocabulary, training)
    torch.manual_seed(SEED)
    network = TaggerNetwork(len(vocabulary.words))
    optimize(network, Sampler(training, SHARES, confusions, SEED), Sampler(held_out, SHARES, confusions, 1), updates)
    save(out, {name: tensor.numpy() for name, tensor in network.state_dict().items()}, vocabulary)


def optimize(network: TaggerNetwork, sampler: Sampler, held_out: Sampler, updates: int) -> None:
    """Train in place; print the losses every `_REPORT_EVERY` updates."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, updates))
    judged = batches(held_out.draw(4_096))
    order = np.random.default_rng(SEED)
    waiting: list[tuple[Tensor, ...]] = []
    mean = 0.0
    for update in range(1, updates + 1):
        if not waiting:
            waiting = batches(sampler.draw(DRAWN))
            waiting = [waiting[i] for i in order.permutation(len(waiting))]
        network.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=native_bf16()):
            found = loss(network, waiting.pop())
        optimizer.zero_grad()
        found.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        mean += found.item() / _REPORT_EVERY
        if update % _REPORT_EVERY == 0 or update == updates:
            network.eval()
            with torch.no_grad():
                judgement = sum(loss(network, batch).item() for batch in judged) / len(judged)
            print(f"update {update}: loss {mean:.4f}, held out {judgement:.4f}", flush=True)  # noqa: T201
            mean = 0.0


def batches(finals: Sequence[Final]) -> list[tuple[Tensor, ...]]:
    """Padded batches in the order of the finals: rows (B, T, 3), marks (B, T), capitals (B, T), valid (B, T)."""
    found = []
    for first in range(0, len(finals), FINALS):
        some = finals[first : first + FINALS]
        shape = len(some), max(len(final.marks) for final in some)
        rows, valid = np.zeros((*shape, 3), np.int64), np.zeros(shape, bool)
        marks, capitals = np.full(shape, IGNORED, np.int64), np.full(shape, IGNORED, np.int64)
        for i, final in enumerate(some):
            length = len(final.marks)
            rows[i, :length], valid[i, :length] = final.rows, True
            marks[i, :length], capitals[i, :length] = final.marks, final.capitals
        found.append(tuple(torch.from_numpy(array) for array in (rows, marks, capitals, valid)))
    return found


def loss(network: TaggerNetwork, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean cross-entropy of all labels that are not `IGNORED`."""
    rows, marks, capitals, valid = batch
    logits = network(rows, valid)  # (B, T, 5)
    of_marks = functional.cross_entropy(logits[..., : len(MARKS)].flatten(0, 1), marks.flatten(), ignore_index=IGNORED)
    counted = capitals != IGNORED
    of_capitals = functional.binary_cross_entropy_with_logits(
        logits[..., len(MARKS)][counted], capitals[counted].to(logits.dtype)
    )
    return of_marks + CAPITAL_WEIGHT * of_capitals


def _rate(step: int, updates: int) -> float:
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(updates - WARM_UP, 1)))


def main() -> None:
    """Train the tagger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=UPDATES)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the batches are small
    train(options.texts, options.out, options.updates)


if __name__ == "__main__":
    main()
