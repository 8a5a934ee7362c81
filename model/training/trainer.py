"""One training run: network, optimizers, random state; an update at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import BLANK, ModelConfig
from model.errors import TrainingError
from model.network import Network
from model.recordings import Utterance, read_pcm
from model.training.augment import Augmenter, Samples, mask
from model.training.batches import Batch, BatchMaker, Item, Targets, group, join
from model.training.corpus import Corpus, epoch_order
from model.training.optimizer import Optimizers, Schedule
from model.training.parallel import Team
from model.training.phones import PhoneHead, Pronunciations
from model.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Progress:
    """Result of one update. `loss` is nats per target character, nan where the gradient was not finite."""

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
        *,
        team: Team | None = None,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.corpus, self.device, self.team = recipe, corpus, device, team or Team()
        self.network = Network(config, recipe.dropout).to(device)
        spoken = Pronunciations.of(u.text for u in corpus.utterances) if recipe.phone_weight else None
        self.phone_head = PhoneHead(self.network, len(spoken.phones)).to(device) if spoken else None
        self.learning = nn.ModuleDict({"network": self.network})
        if self.phone_head is not None:
            self.learning["phone_head"] = self.phone_head
        self.optimizers = Optimizers(
            self.learning.named_parameters(),
            matrix_lr=recipe.matrix_lr,
            vector_lr=recipe.vector_lr,
            weight_decay=recipe.weight_decay,
        )
        self.schedule = Schedule(recipe.updates, recipe.warmup, recipe.decay)
        augmenter = make_augmenter(recipe, noise, config.sample_rate)
        self.batches = BatchMaker(config, corpus, augmenter, recipe.seed, spoken)
        self.done, self.epoch, self.audio_s = 0, 0, 0.0
        self._epoch_start = 0  # updates before the current epoch
        self._fresh = True  # weights were random at the start

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
        self._fresh = False
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
                loss, audio_s = self._update(batch, number)
                self.audio_s += audio_s
                self.done += 1
                yield Progress(self.done, self.epoch, loss, self.audio_s, time.monotonic() - start)
                if self.done >= self.recipe.last_update:
                    return
            self.epoch += 1
            self._epoch_start = self.done

    def _epoch_groups(self) -> list[list[Item]]:
        rng = np.random.default_rng([self.recipe.seed, self.epoch])
        durations = [u.duration_s for u in self.corpus.utterances]
        order = epoch_order(
            self.corpus.utterances, self.recipe.weights, self.recipe.speaker_cap, rng, self.recipe.share
        )
        items = join(order, durations, rng)
        rank, size = self.team.rank, self.team.size
        by_length = self._fresh and self.epoch == 0
        groups = group(items, durations, self.recipe.batch_s, rng, by_length=by_length, together=size)
        return groups[rank : len(groups) // size * size : size]

    def _update(self, batch: Batch, number: int) -> tuple[float, float]:
        """Returns: loss and seconds of audio, of the whole team."""
        network = self.network
        key = [self.recipe.seed, 1, self.epoch, number, self.team.rank]
        rng = np.random.default_rng(key)
        torch.manual_seed(int(rng.integers(2**62)))  # dropout
        pcm = batch.pcm.to(self.device)
        state = network.fresh_state(len(pcm))
        with torch.no_grad():
            features, _ = network.features(pcm, state["pcm"])  # (B, 4T, F)
            features = mask(features, (4 * batch.frames).tolist(), self.recipe.augmentation, rng)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits, _ = network.encode(features, state)  # (B, T, V)
            phones = self.phone_head.logits() if self.phone_head is not None else None
        loss = ctc_loss(logits[:, network.config.delay_frames :], batch.frames, batch.letters)
        total = loss
        if phones is not None and batch.phones is not None:
            share = self.recipe.phone_weight
            total = (1 - share) * loss + share * ctc_loss(phones, batch.frames, batch.phones)
        total.backward()  # type: ignore[no-untyped-call]
        parameters = list(self.learning.parameters())
        mean_loss, mean_s = self.team.mean(parameters, [loss.item(), batch.audio_s])
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip_norm)
        if not math.isfinite(float(norm)):
            self.optimizers.clear()
            return math.nan, mean_s * self.team.size
        self.optimizers.step(self.schedule(self.done))
        return mean_loss, mean_s * self.team.size

    def state_dict(self) -> dict[str, Any]:
        """State for `resume`."""
        return {
            "learning": self.learning.state_dict(),
            "optimizers": self.optimizers.state_dict(),
            "done": self.done,
            "epoch": self.epoch,
            "epoch_start": self._epoch_start,
            "audio_s": self.audio_s,
            "fresh": self._fresh,
            "recipe": repr(self.recipe),
        }

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. Raises: TrainingError if the recipe is another one."""
        if saved["recipe"] != repr(self.recipe):
            raise TrainingError("the checkpoint was made with another recipe: give that one, or another --out")
        self.learning.load_state_dict(saved["learning"])
        self.optimizers.load_state_dict(saved["optimizers"])
        self.done, self.epoch, self._epoch_start = saved["done"], saved["epoch"], saved["epoch_start"]
        self.audio_s, self._fresh = saved["audio_s"], saved["fresh"]


def ctc_loss(logits: Tensor, frames: Tensor, targets: Targets) -> Tensor:
    """CTC of a batch, logits (B, T, V), in float32, per target symbol. Source: Graves et al. 2006."""
    log_probs = functional.log_softmax(logits.float(), dim=-1).transpose(0, 1)  # (T, B, V)
    losses = functional.ctc_loss(
        log_probs,
        targets.symbols.to(logits.device),
        frames,
        targets.lengths,
        blank=BLANK,
        reduction="sum",
        zero_infinity=True,  # a recording too short for its text has no gradient
    )
    return losses / targets.lengths.sum()


def make_augmenter(recipe: Recipe, noise: Sequence[Utterance], sample_rate: int) -> Augmenter:
    """Load noise recordings and room responses; the latter have `rir` in their file names."""
    rooms: list[Samples] = []
    noises: list[Samples] = []
    for recording in noise:
        samples = read_pcm(recording.audio, sample_rate).astype(np.float32) / np.float32(32768)
        (rooms if "rir" in recording.audio.stem.lower() else noises).append(samples)
    return Augmenter(recipe.augmentation, noises, rooms, sample_rate)
