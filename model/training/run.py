"""`tutti train`: manifests in, checkpoint out; validation by source, progress, resume, saving on Ctrl-C."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from model import checkpoint
from model.config import ModelConfig
from model.ctc.greedy import best_path
from model.errors import TrainingError
from model.evaluation.scoring import Score, by_source, report
from model.evaluation.whole import log_probs_of
from model.network import Network
from model.precision import resolve_device
from model.recordings import read_manifests
from model.training import parallel
from model.training.corpus import Corpus
from model.training.parallel import Team
from model.training.recipe import Recipe
from model.training.trainer import Progress, Trainer

LOG_EVERY = 50  # updates


@dataclass(frozen=True, slots=True)
class Places:
    """Files that a run reads and writes. `out` is the checkpoint; its resume file lies beside it."""

    manifests: Sequence[Path]
    validation: Sequence[Path]
    noise: Sequence[Path]
    out: Path
    cache: Path
    init: Path | None = None  # a checkpoint to start from, instead of random weights

    @property
    def resume(self) -> Path:
        """State of an interrupted run."""
        return self.out.with_suffix(".resume.pt")


@dataclass(frozen=True, slots=True)
class Job:
    """Arguments of every process of a run."""

    config: ModelConfig
    recipe: Recipe
    places: Places
    device: str
    validate_every: int


def train(
    config: ModelConfig,
    recipe: Recipe,
    places: Places,
    *,
    device: str = "auto",
    validate_every: int = 500,
    announce: Callable[[str], None],
) -> Path:
    """Train, or continue an interrupted run; returns the checkpoint's path. Raises: ModelError."""
    announce("reading the audio (decoded once, then cached)")
    corpus, _ = _corpora(config, places)
    if not len(corpus):
        raise TrainingError("the manifests name no recording with a text")
    job = Job(config, recipe, places, device, validate_every)
    parallel.run(recipe.processes, partial(_member, job, announce))
    return places.out


def _corpora(config: ModelConfig, places: Places) -> tuple[Corpus, Corpus]:
    training = [u for u in read_manifests(places.manifests) if u.text]
    held_out = read_manifests(places.validation)
    return (
        Corpus(training, places.cache, config.sample_rate),
        Corpus(held_out, places.cache, config.sample_rate),
    )


def _member(job: Job, announce: Callable[[str], None], team: Team) -> None:
    """One process of the run: all train, the first validates, saves and reports."""
    config, recipe, places = job.config, job.recipe, job.places
    corpus, held_out = _corpora(config, places)
    if not team.leads:
        announce = _silent
    trainer = Trainer(config, recipe, corpus, read_manifests(places.noise), resolve_device(job.device), team=team)
    if places.resume.exists():
        trainer.resume(torch.load(places.resume, weights_only=True))
        announce(f"going on from update {trainer.done}")
    elif places.init is not None:
        trainer.start_from(checkpoint.load(places.init)[0])
    else:
        trainer.fit_features()
    try:
        _run(trainer, held_out, places, job.validate_every, announce)
    except KeyboardInterrupt:
        if team.leads:
            _save_resume(trainer, places)
        announce(f"interrupted at update {trainer.done}; the same command goes on from there")
        raise


def _silent(_: str) -> None:
    """Ignore a message."""


def _run(
    trainer: Trainer, held_out: Corpus, places: Places, validate_every: int, announce: Callable[[str], None]
) -> None:
    first, losses = trainer.done, list[float]()
    for progress in trainer.run():
        last = progress.update == trainer.recipe.last_update
        losses.append(progress.loss)
        if progress.update % LOG_EVERY == 0 or last:
            announce(_line(progress, trainer.recipe.last_update, first, float(np.nanmean(losses[-LOG_EVERY:]))))
        if trainer.team.leads and (progress.update % validate_every == 0 or last):
            figures = report(validate(trainer.network, held_out)) if len(held_out) else {}
            announce(f"update {progress.update} validation {figures}")
            _save_checkpoint(trainer, figures, places)
            _save_resume(trainer, places)


def _line(progress: Progress, updates: int, first: int, loss: float) -> str:
    left_s = (updates - progress.update) * progress.elapsed_s / max(1, progress.update - first)
    return (
        f"update {progress.update}/{updates} epoch {progress.epoch} loss {loss:.3f} "
        f"heard {progress.audio_s / 3600:.1f} h elapsed {progress.elapsed_s:.0f} s left {left_s / 60:.0f} min"
    )


def _save_checkpoint(trainer: Trainer, figures: dict[str, object], places: Places) -> None:
    facts = {
        "updates": trainer.done,
        "epochs": trainer.epoch,
        "audio_h": round(trainer.audio_s / 3600, 2),
        "validation": figures,
        "recipe": trainer.recipe.to_dict(),
        **({"started_from": checkpoint.load(places.init)[0].config.training} if places.init is not None else {}),
    }
    stored = Network(dataclasses.replace(trainer.network.config, training=facts))
    stored.load_state_dict(trainer.network.state_dict())
    checkpoint.save(stored, places.out)


def _save_resume(trainer: Trainer, places: Places) -> None:
    places.resume.parent.mkdir(parents=True, exist_ok=True)
    unfinished = places.resume.with_suffix(".partial")
    torch.save(trainer.state_dict(), unfinished)
    unfinished.replace(places.resume)


def validate(network: Network, corpus: Corpus) -> dict[str, Score]:
    """Greedy scores of whole recordings by source; leaves the network in training mode."""
    network.eval()
    log_probs = log_probs_of(network, [corpus.pcm(i) for i in range(len(corpus))])
    network.train()
    vocabulary = network.config.vocabulary
    rows = zip(corpus.utterances, log_probs, strict=True)
    return by_source((u.source, u.text, best_path(row, vocabulary)) for u, row in rows)
