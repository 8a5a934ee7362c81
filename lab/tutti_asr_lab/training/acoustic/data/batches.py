"""Padded batches of augmented audio, prepared ahead in a separate thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from model.attention_config import OwnConfig
from model.config import TAIL_FRAMES
from tutti_asr_lab.training.acoustic.augment import Augmenter, Samples, to_tensor
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.data.draws import Purpose, draws
from tutti_asr_lab.training.acoustic.data.epoch import Item, MicroBatch
from tutti_asr_lab.training.lexicon.spoken import Pronunciations

AHEAD = 2  # updates whose batches are prepared during another one's computation
Job = TypeVar("Job")
Key = tuple[int, int]  # epoch, number of the micro-batch within it


@dataclass(frozen=True, slots=True)
class Targets:
    """CTC targets of a batch: symbols of all rows concatenated, (sum of lengths,) int64; lengths (B,)."""

    symbols: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Targets:
        """Concatenate the rows."""
        joined = torch.tensor([symbol for row in rows for symbol in row], dtype=torch.int64)
        return cls(joined, torch.tensor([len(row) for row in rows]))


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch: pcm (B, S) int16, zero-padded; frames (B,): output frames that can have letters; phones if a target.

    `recorded` is `pcm` before the telephone line, for teachers.
    """

    key: Key
    pcm: Tensor
    recorded: Tensor
    frames: Tensor
    letters: Targets
    phones: Targets | None
    audio_s: float


class BatchMaker:
    """Converts micro-batches of items into tensors; deterministic given the seed and a key."""

    def __init__(
        self, config: OwnConfig, corpus: Corpus, augmenter: Augmenter, seed: int, spoken: Pronunciations | None = None
    ) -> None:
        self.config, self.corpus, self.augmenter, self.seed = config, corpus, augmenter, seed
        self.spoken = spoken
        self.symbols = {symbol: index for index, symbol in enumerate(config.vocabulary)}

    def make(self, items: Sequence[Item], key: Key, purpose: Purpose = Purpose.AUDIO) -> Batch:
        """Make a batch: load, join, augment and pad the recordings."""
        rng = draws(self.seed, purpose, *key)
        recorded = [self._recorded(item, rng) for item in items]
        received = [self.augmenter.transmit(pcm, rng) for pcm in recorded]
        frame = self.config.frame_samples
        frames = [-(-len(pcm) // frame) + TAIL_FRAMES for pcm in recorded]
        total = (max(frames) + self.config.lookahead) * frame
        texts = [" ".join(self.corpus.utterances[index].text for index in item.recordings) for item in items]
        pcm = _padded(received, total)
        through_lines = any(sent is not got for sent, got in zip(recorded, received, strict=True))
        return Batch(
            key=key,
            pcm=pcm,
            recorded=_padded(recorded, total) if through_lines else pcm,
            frames=torch.tensor(frames),
            letters=Targets.of([self.letters(text) for text in texts]),
            phones=Targets.of([self.spoken.target(text) for text in texts]) if self.spoken else None,
            audio_s=sum(frames) * self.config.frame_s,
        )

    def ahead(self, jobs: Iterator[tuple[Job, Sequence[tuple[Key, MicroBatch]]]]) -> Iterator[tuple[Job, list[Batch]]]:
        """Yield the batches of each job in order, preparing the next `AHEAD` jobs in another thread."""
        with ThreadPoolExecutor(1) as pool:
            waiting: deque[tuple[Job, Future[list[Batch]]]] = deque()
            for job, parts in jobs:
                waiting.append((job, pool.submit(self._make_all, parts)))
                if len(waiting) > AHEAD:
                    first, made = waiting.popleft()
                    yield first, made.result()
            for first, made in waiting:
                yield first, made.result()

    def _make_all(self, parts: Sequence[tuple[Key, MicroBatch]]) -> list[Batch]:
        return [self.make(items, key) for key, items in parts]

    def _recorded(self, item: Item, rng: np.random.Generator) -> Samples:
        rate = self.config.sample_rate
        parts: list[Samples] = []
        for index, pause_s in zip(item.recordings, (0.0, *item.pauses_s), strict=True):
            parts.append(np.zeros(int(pause_s * rate), np.float32))
            parts.append(self.corpus.pcm(index).astype(np.float32) / np.float32(32768))
        return self.augmenter.record(item.timing(np.concatenate(parts), rate), rng)

    def letters(self, text: str) -> list[int]:
        """Symbols of a text, as numbers in the vocabulary."""
        return [self.symbols[c] for c in " ".join(text.split()) if c in self.symbols]


def _padded(audio: Sequence[Samples], samples: int) -> Tensor:
    """Rows of int16 samples, padded with zeros: (B, samples)."""
    pcm = torch.zeros(len(audio), samples, dtype=torch.int16)  # (B, S)
    for row, each in enumerate(audio):
        pcm[row, : len(each)] = to_tensor(each)
    return pcm
