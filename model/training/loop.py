"""The training run: epochs of augmented batches, CTC, validation by source, checkpoints, resume."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model import checkpoint
from model.audio import read_pcm
from model.config import BLANK, ModelConfig
from model.errors import TrainingError
from model.manifest import Utterance, read_manifests
from model.network import Network
from model.scoring import Score, by_source, report
from model.training.augment import Augmentation, Augmenter, mask
from model.training.batches import Batch, BatchMaker, group, join
from model.training.corpus import Corpus, epoch_order
from model.training.optimizer import Optimizers, Schedule


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides a run; stored in the checkpoint. Times in seconds of audio, counts of updates."""

    updates: int = 4_500
    batch_s: float = 200.0
    matrix_lr: float = 2e-3
    vector_lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: int = 150
    decay: float = 0.7
    dropout: float = 0.0
    clip_norm: float = 1.0
    seed: int = 1
    speaker_cap: int = 120  # utterances of one speaker an epoch
    weights: dict[str, float] = field(default_factory=dict)  # by source; 1 where not named
    augmentation: Augmentation = field(default_factory=Augmentation)


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of the log."""

    update: int
    loss: float
    audio_s: float
    elapsed_s: float
    epoch: int


class Trainer:
    """Owns network, optimizers and random state of one run."""

    def __init__(self, config: ModelConfig, recipe: Recipe, corpus: Corpus, noise: Sequence[Utterance],
                 device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.corpus, self.device = recipe, corpus, device
        self.network = Network(config, recipe.dropout).to(device)
        self.optimizers = Optimizers(self.network, matrix_lr=recipe.matrix_lr, vector_lr=recipe.vector_lr,
                                     weight_decay=recipe.weight_decay)
        self.schedule = Schedule(recipe.updates, recipe.warmup, recipe.decay)
        self.batches = BatchMaker(config, corpus, _augmenter(recipe, noise, config.sample_rate), recipe.seed)
        self.update, self.epoch, self.audio_s = 0, 0, 0.0

    def fit_features(self, utterances: int = 300) -> None:
        """Set the features' mean and scale from the first batches' worth of augmented training audio."""
        rng = np.random.default_rng(self.recipe.seed)
        picked = rng.permutation(len(self.corpus))[:utterances]
        features = self.network.features
        energies = torch.cat([
            features.log_mel(self.batches.make([(int(i),)], (0, 0)).pcm[:, : self.corpus.samples(int(i))]
                             .to(self.device, torch.float32) / 32768).flatten(0, 1)
            for i in picked if self.corpus.samples(int(i)) > 2 * features.length
        ])
        features.mean.copy_(energies.mean(0))
        features.scale.copy_(1 / energies.std(0))

    def run(self, until: int) -> Iterator[Progress]:
        """Train to update `until`, yielding after each update."""
        self.network.train()
        start = time.monotonic()
        while self.update < until:
            groups = self._epoch()
            done = self.update - self._epoch_start
            for number, batch in enumerate(self.batches.ahead(groups[done:], self.epoch), done):
                loss = self._update(batch, number)
                self.audio_s += batch.audio_s
                self.update += 1
                yield Progress(self.update, loss, self.audio_s, time.monotonic() - start, self.epoch)
                if self.update >= until:
                    return
            self.epoch += 1
            self._epoch_start = self.update

    _epoch_start = 0

    def _epoch(self) -> list[list[tuple[int, ...]]]:
        rng = np.random.default_rng([self.recipe.seed, self.epoch])
        durations = [u.duration_s for u in self.corpus.utterances]
        order = epoch_order(self.corpus.utterances, self.recipe.weights, self.recipe.speaker_cap, rng)
        return group(join(order, durations, rng), durations, self.recipe.batch_s, rng, by_length=self.epoch == 0)

    def _update(self, batch: Batch, number: int) -> float:
        recipe, network = self.recipe, self.network
        rng = np.random.default_rng([recipe.seed, 1, self.epoch, number])
        pcm = batch.pcm.to(self.device)
        state = network.fresh_state(len(pcm))
        with torch.no_grad():
            features, _ = network.features(pcm, state["pcm"])  # (B, 4T, F)
            features = mask(features, (4 * batch.frames).tolist(), recipe.augmentation, rng)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits, _ = network.encode(features, state)  # (B, T, V)
        loss = ctc_loss(logits[:, network.config.delay_frames :], batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
        if not math.isfinite(float(norm)):
            self.optimizers.both[0].zero_grad()
            self.optimizers.both[1].zero_grad()
            return float("nan")
        self.optimizers.step(self.schedule(self.update))
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """All that `resume` needs."""
        return {"network": self.network.state_dict(), "optimizers": self.optimizers.state_dict(),
                "update": self.update, "epoch": self.epoch, "epoch_start": self._epoch_start,
                "audio_s": self.audio_s, "random": torch.get_rng_state(),
                "recipe": dataclasses.asdict(self.recipe)}

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Go on from `state_dict`. Raises: TrainingError if the recipe is another one."""
        if saved["recipe"] != dataclasses.asdict(self.recipe):
            raise TrainingError("the checkpoint was made with another recipe: give the same options or a new folder")
        self.network.load_state_dict(saved["network"])
        self.optimizers.load_state_dict(saved["optimizers"])
        self.update, self.epoch, self._epoch_start = saved["update"], saved["epoch"], saved["epoch_start"]
        self.audio_s = saved["audio_s"]
        torch.set_rng_state(saved["random"])


def ctc_loss(logits: Tensor, batch: Batch) -> Tensor:
    """CTC over a batch, in float32, per target character (Graves et al. 2006)."""
    log_probs = functional.log_softmax(logits.float(), dim=-1).transpose(0, 1)  # (T, B, V)
    losses = functional.ctc_loss(log_probs, batch.targets, batch.frames, batch.target_lengths, blank=BLANK,
                                 reduction="sum", zero_infinity=True)
    return losses / batch.target_lengths.sum()


def _augmenter(recipe: Recipe, noise: Sequence[Utterance], sample_rate: int) -> Augmenter:
    rooms, noises = [], []
    for recording in noise:
        samples = read_pcm(recording.audio, sample_rate).astype(np.float32) / 32768
        is_room = "rir" in recording.audio.name.lower() or "impulse" in recording.audio.name.lower()
        (rooms if is_room else noises).append(samples)
    return Augmenter(recipe.augmentation, noises, rooms, sample_rate)


@torch.no_grad()
def transcribe_whole(network: Network, pcms: Sequence[np.ndarray[Any, Any]]) -> list[str]:
    """Greedy text of whole recordings in one padded batch: for validation while training."""
    config = network.config
    frames = [-(-len(p) // config.frame_samples) for p in pcms]
    pcm = torch.zeros(len(pcms), (max(frames) + config.lookahead) * config.frame_samples, dtype=torch.int16)
    for row, samples in enumerate(pcms):
        pcm[row, : len(samples)] = torch.from_numpy(np.asarray(samples))
    device = network.head.weight.device
    log_probs, _ = network(pcm.to(device), network.fresh_state(len(pcms)))
    best = log_probs[:, config.delay_frames :].argmax(-1).tolist()  # (B, T)
    return [_collapse(row[:count], config.vocabulary) for row, count in zip(best, frames, strict=True)]


def _collapse(symbols: Sequence[int], vocabulary: Sequence[str]) -> str:
    kept = [s for i, s in enumerate(symbols) if s != BLANK and (i == 0 or symbols[i - 1] != s)]
    return " ".join("".join(vocabulary[s] for s in kept).split())


def validate(network: Network, corpus: Corpus, rows: int = 48) -> dict[str, Score]:
    """Score by source, whole utterances, greedy."""
    network.eval()
    order = sorted(range(len(corpus)), key=corpus.samples)
    scored: list[tuple[str, str, str]] = []
    for start in range(0, len(order), rows):
        picked = order[start : start + rows]
        texts = transcribe_whole(network, [corpus.pcm(i) for i in picked])
        scored += [(corpus.utterances[i].source, corpus.utterances[i].text, t)
                   for i, t in zip(picked, texts, strict=True)]
    network.train()
    return by_source(scored)


def train(config: ModelConfig, recipe: Recipe, *, manifests: Sequence[Path], validation: Sequence[Path],
          noise: Sequence[Path], out: Path, cache: Path, device: str, every: int = 500,
          announce: Callable[[str], None] = print) -> Path:
    """Train, or go on where `out` stopped; returns the checkpoint's path. Raises: ModelError."""
    corpus = Corpus([u for u in read_manifests(manifests) if u.text], cache, config.sample_rate)
    held_out = Corpus(read_manifests(validation), cache, config.sample_rate)
    trainer = Trainer(config, recipe, corpus, read_manifests(noise), torch.device(device))
    resume_file, best = out.with_suffix(".resume.pt"), out.with_suffix(".safetensors")
    if resume_file.exists():
        trainer.resume(torch.load(resume_file, weights_only=False))
        announce(f"going on from update {trainer.update}")
    else:
        trainer.fit_features()
    losses: list[float] = []
    for progress in trainer.run(recipe.updates):
        losses.append(progress.loss)
        if progress.update % 50 == 0 or progress.update == recipe.updates:
            announce(f"update {progress.update}/{recipe.updates} epoch {progress.epoch} loss "
                     f"{np.nanmean(losses[-50:]):.3f} audio {progress.audio_s / 3600:.1f} h "
                     f"elapsed {progress.elapsed_s:.0f} s")
        if progress.update % every == 0 or progress.update == recipe.updates:
            figures = report(validate(trainer.network, held_out))
            announce(f"update {progress.update} {figures}")
            _keep(trainer, figures, out, resume_file)
    return best


def _keep(trainer: Trainer, figures: dict[str, object], out: Path, resume_file: Path) -> None:
    facts = {"updates": trainer.update, "audio_h": round(trainer.audio_s / 3600, 2), "validation": figures,
             "recipe": dataclasses.asdict(trainer.recipe)}
    config = dataclasses.replace(trainer.network.config, training=facts)
    stored = Network(config)
    stored.load_state_dict(trainer.network.state_dict())
    checkpoint.save(stored, out.with_suffix(".safetensors"))
    partial = resume_file.with_suffix(".partial")
    torch.save(trainer.state_dict(), partial)
    partial.replace(resume_file)
