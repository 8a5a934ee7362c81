"""Trainer: network, optimizers and position of a run; the same bits for any number of processes.

An update is a function of the weights and of the keys of its micro-batches. Each micro-batch yields a flat float32
buffer of gradients and figures; the buffers are added along a fixed tree and divided once, and every process computes
the rest from this sum.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from model.config import ModelConfig
from model.errors import TrainingError
from model.lexicon.lexicon import Lexicon
from model.recordings import Utterance, read_pcm
from model.torch_network.network import DTYPES, GRULayer, LogMel, Network
from tutti_asr_lab.gpu.training import choose_recurrence
from tutti_asr_lab.training.acoustic.augment import Augmenter, Samples
from tutti_asr_lab.training.acoustic.averaging import MovingAverage
from tutti_asr_lab.training.acoustic.data.batches import Batch, BatchMaker, Key
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.data.draws import Purpose, draws
from tutti_asr_lab.training.acoustic.data.epoch import MicroBatch, epoch_updates, part_of, timed
from tutti_asr_lab.training.acoustic.efficiency import flops_of, flops_of_muon
from tutti_asr_lab.training.acoustic.losses.distillation import Teachers
from tutti_asr_lab.training.acoustic.objective import FIGURES, Objective
from tutti_asr_lab.training.acoustic.optimizer.optimizers import Optimizers, Schedule
from tutti_asr_lab.training.acoustic.optimizer.precision import LossScale, training_precision
from tutti_asr_lab.training.acoustic.parallel.all_reduce import TreeSum
from tutti_asr_lab.training.acoustic.parallel.team import Team
from tutti_asr_lab.training.acoustic.recipe import Recipe
from tutti_asr_lab.training.lexicon.spoken import Pronunciations

FEATURE_RECORDINGS = 300  # recordings for the statistics of the features


@dataclass(frozen=True, slots=True)
class Position:
    """Position of the next update: its number in the run, its epoch, and its number in the epoch."""

    done: int = 0
    epoch: int = 0
    in_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one update in this process: for batches, gradients, waiting, exchange, and the optimizers."""

    audio: float
    compute: float
    wait: float
    exchange: float
    step: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Result of one update, over all processes. `loss` is nats per letter, NaN if the gradient was not finite.

    `audio_s` is the audio since the start of the run, `flops` are the operations of this update's products.
    `stopping`: a process was asked to stop, so all stop after this
    update.
    """

    update: int
    epoch: int
    loss: float
    norm: float
    learning_rate: float
    audio_s: float
    flops: float
    spent: Spent
    stopping: bool


class Trainer:
    """Training of one network; deterministic given recipe and recordings, for any number of processes in `team`."""

    def __init__(
        self,
        config: ModelConfig,
        recipe: Recipe,
        corpus: Corpus,
        noise: Sequence[Utterance],
        device: torch.device,
        *,
        team: Team | None = None,
        asked_to_stop: Callable[[], bool] = lambda: False,
        lexicon: Lexicon | None = None,
        teachers: Sequence[Network] = (),
        phones: Sequence[str] = (),
    ) -> None:
        """Build the network. `lexicon`: for languages without built-in pronunciations.

        `phones` are those of a network to start from, or of teachers: a text that lacks some keeps them all.
        Raises: TrainingError.
        """
        if bool(teachers) != bool(recipe.distillation):
            raise TrainingError("--teacher and distillation in the recipe require each other: one of them is missing")
        torch.manual_seed(recipe.seed)
        self.recipe, self.corpus, self.device, self.team = recipe, corpus, device, team or Team()
        self.asked_to_stop = asked_to_stop
        self.precision = training_precision(recipe.precision, device)
        texts = [u.text for u in corpus.utterances]
        spoken = Pronunciations.of(texts, config.language, lexicon, phones) if recipe.phone_weight else None
        if spoken is not None:
            config = dataclasses.replace(config, phones=spoken.phones)
        self.network = Network(config, recipe.dropout).to(device)
        chosen = choose_recurrence(recipe.recurrence, config.hidden, self.precision, device)
        self.recurrence, self.recurrence_description = chosen
        for gru in self.network.grus:
            cast(GRULayer, gru).recurrence = self.recurrence
        self.batches = BatchMaker(
            config, corpus, make_augmenter(recipe, noise, config.sample_rate), recipe.seed, spoken
        )
        targets = [[self.batches.letters(text) for text in texts]]
        if spoken is not None:
            targets.append([spoken.target(text) for text in texts])
        self.teachers = Teachers(teachers, device) if teachers else None
        self.objective = Objective(self.network, recipe, self.precision, targets, self.teachers)
        self.parameters = list(self.network.parameters())
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.optimizers = Optimizers(
            self.network.named_parameters(),
            matrix_lr=recipe.matrix_lr,
            vector_lr=recipe.vector_lr,
            weight_decay=recipe.weight_decay,
            dtype=torch.bfloat16 if DTYPES[self.precision] == torch.bfloat16 else torch.float32,
            team=self.team,
        )
        self._muon_flops = flops_of_muon([matrix.shape for matrix in self.optimizers.muon.matrices])
        self.schedule = Schedule(recipe.updates, recipe.warmup, recipe.decay)
        self.loss_scale = LossScale(self.precision)
        self._noises = repr([recording.audio.name for recording in noise])
        self.average = MovingAverage(self.network, recipe.moving_average)
        self.position, self.audio_s = Position(), 0.0
        self._lexicon = {} if lexicon is None else {"lexicon": lexicon.digest}
        self._fresh = True  # the run started from random weights

    @property
    def result(self) -> Network:
        """Network to validate and save."""
        return self.average.network

    def choose_sums(self) -> None:
        """Choose by measurement how the processes sum buffers of the gradients' size; the bits are the same."""
        self.team = self.team.measured(4 * sum(self.sizes))

    def fit_features(self) -> None:
        """Set the features' mean and scale. Raises: TrainingError."""
        fit(self.network.features, self.corpus, self.batches, self.recipe)
        self.average.begin(self.network)

    def start_from(self, network: Network) -> None:
        """Copy weights and feature statistics of another run.

        Phones of another language keep their random weights, as do letters that the other network lacks. Additional
        layers, after the copied ones, start as the identity, so that the outputs are the same at
        first. Raises: TrainingError if other sizes differ.
        """
        self._fresh = False
        theirs_by_name, own = network.state_dict(), self.network.config
        weights = {name: value for name, value in theirs_by_name.items() if not name.startswith(("grus.", "norms."))}
        if network.config.layers > own.layers:
            raise TrainingError(
                f"the checkpoint to start from has more layers ({network.config.layers}) than the recipe ({own.layers})"
            )
        for layer in range(own.layers):
            if layer >= network.config.layers:
                _mute(cast(GRULayer, self.network.grus[layer]))
            for part, modules in (("grus", self.network.grus), ("norms", self.network.norms)):
                for name, value in modules[layer].state_dict().items():
                    known = theirs_by_name.get(f"{part}.{layer}.{name}", value)
                    weights[f"{part}.{layer}.{name}"] = known
        if own.phones != network.config.phones or own.vocabulary != network.config.vocabulary:
            theirs = {symbol: row for row, symbol in enumerate(network.config.vocabulary)}
            known = [(row, theirs[symbol]) for row, symbol in enumerate(own.vocabulary) if symbol in theirs]
            into, taken = zip(*known, strict=True)  # both have the blank
            for name, random in self.network.head.state_dict(prefix="head.").items():
                rows = random.to(weights[name].device, copy=True)
                rows[list(into)] = weights[name][list(taken)]
                weights[name] = rows
        try:
            self.network.load_state_dict(weights)
        except RuntimeError as error:
            raise TrainingError(f"the checkpoint to start from has other sizes than the recipe: {error}") from error
        self.average.begin(self.network)

    def run(self) -> Iterator[Progress]:
        """Train to the recipe's last update, yielding after each; stop early after an update with `stopping`.

        Raises: TrainingError for teachers with other outputs or features.
        """
        if self.teachers is not None:
            self.teachers.check(self.network)
        self.network.train()
        made = self.batches.ahead(self._jobs())
        while self.position.done < self.recipe.last_update:
            began = time.perf_counter()
            after, batches = next(made)
            progress = self._update(batches, after, time.perf_counter() - began)
            yield progress
            if progress.stopping:
                return

    def _jobs(self) -> Iterator[tuple[Position, list[tuple[Key, MicroBatch]]]]:
        """Micro-batches of this process for each further update, and the position after it."""
        position, total, team = self.position, self.recipe.micro_batches, self.team
        while True:
            by_length = self._fresh and position.epoch == 0
            updates = epoch_updates(self.corpus.utterances, self.recipe, position.epoch, by_length=by_length)
            if not updates:
                raise TrainingError("the recipe's weights leave no recording in an epoch")
            for number in range(position.in_epoch, len(updates)):
                if position.done >= self.recipe.last_update:
                    return
                done, last = position.done + 1, number + 1 == len(updates)
                after = Position(done, position.epoch + 1, 0) if last else Position(done, position.epoch, number + 1)
                mine = part_of(updates[number], total, team.rank, team.size)
                yield after, [((position.epoch, number * total + i), updates[number][i]) for i in mine]
                position = after

    def _update(self, batches: Sequence[Batch], after: Position, audio_s: float) -> Progress:
        began = time.perf_counter()
        own = TreeSum()
        for batch in batches:
            own.add(self._gradients(batch))
        size = sum(self.sizes) + len(FIGURES) + 3
        for _ in range(len(batches), self.recipe.micro_batches // self.team.size):
            own.add(torch.zeros(size, device=self.device))  # this update has fewer micro-batches
        total = own.total()
        total[-1] = float(self.asked_to_stop())
        computed = time.perf_counter()
        total = self.team.sum(total)
        wait_s, exchange_s = self.team.spent.take()
        reduced = time.perf_counter()
        *figures, gflop, update_audio_s, asked = total[sum(self.sizes) :].tolist()
        found = dict(zip(FIGURES, figures, strict=True))
        norm = self._apply(total[: sum(self.sizes)], found["letters"])
        learning_rate = self.recipe.matrix_lr * self.schedule(self.position.done)
        epoch = self.position.epoch
        self.position, self.audio_s = after, self.audio_s + update_audio_s
        more_wait_s, gather_s = self.team.spent.take()
        spent = Spent(
            audio=audio_s,
            compute=computed - began,
            wait=wait_s + more_wait_s,
            exchange=exchange_s + gather_s,
            step=time.perf_counter() - reduced - more_wait_s - gather_s,
        )
        loss = found["loss"] / found["letters"] if math.isfinite(norm) else math.nan
        flops = 1e9 * gflop + self._muon_flops
        return Progress(after.done, epoch, loss, norm, learning_rate, self.audio_s, flops, spent, bool(asked))

    def _gradients(self, batch: Batch) -> Tensor:
        """Gradients of all parameters, figures, GFLOP, seconds of audio, 0 for the stop request: (N,) float32.

        Raises: KernelError if a persistent kernel has aborted.
        """
        rng = draws(self.recipe.seed, Purpose.LEARNING, *batch.key)
        torch.manual_seed(int(rng.integers(2**62)))  # dropout
        pcm = batch.pcm.to(self.device)
        with torch.no_grad():
            features, _ = self.network.features(pcm, self.network.fresh_state(len(pcm))["pcm"])  # (B, 4T, F)
        losses = self.objective(features, batch, rng, self.position.done)
        (losses.total * self.loss_scale.value).backward()  # type: ignore[no-untyped-call]
        if self.recurrence is not None:
            self.recurrence.check()
        parts: list[Tensor] = []
        for parameter, size in zip(self.parameters, self.sizes, strict=True):
            grad = parameter.grad
            parts.append(grad.reshape(-1) if grad is not None else torch.zeros(size, device=self.device))
            parameter.grad = None
        rows, frames = features.shape[0], features.shape[1] // 4
        flops = flops_of(self.network.config, rows, frames)
        for teacher in self.teachers.networks if self.teachers is not None else ():
            flops += flops_of(teacher.config, rows, frames, training=False)
        figures = [*losses.figures, flops / 1e9, batch.audio_s, 0.0]
        return torch.cat([*parts, torch.tensor(figures, dtype=torch.float32, device=self.device)])

    def _apply(self, gradients: Tensor, targets: float) -> float:
        """Clip and apply the sum of all gradients (N,) if it is finite. Returns the norm of their mean."""
        gradients /= targets * self.loss_scale.value
        norm = float(torch.linalg.vector_norm(gradients))
        self.loss_scale.follow(norm)
        if not math.isfinite(norm):
            return norm
        gradients *= min(1.0, self.recipe.clip_norm / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_
        for parameter, part in zip(self.parameters, torch.split(gradients, self.sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        self.optimizers.step(self.schedule(self.position.done))
        for parameter in self.parameters:
            parameter.grad = None
        self.average.follow(self.network, self.position.done)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """State for `resume`: everything that is not a function of recipe and position."""
        position = self.position
        return {
            "identity": self.identity(),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": self.optimizers.state_dict(),
            "loss_scale": self.loss_scale.state_dict(),
            "precision": self.precision,
            "position": [position.done, position.epoch, position.in_epoch],
            "audio_s": self.audio_s,
            "fresh": self._fresh,
        }

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Continue from `state_dict`, which may have been saved in another precision or on another machine.

        Raises: TrainingError if recipe, network or recordings differ.
        """
        for name, own in self.identity().items():
            if saved["identity"].get(name) != own:
                raise TrainingError(f"the run was started with another {name}: use the same one, or another --out")
        self.network.load_state_dict(saved["network"])
        self.average.load_state_dict(saved["average"])
        self.optimizers.load_state_dict(saved["optimizers"])
        self.loss_scale.load_state_dict(saved["loss_scale"])
        self.position = Position(*saved["position"])
        self.audio_s, self._fresh = saved["audio_s"], saved["fresh"]

    def identity(self) -> dict[str, str]:
        """Inputs that must not change when a run resumes, by the name used in error messages."""
        return {
            "recipe": repr(self.recipe),
            "model": repr(self.network.config),
            "set of recordings": self.corpus.digest(),
            "set of noises": self._noises,
            **self._lexicon,
            **({"set of teachers": self.teachers.digest} if self.teachers is not None else {}),
        }


def make_augmenter(recipe: Recipe, noise: Sequence[Utterance], sample_rate: int) -> Augmenter:
    """Load noise recordings and room impulse responses; the latter have `rir` in their file names."""
    rooms: list[Samples] = []
    noises: list[Samples] = []
    for recording in noise:
        samples = read_pcm(recording.audio, sample_rate).astype(np.float32) / np.float32(32768)
        (rooms if "rir" in recording.audio.stem.lower() else noises).append(samples)
    return Augmenter(recipe.augmentation, noises, rooms, sample_rate)


def fit(features: LogMel, corpus: Corpus, batches: BatchMaker, recipe: Recipe) -> None:
    """Set the mean and scale of features from augmented recordings. Raises: TrainingError if all are too short.

    Source: Deep Speech 2, section 7.2 (normalization by statistics of the training set).
    """
    rng = draws(recipe.seed, Purpose.FEATURES)
    energies: list[Tensor] = []
    for number, index in enumerate(rng.permutation(len(corpus))[:FEATURE_RECORDINGS].tolist(), 1):
        samples = corpus.samples(index)
        if samples > 2 * features.length:
            item = timed((index,), recipe.augmentation, rng)
            pcm = batches.make([item], (0, number), Purpose.FEATURES).pcm[:, :samples]
            energies.append(features.log_mel(pcm.to(features.mean.device, torch.float32) / 32768).flatten(0, 1))
    if not energies:
        raise TrainingError("no training recording is longer than two windows")
    frames = torch.cat(energies)  # (T, F)
    features.mean.copy_(frames.mean(0))
    features.scale.copy_(1 / frames.std(0))


def _mute(layer: GRULayer) -> None:
    """Zero the candidate's weights, so that zero states stay zero until training changes them."""
    with torch.no_grad():
        for product in (layer.input, layer.recurrent):
            for parameter in product.parameters():
                parameter[2 * layer.hidden :] = 0
