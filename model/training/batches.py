"""Padded batches of augmented audio from an epoch's order, made ahead in a thread of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.config import TAIL_FRAMES, ModelConfig
from model.training.augment import Augmenter, Samples, to_tensor
from model.training.corpus import Corpus
from model.training.phones import Pronunciations

SHORT_S = 1.5  # recordings below this are words and digits, which callers mostly say in strings
Item = tuple[int, ...]  # utterances that are joined into one training example


@dataclass(frozen=True, slots=True)
class Targets:
    """CTC targets of a batch: symbols of all rows end to end, (sum of lengths,) int64; lengths (B,)."""

    symbols: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Targets:
        """Join the rows."""
        joined = torch.tensor([symbol for row in rows for symbol in row], dtype=torch.int64)
        return cls(joined, torch.tensor([len(row) for row in rows]))


@dataclass(frozen=True, slots=True)
class Batch:
    """pcm (B, S) int16, zero-padded; frames (B,) output frames that may hold letters. `phones` if they are a target."""

    pcm: Tensor
    frames: Tensor
    letters: Targets
    phones: Targets | None
    audio_s: float


def join(order: Sequence[int], durations_s: Sequence[float], rng: np.random.Generator) -> list[Item]:
    """Join short recordings into strings of 1 to 6, and a tenth of the longer ones in pairs.

    A stream holds more than one utterance, with pauses, and a network trained without them does not recover after one.
    """
    items: list[Item] = []
    short: list[int] = []
    long: list[int] = []
    wanted = int(rng.integers(1, 7))
    for index in order:
        if durations_s[index] < SHORT_S:
            short.append(index)
            if len(short) >= wanted:
                items.append(tuple(short))
                short, wanted = [], (1 if rng.random() < 0.4 else int(rng.integers(2, 7)))
        elif durations_s[index] < 6.0 and (long or rng.random() < 0.1):
            long.append(index)
            if len(long) == 2:
                items.append(tuple(long))
                long = []
        else:
            items.append((index,))
    return items + [tuple(x) for x in (short, long) if x]


def group(
    items: Sequence[Item],
    durations_s: Sequence[float],
    batch_s: float,
    rng: np.random.Generator,
    *,
    by_length: bool,
    together: int = 1,
) -> list[list[Item]]:
    """Batches of about `batch_s` padded seconds from items of like length; shortest first if `by_length`.

    Shuffled in runs of `together` batches of like length, so that processes that train together take equally long.

    Source of shortest-first in the first epoch: SortaGrad, Deep Speech 2, section 3.2.
    """
    lengths = np.array([sum(durations_s[i] for i in item) for item in items]) * rng.uniform(0.9, 1.1, len(items))
    batches: list[list[Item]] = [[]]
    for position in np.argsort(lengths):
        if (len(batches[-1]) + 1) * (lengths[position] + 0.5) > batch_s:
            batches.append([])
        batches[-1].append(items[position])
    batches = [b for b in batches if b]
    if by_length:
        return batches
    runs = [batches[i : i + together] for i in range(0, len(batches) // together * together, together)]
    rng.shuffle(runs)
    return [batch for run in runs for batch in run]


class BatchMaker:
    """Turns groups of items into batches; deterministic from (seed, epoch, number of the batch)."""

    def __init__(
        self,
        config: ModelConfig,
        corpus: Corpus,
        augmenter: Augmenter,
        seed: int,
        spoken: Pronunciations | None = None,
    ) -> None:
        self.config, self.corpus, self.augmenter, self.seed = config, corpus, augmenter, seed
        self.spoken = spoken
        self.symbols = {symbol: index for index, symbol in enumerate(config.vocabulary)}

    def make(self, items: Sequence[Item], key: Sequence[int]) -> Batch:
        """Load, augment, join, pad."""
        rng = np.random.default_rng([self.seed, *key])
        audio = [self._audio(item, rng) for item in items]
        frame = self.config.frame_samples
        frames = [-(-len(pcm) // frame) + TAIL_FRAMES for pcm in audio]
        total = (max(frames) + self.config.lookahead) * frame
        pcm = torch.zeros(len(audio), total, dtype=torch.int16)  # (B, S)
        for row, samples in enumerate(audio):
            pcm[row, : len(samples)] = samples
        texts = [" ".join(self.corpus.utterances[index].text for index in item) for item in items]
        return Batch(
            pcm=pcm,
            frames=torch.tensor(frames),
            letters=Targets.of([self._letters(text) for text in texts]),
            phones=Targets.of([self.spoken.target(text) for text in texts]) if self.spoken else None,
            audio_s=sum(frames) * self.config.frame_s,
        )

    def ahead(self, groups: Sequence[Sequence[Item]], epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch in order, from number `first`, the next made while this one is used."""
        with ThreadPoolExecutor(1) as pool:
            waiting = deque(pool.submit(self.make, groups[n], (epoch, n)) for n in range(first, len(groups))[:2])
            for n in range(first, len(groups)):
                batch = waiting.popleft().result()
                if n + 2 < len(groups):
                    waiting.append(pool.submit(self.make, groups[n + 2], (epoch, n + 2)))
                yield batch

    def _audio(self, item: Item, rng: np.random.Generator) -> Tensor:
        parts: list[Samples] = []
        for number, index in enumerate(item):
            if number:
                parts.append(np.zeros(int(rng.uniform(0.02, 0.6) * self.config.sample_rate), np.float32))
            parts.append(self.corpus.pcm(index).astype(np.float32) / np.float32(32768))
        return to_tensor(self.augmenter(np.concatenate(parts), rng))

    def _letters(self, text: str) -> list[int]:
        return [self.symbols[c] for c in " ".join(text.split()) if c in self.symbols]
