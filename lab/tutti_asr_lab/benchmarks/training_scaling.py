"""Weak and strong scaling of training over processes on this machine, with the parts of an update's time.

Usage: python -m tutti_asr_lab.benchmarks.training_scaling --manifest speech.jsonl --noise noise.jsonl --processes 2

Four kinds of runs alternate: one process with one micro-batch per update, one process with as many micro-batches as
processes, and all processes with as many, free and pinned to cores. Writes a JSON document and a page. Figures are
audio per second and shares of the peak of products; the updates are too few to train a model, and none is kept.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import msgspec
import torch
import typer
from rich.console import Console

from loadtest.program import RESULTS, Folder, carry_out
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment, describe
from model.config import ModelConfig
from model.errors import ModelError
from model.recordings import read_manifests
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.data.transcripts import spelled
from tutti_asr_lab.training.acoustic.efficiency import product_peak
from tutti_asr_lab.training.acoustic.parallel import launch
from tutti_asr_lab.training.acoustic.parallel.placement import pin
from tutti_asr_lab.training.acoustic.parallel.team import Team
from tutti_asr_lab.training.acoustic.recipe import RECIPES, Recipe, read_recipe
from tutti_asr_lab.training.acoustic.trainer import Trainer

NAME = "training_scaling"
WARM_UP = 4  # updates before the first measured one, with new shapes and without prefetched audio
PARTS = ("audio", "compute", "wait", "exchange", "step")
WEAK, STRONG = 0.85, 0.8  # minimum speedup per process: 1.7 and 1.6 for two processes


class Case(msgspec.Struct, frozen=True):
    """One kind of run. `parts_s` are seconds of an update, mean over processes."""

    processes: int
    micro_batches: int
    real_time_factor: float
    update_s: float
    parts_s: dict[str, float]
    share_of_peak: float
    pinned: bool = False


class Found(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    precision: str
    bars: tuple[Criterion, ...]
    weak: float
    strong: float
    weak_pinned: float
    cases: tuple[Case, ...]
    environment: Environment


@dataclass(frozen=True, slots=True)
class Job:
    """Input of every process of a run."""

    config: ModelConfig
    recipe: Recipe
    manifests: tuple[Path, ...]
    noise: tuple[Path, ...]
    cache: Path
    updates: int
    folder: Path
    pin: bool = False


def _work(job: Job, team: Team, _: object) -> bool:
    if job.pin and team.locations:
        pin(team.locations, team.rank)
    corpus = Corpus(spelled(read_manifests(job.manifests), job.config), job.cache, job.config.sample_rate)
    recipe = replace(job.recipe, stop=WARM_UP + job.updates)
    trainer = Trainer(
        job.config, recipe, corpus, read_manifests(job.noise, texts=False), torch.device("cpu"), team=team
    )
    trainer.fit_features()
    trainer.start_from(trainer.network)  # otherwise the first epoch is sorted by length
    trainer.choose_sums()
    peak = sum(team.objects(product_peak(trainer.precision, trainer.device)))
    rows = []
    before_s, heard_s = time.perf_counter(), 0.0
    for progress in trainer.run():
        now_s = time.perf_counter()
        parts = [getattr(progress.spent, part) for part in PARTS]
        share = progress.flops / (now_s - before_s) / peak
        rows.append([now_s - before_s, progress.audio_s - heard_s, share, *parts])
        before_s, heard_s = now_s, progress.audio_s
    content = json.dumps({"precision": trainer.precision, "rows": rows[WARM_UP:]})
    (job.folder / f"{team.rank}.json").write_text(content, encoding="utf-8")
    return False


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: a row per update with seconds, seconds of audio, share of peak and parts (means over processes)."""

    precision: str
    rows: list[list[float]]


def measure(job: Job, processes: int) -> Measured:
    """Run once. Raises: ModelError."""
    with tempfile.TemporaryDirectory() as folder:
        launch.run(processes, partial(_work, replace(job, folder=Path(folder))))
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).iterdir())]
    by_update = zip(*(process["rows"] for process in found), strict=True)
    rows = [[fmean(column) for column in zip(*rows, strict=True)] for rows in by_update]
    return Measured(found[0]["precision"], rows)


def run(job: Job, processes: int, rounds: int, command: str, progress: Callable[[str], None]) -> Found:
    """Run all measurements. Raises: ModelError."""
    kinds = [(1, 1, False), (1, processes, False), (processes, processes, False), (processes, processes, True)]
    runs: dict[tuple[int, int, bool], list[Measured]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for count, micro_batches, pinned in kinds:
            name = f"{count} process(es){', pinned' if pinned else ''}, {micro_batches} micro-batches per update"
            progress(f"round {number + 1}: {name} …")
            one = replace(job, recipe=replace(job.recipe, micro_batches=micro_batches), pin=pinned)
            runs[count, micro_batches, pinned].append(measure(one, count))
    cases = [_case(*kind, [row for each in runs[kind] for row in each.rows]) for kind in kinds]
    alone, whole, together, pinned_together = (case.real_time_factor for case in cases)
    weak, strong = together / alone, together / whole
    return Found(
        command,
        runs[kinds[0]][0].precision,
        (
            Criterion("time of an update for each process's share, weak", 1 / WEAK, round(processes / weak, 3)),
            Criterion("time of an update, strong, times the processes", 1 / STRONG, round(processes / strong, 3)),
        ),
        round(weak, 2),
        round(strong, 2),
        round(pinned_together / alone, 2),
        tuple(cases),
        describe(job.recipe.seed),
    )


def _case(processes: int, micro_batches: int, pinned: bool, rows: list[list[float]]) -> Case:
    """Return medians over updates, which other processes influence less than means."""
    parts = {part: round(median(row[3 + i] for row in rows), 4) for i, part in enumerate(PARTS)}
    rate, share = median(row[1] / row[0] for row in rows), median(row[2] for row in rows)
    update_s = median(row[0] for row in rows)
    return Case(processes, micro_batches, round(rate, 1), round(update_s, 4), parts, round(share, 4), pinned)


def markdown(found: Found) -> str:
    """Return the page."""
    lines = ["# Training in several processes", "", f"`{found.command}`", "", *table(found.bars), ""]
    lines += [
        (
            f"Audio a second, with as many micro-batches as processes: {found.weak:g} x that of one process with one "
            f"(weak; pinned to cores {found.weak_pinned:g} x), {found.strong:g} x that of one process with all "
            f"(strong). Products in {found.precision}, one thread a process. Share of peak: operations of all products "
            "in the time of an update, of those that square products reach in the same processes at the start. "
            "Medians over updates, in seconds:"
        ),
        "",
    ]
    rows = [
        (
            f"{case.processes}{' pinned' if case.pinned else ''}",
            f"{case.micro_batches}",
            f"{case.real_time_factor:.0f}",
            f"{case.share_of_peak:.1%}",
            f"{case.update_s:.3f}",
            *(f"{case.parts_s[part]:.3f}" for part in PARTS),
        )
        for case in found.cases
    ]
    parts = ("waiting for audio", "gradients", "waiting for processes", "passing and adding", "optimizers")
    heads = ("processes", "micro-batches", "x real time", "share of peak", "an update", *parts)
    lines += [*pages.table(heads, rows)]
    return "\n".join([*lines, "", *pages.place_lines(found.environment), ""])


def main(
    *,
    manifest: Annotated[list[Path], typer.Option(help="Training recordings as JSON lines; repeatable.")],
    noise: Annotated[list[Path] | None, typer.Option(help="Noise and room impulse responses; repeatable.")] = None,
    recipe: Annotated[Path, typer.Option(help="Training recipe, JSON; its micro-batches are replaced.")] = RECIPES
    / "small.json",
    processes: Annotated[int, typer.Option(help="Processes of one core each: 2, 4, …")] = 2,
    updates: Annotated[int, typer.Option(help="Updates per run.", min=1)] = 20,
    rounds: Annotated[int, typer.Option(help="Runs of each kind.", min=1)] = 2,
    cache: Annotated[Path, typer.Option(help="Folder in which decoded audio is cached.")] = Path("build/audio"),
    folder: Folder = RESULTS,
) -> None:
    """Measure weak and strong scaling of training, with the parts of an update."""

    def work(command: str) -> int:
        console = Console(stderr=True)
        config, chosen = read_recipe(recipe)
        job = Job(config, chosen, tuple(manifest), tuple(noise or ()), cache, updates, folder)
        found = run(job, processes, rounds, command, lambda line: console.print(line, highlight=False))
        return conclude(found, found.bars, markdown(found), folder, NAME)

    carry_out(f"tutti_asr_lab.benchmarks.{NAME}", work, ModelError)


if __name__ == "__main__":
    typer.run(main)
