"""Training audio: every recording is decoded once into a memory-mapped file, and drawn by weight."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.recordings import Utterance, read_pcm

JOBS = 2  # processes that decode


def _decode(job: tuple[Path, int]) -> NDArray[np.int16]:
    return read_pcm(job[0], job[1])


class Corpus:
    """Utterances and their PCM; the folder `cache` keeps the decoded audio between runs."""

    def __init__(self, utterances: Sequence[Utterance], cache: Path, sample_rate: int) -> None:
        """Open the cached audio; decode it if this set of recordings is not cached yet. Raises: AudioError."""
        self.utterances = list(utterances)
        self._offsets, self._pcm = np.zeros(1, np.int64), np.zeros(0, np.int16)
        if not self.utterances:
            return
        key = json.dumps([sample_rate, *((str(u.audio), u.duration_s) for u in self.utterances)])
        stem = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
        cache.mkdir(parents=True, exist_ok=True)
        with stem.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # only one of the processes of a run decodes the audio
            if not stem.with_suffix(".npy").exists():
                self._build(stem, sample_rate)
        self._offsets = np.load(stem.with_suffix(".offsets.npy"))
        self._pcm = np.load(stem.with_suffix(".npy"), mmap_mode="r")

    def _build(self, stem: Path, sample_rate: int) -> None:
        work = [(u.audio, sample_rate) for u in self.utterances]
        # A fork of a process with threads, as in a training run, may deadlock.
        with ProcessPoolExecutor(JOBS, get_context("forkserver")) as pool:
            parts = list(pool.map(_decode, work, chunksize=32))
        np.save(stem.with_suffix(".offsets.npy"), np.cumsum([0, *(len(p) for p in parts)]))
        partial = stem.with_suffix(".partial.npy")
        np.save(partial, np.concatenate(parts))
        partial.rename(stem.with_suffix(".npy"))

    def __len__(self) -> int:
        return len(self.utterances)

    def digest(self) -> str:
        """Digest of the recordings, their order and their texts, independent of the files' folders."""
        rows = [(u.audio.name, u.text, u.source, u.speaker, u.duration_s) for u in self.utterances]
        return hashlib.sha256(json.dumps([rows, self._offsets.tolist()]).encode()).hexdigest()

    def pcm(self, index: int) -> NDArray[np.int16]:
        """Samples of one utterance, (S,) int16."""
        return self._pcm[self._offsets[index] : self._offsets[index + 1]]

    def samples(self, index: int) -> int:
        """Length of one utterance in samples."""
        return int(self._offsets[index + 1] - self._offsets[index])


def epoch_order(
    utterances: Sequence[Utterance], weights: Mapping[str, float], speaker_cap: int, rng: np.random.Generator
) -> list[int]:
    """Draw the utterances of one epoch: each source is repeated or thinned by its weight.

    A weight of 2.5 draws every utterance twice and half of them once more. In sources with at least five speakers the
    weights of a speaker's utterances are scaled so that no speaker has more than `speaker_cap` of them, because a few
    speakers with a thousand sentences would dominate.
    """
    speakers = Counter((u.source, u.speaker) for u in utterances)
    per_source = Counter(source for source, _ in speakers)
    picked: list[int] = []
    for index, u in enumerate(utterances):
        weight = weights.get(u.source, 1.0)
        if per_source[u.source] >= 5:
            weight *= min(1.0, speaker_cap / speakers[u.source, u.speaker])
        whole = int(weight)
        picked += [index] * (whole + int(rng.random() < weight - whole))
    rng.shuffle(picked)
    return picked
