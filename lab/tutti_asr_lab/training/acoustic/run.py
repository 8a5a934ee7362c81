"""Training run of `tutti train`: from manifests to a checkpoint, with validation, progress, snapshots and resuming."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import torch

from model import checkpoint
from model.config import ModelConfig
from model.errors import TrainingError
from model.lexicon.lexicon import Lexicon
from model.machine.precision import resolve_device
from model.recordings import Utterance, check_audio, read_manifests
from model.torch_network.checkpoint import load_network, save_network
from model.torch_network.network import Network
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.data.transcripts import changed, spelled
from tutti_asr_lab.training.acoustic.efficiency import product_peak
from tutti_asr_lab.training.acoustic.losses.denominator import compile_ahead
from tutti_asr_lab.training.acoustic.parallel import launch
from tutti_asr_lab.training.acoustic.parallel.launch import Place
from tutti_asr_lab.training.acoustic.parallel.placement import described, pin
from tutti_asr_lab.training.acoustic.parallel.team import Team
from tutti_asr_lab.training.acoustic.recipe import Recipe
from tutti_asr_lab.training.acoustic.reporting import Reporting
from tutti_asr_lab.training.acoustic.snapshots import Snapshots, exclusive, state_of
from tutti_asr_lab.training.acoustic.trainer import Trainer
from tutti_asr_lab.training.acoustic.validation import Validation, validate


@dataclass(frozen=True, slots=True)
class Places:
    """Files that a run reads and writes. `out` is the checkpoint; snapshots, CSV file and plot are next to it."""

    manifests: Sequence[Path]
    validation: Sequence[Path]
    noise: Sequence[Path]
    out: Path
    cache: Path
    init: Path | None = None  # checkpoint to start from instead of random weights
    lexicon: Path | None = None  # pronunciations, required for languages other than English and Mandarin
    teachers: Sequence[Path] = ()  # checkpoints for distillation

    @property
    def snapshots(self) -> Path:
        """Folder of the snapshots from which an interrupted run resumes."""
        return self.out.with_suffix(".run")


@dataclass(frozen=True, slots=True)
class Every:
    """Intervals of validations, and of snapshots between them."""

    validation: int = 500  # updates
    snapshot: int = 200  # updates
    snapshot_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Job:
    """Arguments of each process of a run."""

    config: ModelConfig
    recipe: Recipe
    places: Places
    device: str
    every: Every
    pin: bool


def train(
    config: ModelConfig,
    recipe: Recipe,
    places: Places,
    *,
    processes: int | None = None,
    place: Place | None = None,
    device: str = "auto",
    every: Every | None = None,
    pin: bool = False,
    announce: Callable[[str], None],
) -> Path:
    """Train, or resume an interrupted run; return the checkpoint's path.

    Starts `processes` on this machine, by default one per core or GPU; with `place`, this process is one of several
    that were started elsewhere. `pin`: give each process cores of its own. Raises: ModelError; KeyboardInterrupt after
    an interrupted run has been saved.
    """
    job = Job(config, recipe, places, device, every or Every(), pin)
    _refuse_ignored(job)
    work = partial(_work, job, announce)
    if place is not None:
        launch.processes_for(place.size, recipe.micro_batches, place.size)
        with exclusive(places.snapshots) if place.rank == 0 else contextlib.nullcontext():
            launch.join(place, work)
        return places.out
    size = launch.processes_for(processes, recipe.micro_batches, launch.available_processes(_device(device)))
    with exclusive(places.snapshots):
        if count := changed(read_manifests(places.manifests), _texts(config, places.manifests)):
            announce(f"normalized capitals and punctuation in {count} texts")
        announce("reading the audio (decoded once, then cached)")
        _corpora(config, places)
        if recipe.denominator:
            compile_ahead()
        launch.run(size, work)
    return places.out


def _refuse_ignored(job: Job) -> None:
    """Refuse options that would have no effect. Raises: TrainingError."""
    if job.places.lexicon is not None and not job.recipe.phone_weight:
        raise TrainingError("a lexicon is for phone outputs: set phone_weight in the recipe, or leave out --lexicon")
    if job.pin and _device(job.device).type != "cpu":
        raise TrainingError("--pin gives each process cores of its own; leave it out, or train with --device cpu")


def _device(asked: str) -> torch.device:
    return torch.device(resolve_device(asked).type)


def _corpora(config: ModelConfig, places: Places) -> tuple[Corpus, Corpus]:
    """Training recordings and held-out ones. Raises: TrainingError if there are none to train on."""
    training, held_out = _texts(config, places.manifests), _texts(config, places.validation)
    if not training:
        raise TrainingError("the manifests have no recording with a text")
    return (Corpus(training, places.cache, config.sample_rate), Corpus(held_out, places.cache, config.sample_rate))


def _texts(config: ModelConfig, manifests: Sequence[Path]) -> list[Utterance]:
    utterances = spelled(read_manifests(manifests), config)
    check_audio(utterances)
    return utterances


def _work(job: Job, announce: Callable[[str], None], team: Team, stop: Event) -> bool:
    """Work of one process: all train and validate, the first saves and reports. Returns whether it was interrupted."""
    if not team.leads:
        announce = _silent
    pinned = job.pin and bool(team.locations)
    if pinned:
        pin(team.locations, team.rank)
    device = _device(job.device)
    if device.type == "cuda":
        device = torch.device("cuda", team.local_rank % torch.cuda.device_count())
    corpus, held_out = _corpora(job.config, job.places)
    noise = read_manifests(job.places.noise, texts=False)
    lexicon = None if job.places.lexicon is None else Lexicon.load(job.places.lexicon)
    start = None if job.places.init is None else load_network(job.places.init)[0]
    teachers = [load_network(path)[0] for path in job.places.teachers]
    trained = [each.config for each in (start, *teachers) if each is not None]
    trainer = Trainer(
        job.config,
        job.recipe,
        corpus,
        noise,
        device,
        team=team,
        asked_to_stop=stop.is_set,
        lexicon=lexicon,
        teachers=teachers,
        phones=next((each.phones for each in trained if each.language == job.config.language), ()),
    )
    if any(other != trainer.identity() for other in team.objects(trainer.identity())):
        raise TrainingError("the processes of the run have different recipes, models or recordings")
    trainer.choose_sums()
    snapshots = Snapshots(job.places.snapshots)
    if not _resume(trainer, snapshots, announce):
        if start is not None:
            trainer.start_from(start)
        else:
            trainer.fit_features()
    announce(f"{team.size} process(es), products in {trainer.precision}, {sum(trainer.sizes):,} weights")
    if device.type == "cuda":
        announce(f"recurrence by {trainer.recurrence_description}")
    if team.locations:
        announce(_layout(trainer.team, pinned=pinned))
    peak = sum(team.objects(product_peak(trainer.precision, device)))
    announce(f"peak of the products, measured now: {peak / 1e9:,.0f} GFLOP/s")
    return _Run(job, trainer, held_out, snapshots, peak_flops=peak, announce=announce).train()


def _layout(team: Team, *, pinned: bool) -> str:
    """Where the processes are, and how they add their gradients."""
    sums = "recursive doubling" if team.halving_from is None else f"recursive halving from {team.halving_from:,} bytes"
    return f"{described(team.locations)}{', pinned' if pinned else ''}; sums by {sums}"


def _resume(trainer: Trainer, snapshots: Snapshots, announce: Callable[[str], None]) -> bool:
    """Resume from the newest snapshot that any of the processes can read. Returns whether there is one."""
    own = snapshots.newest(announce)
    updates = trainer.team.objects(own[0] if own is not None else -1)
    if max(updates) < 0:
        return False
    content = trainer.team.broadcast(own[1] if own is not None else None, updates.index(max(updates)))
    saved = state_of(content)
    trainer.resume(saved)
    announce(f"resuming from update {trainer.position.done}")
    if saved["precision"] != trainer.precision:
        announce(f"the run was started in {saved['precision']}; results differ in the last bits")
    return True


def _named(path: Path) -> dict[str, str]:
    """Name, version and digest of a checkpoint, for another one's training record."""
    config, digest = checkpoint.outline(path)
    return {"name": config.name, "version": config.version, "sha256": digest}


def _silent(_: str) -> None:
    """Discard a message."""


class _Run:
    """Loop around the trainer: validates, saves and reports."""

    def __init__(
        self,
        job: Job,
        trainer: Trainer,
        held_out: Corpus,
        snapshots: Snapshots,
        *,
        peak_flops: float,
        announce: Callable[[str], None],
    ) -> None:
        self.job, self.trainer, self.held_out, self.snapshots = job, trainer, held_out, snapshots
        self.announce = announce
        sources = sorted({u.source for u in held_out.utterances})
        self.reporting: Reporting | None = None
        if trainer.team.leads:
            self.reporting = Reporting(
                job.places.out,
                sources,
                last_update=job.recipe.last_update,
                done=trainer.position.done,
                audio_s=trainer.audio_s,
                peak_flops=peak_flops,
                announce=announce,
            )
        self.saved_at = time.monotonic()

    def train(self) -> bool:
        """Train; returns whether the run was interrupted before its last update."""
        every, last = self.job.every, self.job.recipe.last_update
        if self.job.places.init is not None and not self.trainer.position.done:
            self._validated()  # of the weights that it starts from, to compare with
        for progress in self.trainer.run():
            if self.reporting is not None:
                self.reporting.progress(progress)
            if progress.stopping and progress.update < last:
                self._save()
                self.announce(f"interrupted at update {progress.update}; run the same command again to resume")
                return True
            if progress.update < last and progress.update % every.validation == 0:
                self._validate()
                self._save()
            elif progress.update % every.snapshot == 0 or time.monotonic() - self.saved_at > every.snapshot_s:
                self._save()
        self._validate()
        self._save()
        return False

    def _validate(self) -> None:
        found = self._validated()
        if self.reporting is not None:
            self.reporting.weights(self.trainer.result)
            self._write_checkpoint(found)

    def _validated(self) -> Validation | None:
        """Validate and report the error rates; None without held-out recordings."""
        if not len(self.held_out):
            return None
        found = validate(self.trainer.result, self.held_out, self.trainer.team)
        if self.reporting is not None:
            self.reporting.validation(found)
        return found

    def _write_checkpoint(self, found: Validation | None) -> None:
        trainer, places = self.trainer, self.job.places
        facts = {
            "updates": trainer.position.done,
            "epochs": trainer.position.epoch,
            "audio_h": round(trainer.audio_s / 3600, 2),
            "precision": trainer.precision,
            "validation": found.to_dict() if found is not None else {},
            "recipe": trainer.recipe.to_dict(),
            **({"teachers": [_named(path) for path in places.teachers]} if places.teachers else {}),
            **({"started_from": load_network(places.init)[0].config.training} if places.init is not None else {}),
        }
        stored = Network(dataclasses.replace(trainer.result.config, training=facts))
        stored.load_state_dict(trainer.result.state_dict())
        save_network(stored, places.out)

    def _save(self) -> None:
        if self.trainer.team.leads:
            self.snapshots.save(self.trainer.position.done, self.trainer.state_dict())
        self.saved_at = time.monotonic()
