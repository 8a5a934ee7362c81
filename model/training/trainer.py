"""One training run's moving parts: network, optimizers, random state; an update at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.audio import read_pcm
from model.config import BLANK, ModelConfig
from model.errors import TrainingError
from model.manifest import Utterance
from model.network import Network
from model.training.augment import Augmenter, Samples, mask
from model.training.batches import Batch, BatchMaker, Item, group, join
from model.training.corpus import Corpus, epoch_order
from model.training.optimizer import Optimizers, Schedule
from model.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Progress:
    """What one update did. `loss` is nats per target character, nan where the gradient was not finite."""

    update: int
    epoch: int
    loss: float
    audio_s: float
    elapsed_s: float


class Trainer:
    """Deterministic from the recipe's seed: every epoch and batch draws from a generator of its own."""

    def __init__(
        self,
        config: ModelConfig,
        recipe: Recipe,
        corpus: Corpus,
        noise: Sequence[Utterance],
        device: torch.device,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.corpus, self.device = recipe, corpus, device
        self.network = Network(config, recipe.dropout).to(device)
        self.optimizers = Optimizers(
            self.network,
            matrix_lr=recipe.matrix_lr,
            vector_lr=recipe.vector_lr,
            weight_decay=recipe.weight_decay,
        )
        self.schedule = Schedule(recipe.updates, recipe.warmup, recipe.decay)
        augmenter = make_augmenter(recipe, noise, config.sample_rate)
        self.batches = BatchMaker(config, corpus, augmenter, recipe.seed)
        self.done, self.epoch, self.audio_s = 0, 0, 0.0
        self._epoch_start = 0  # updates before the present epoch

    def fit_features(self, utterances: int = 300) -> None:
        """Set the features' mean and scale from augmented training audio (Deep Speech 2, section 7.2: online
        normalisation by statistics of the training set).
        """
        rng = np.random.default_rng(self.recipe.seed)
        features = self.network.features
        energies: list[Tensor] = []
        for index in rng.permutation(len(self.corpus))[:utterances].tolist():
            samples = self.corpus.samples(index)
            if samples > 2 * features.length:
                pcm = self.batches.make([(index,)], (0, 0)).pcm[:, :samples]
                energies.append(features.log_mel(pcm.to(self.device, torch.float32) / 32768).flatten(0, 1))
        if not energies:
            raise TrainingError("no training recording is longer than two windows")
        frames = torch.cat(energies)  # (T, F)
        features.mean.copy_(frames.mean(0))
        features.scale.copy_(1 / frames.std(0))

    def start_from(self, network: Network) -> None:
        """Take over weights and feature statistics of another run. Raises: TrainingError if the sizes differ."""
        try:
            self.network.load_state_dict(network.state_dict())
        except RuntimeError as error:
            raise TrainingError(f"the checkpoint to start from has other sizes than the recipe: {error}") from error

    def run(self) -> Iterator[Progress]:
        """Train to the recipe's last update, yielding after each."""
        self.network.train()
        start = time.monotonic()
        while self.done < self.recipe.last_update:
            groups = self._epoch_groups()
            first = self.done - self._epoch_start
            for number, batch in enumerate(self.batches.ahead(groups, self.epoch, first), first):
                loss = self._update(batch, number)
                self.audio_s += batch.audio_s
                self.done += 1
                yield Progress(self.done, self.epoch, loss, self.audio_s, time.monotonic() - start)
                if self.done >= self.recipe.last_update:
                    return
            self.epoch += 1
            self._epoch_start = self.done

    def _epoch_groups(self) -> list[list[Item]]:
        rng = np.random.default_rng([self.recipe.seed, self.epoch])
        durations = [u.duration_s for u in self.corpus.utterances]
        order = epoch_order(self.corpus.utterances, self.recipe.weights, self.recipe.speaker_cap, rng)
        items = join(order, durations, rng)
        return group(items, durations, self.recipe.batch_s, rng, by_length=self.epoch == 0)

    def _update(self, batch: Batch, number: int) -> float:
        network = self.network
        rng = np.random.default_rng([self.recipe.seed, 1, self.epoch, number])
        pcm = batch.pcm.to(self.device)
        state = network.fresh_state(len(pcm))
        with torch.no_grad():
            features, _ = network.features(pcm, state["pcm"])  # (B, 4T, F)
            features = mask(features, (4 * batch.frames).tolist(), self.recipe.augmentation, rng)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits, _ = network.encode(features, state)  # (B, T, V)
        loss = ctc_loss(logits[:, network.config.delay_frames :], batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), self.recipe.clip_norm)
        if not math.isfinite(float(norm)):
            self.optimizers.clear()
            return math.nan
        self.optimizers.step(self.schedule(self.done))
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """All that `resume` needs."""
        return {
            "network": self.network.state_dict(),
            "optimizers": self.optimizers.state_dict(),
            "done": self.done,
            "epoch": self.epoch,
            "epoch_start": self._epoch_start,
            "audio_s": self.audio_s,
            "random": torch.get_rng_state(),
            "recipe": repr(self.recipe),
        }

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Go on from `state_dict`. Raises: TrainingError if the recipe is another one."""
        if saved["recipe"] != repr(self.recipe):
            raise TrainingError("the checkpoint was made with another recipe: give that one, or another --out")
        self.network.load_state_dict(saved["network"])
        self.optimizers.load_state_dict(saved["optimizers"])
        self.done, self.epoch, self._epoch_start = saved["done"], saved["epoch"], saved["epoch_start"]
        self.audio_s = saved["audio_s"]
        torch.set_rng_state(saved["random"])


def ctc_loss(logits: Tensor, batch: Batch) -> Tensor:
    """CTC of a batch, logits (B, T, V), in float32, per target character. Source: Graves et al. 2006."""
    log_probs = functional.log_softmax(logits.float(), dim=-1).transpose(0, 1)  # (T, B, V)
    losses = functional.ctc_loss(
        log_probs,
        batch.targets.to(logits.device),
        batch.frames,
        batch.target_lengths,
        blank=BLANK,
        reduction="sum",
        zero_infinity=True,  # a recording too short for its text teaches nothing
    )
    return losses / batch.target_lengths.sum()


def make_augmenter(recipe: Recipe, noise: Sequence[Utterance], sample_rate: int) -> Augmenter:
    """Load noise recordings and room responses; the latter have `rir` in their file names."""
    rooms: list[Samples] = []
    noises: list[Samples] = []
    for recording in noise:
        samples = read_pcm(recording.audio, sample_rate).astype(np.float32) / np.float32(32768)
        (rooms if "rir" in recording.audio.stem.lower() else noises).append(samples)
    return Augmenter(recipe.augmentation, noises, rooms, sample_rate)
