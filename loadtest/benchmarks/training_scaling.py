"""Weak and strong scaling of training over processes on this machine, with the parts of an update's time.

Usage: python -m loadtest.benchmarks.training_scaling --manifest speech.jsonl --noise noise.jsonl --processes 2

Three kinds of runs alternate: one process with one micro-batch per update, one process with as many micro-batches as
processes, and all processes with as many. Writes a JSON document and a page. Figures are audio per second; the updates
are too few to train a model, and none is kept.
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
from model.training.acoustic.data.corpus import Corpus
from model.training.acoustic.data.transcripts import spelled
from model.training.acoustic.parallel import launch
from model.training.acoustic.parallel.team import Team
from model.training.acoustic.recipe import RECIPES, Recipe, read_recipe
from model.training.acoustic.trainer import Trainer

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


class Found(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    precision: str
    bars: tuple[Criterion, ...]
    weak: float
    strong: float
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


def _work(job: Job, team: Team, _: object) -> bool:
    corpus = Corpus(spelled(read_manifests(job.manifests), job.config), job.cache, job.config.sample_rate)
    recipe = replace(job.recipe, stop=WARM_UP + job.updates)
    trainer = Trainer(
        job.config, recipe, corpus, read_manifests(job.noise, texts=False), torch.device("cpu"), team=team
    )
    trainer.fit_features()
    trainer.start_from(trainer.network)  # otherwise the first epoch is sorted by length
    rows = []
    before_s, heard_s = time.perf_counter(), 0.0
    for progress in trainer.run():
        now_s = time.perf_counter()
        parts = [getattr(progress.spent, part) for part in PARTS]
        rows.append([now_s - before_s, progress.audio_s - heard_s, *parts])
        before_s, heard_s = now_s, progress.audio_s
    content = json.dumps({"precision": trainer.precision, "rows": rows[WARM_UP:]})
    (job.folder / f"{team.rank}.json").write_text(content, encoding="utf-8")
    return False


def measure(job: Job, processes: int) -> tuple[str, list[list[float]]]:
    """Run once. Returns the precision and a row per update: seconds, seconds of audio, parts (means over processes)."""
    with tempfile.TemporaryDirectory() as folder:
        launch.run(processes, partial(_work, replace(job, folder=Path(folder))))
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).iterdir())]
    by_update = zip(*(process["rows"] for process in found), strict=True)
    return found[0]["precision"], [[fmean(column) for column in zip(*rows, strict=True)] for rows in by_update]


def run(job: Job, processes: int, rounds: int, command: str, progress: Callable[[str], None]) -> Found:
    """Run all measurements. Raises: ModelError."""
    kinds = [(1, 1), (1, processes), (processes, processes)]
    rows: dict[tuple[int, int], list[list[float]]] = {kind: [] for kind in kinds}
    precision = ""
    for number in range(rounds):
        for count, micro_batches in kinds:
            progress(f"round {number + 1}: {count} process(es), {micro_batches} micro-batches per update …")
            one = replace(job, recipe=replace(job.recipe, micro_batches=micro_batches))
            precision, more = measure(one, count)
            rows[count, micro_batches] += more
    cases = [_case(*kind, rows[kind]) for kind in kinds]
    alone, whole, together = (case.real_time_factor for case in cases)
    weak, strong = together / alone, together / whole
    return Found(
        command,
        precision,
        (
            Criterion("time of an update for each process's share, weak", 1 / WEAK, round(processes / weak, 3)),
            Criterion("time of an update, strong, times the processes", 1 / STRONG, round(processes / strong, 3)),
        ),
        round(weak, 2),
        round(strong, 2),
        tuple(cases),
        describe(job.recipe.seed),
    )


def _case(processes: int, micro_batches: int, rows: list[list[float]]) -> Case:
    """Return medians over updates, which other processes influence less than means."""
    parts = {part: round(median(row[2 + i] for row in rows), 4) for i, part in enumerate(PARTS)}
    rate = median(row[1] / row[0] for row in rows)
    return Case(processes, micro_batches, round(rate, 1), round(median(row[0] for row in rows), 4), parts)


def markdown(found: Found) -> str:
    """Return the page."""
    lines = ["# Training in several processes", "", f"`{found.command}`", "", *table(found.bars), ""]
    lines += [
        (
            f"Audio a second, with as many micro-batches as processes: {found.weak:g} x that of one process with one "
            f"(weak), {found.strong:g} x that of one process with all (strong). Products in {found.precision}, one "
            "thread a process. Medians over updates, in seconds:"
        ),
        "",
    ]
    rows = [
        (
            f"{case.processes}",
            f"{case.micro_batches}",
            f"{case.real_time_factor:.0f}",
            f"{case.update_s:.3f}",
            *(f"{case.parts_s[part]:.3f}" for part in PARTS),
        )
        for case in found.cases
    ]
    parts = ("waiting for audio", "gradients", "waiting for processes", "passing and adding", "optimizers")
    heads = ("processes", "micro-batches", "x real time", "an update", *parts)
    return "\n".join([*lines, *pages.table(heads, rows), "", *pages.place_lines(found.environment), ""])


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

    carry_out(f"loadtest.{NAME}", work, ModelError)


if __name__ == "__main__":
    typer.run(main)
