"""Learning curves of short runs that differ in one value of the recipe: limits of mini-batches, precisions.

Usage: python -m tutti_asr_lab.training.acoustic.curves.variants micro_batches 1 2 4 8 --target 1.0
           --manifest speech.jsonl
           --validation dev.jsonl --recipe tiny.json --out loadtest/results/mini_batches
       python -m tutti_asr_lab.training.acoustic.curves.variants precision fp32 bf16 fp16 …

Each run begins with the same weights and sees recordings in the same order. With `--target` it ends at the validation
that reaches this loss; updates up to there are interpolated between two validations. Writes OUT.json, OUT.md, OUT.png.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from model.config import ModelConfig
from model.errors import ModelError
from model.recordings import read_manifests
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.data.transcripts import spelled
from tutti_asr_lab.training.acoustic.parallel.launch import one_thread
from tutti_asr_lab.training.acoustic.parallel.team import Team
from tutti_asr_lab.training.acoustic.recipe import Recipe, read_recipe
from tutti_asr_lab.training.acoustic.trainer import Trainer
from tutti_asr_lab.training.acoustic.validation import validate


@dataclass(frozen=True, slots=True)
class Point:
    """A validation: losses in nats per letter, that of training as the mean since the last point."""

    update: int
    heard_h: float
    training_loss: float
    loss: float
    wer: float
    cer: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One run. `reached`: updates to the target loss, None if it was not reached. `skipped`: not finite."""

    value: str
    points: tuple[Point, ...]
    reached: float | None
    skipped: int


def updates_to(points: Sequence[Point], target: float) -> float | None:
    """Updates at which the validation loss first reaches `target`, between two points by a straight line."""
    before: Point | None = None
    for point in points:
        if point.loss <= target:
            if before is None:
                return float(point.update)
            share = (before.loss - target) / (before.loss - point.loss)
            return before.update + share * (point.update - before.update)
        before = point
    return None


def learn(
    config: ModelConfig, recipe: Recipe, corpora: tuple[Corpus, Corpus], every: int, target: float | None
) -> tuple[tuple[Point, ...], int]:
    """Run once in this process; returns the validations and the number of skipped updates. Raises: ModelError."""
    training, held_out = corpora
    trainer = Trainer(config, recipe, training, [], torch.device("cpu"))
    trainer.fit_features()
    points: list[Point] = []
    losses: list[float] = []
    skipped = 0
    for progress in trainer.run():
        finite = math.isfinite(progress.loss)
        skipped += not finite
        losses += [progress.loss] if finite else []
        if progress.update % every and progress.update < recipe.last_update:
            continue
        found = validate(trainer.result, held_out, Team())
        scores = found.to_dict()
        mean = sum(losses) / len(losses) if losses else math.nan
        heard_h = progress.audio_s / 3600
        points.append(Point(progress.update, heard_h, mean, found.loss, scores["wer"], scores["cer"]))
        losses.clear()
        if target is not None and found.loss <= target:
            break
    return tuple(points), skipped


def compare(
    config: ModelConfig,
    recipe: Recipe,
    corpora: tuple[Corpus, Corpus],
    name: str,
    values: Sequence[Any],
    *,
    every: int,
    target: float | None,
    announce: Callable[[str], None],
) -> list[Variant]:
    """Run once for each value of the recipe's `name`. Raises: ModelError; ValueError for a value that is not valid."""
    found: list[Variant] = []
    recipes = [dataclasses.replace(recipe, **{name: value}) for value in values]
    for value, chosen in zip(values, recipes, strict=True):
        with one_thread():
            points, skipped = learn(config, chosen, corpora, every, target)
        reached = None if target is None else updates_to(points, target)
        found.append(Variant(str(value), points, reached, skipped))
        announce(f"{name} {value}: {points[-1].update} updates, loss {points[-1].loss:.3f}, WER {points[-1].wer:.3f}")
    return found


def markdown(name: str, variants: Sequence[Variant], target: float | None, command: str) -> str:
    """Page with a row per run; with a target, the updates and the micro-batches that it took."""
    lines = [f"# Learning curves by {name}", "", f"`{command}`", ""]
    heads = ["updates", "audio, h", "loss, training", "loss, held out", "WER", "CER", "skipped updates"]
    if target is not None:
        heads = [f"updates to {target:g}", "relative", *heads]
    lines += [f"| {name} | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    first = variants[0].reached
    for variant in variants:
        last = variant.points[-1]
        losses = (f"{last.training_loss:.3f}", f"{last.loss:.3f}", f"{last.wer:.3f}", f"{last.cer:.3f}")
        cells = [f"{last.update}", f"{last.heard_h:.2f}", *losses, f"{variant.skipped}"]
        if target is not None:
            reached = variant.reached
            relative = "–" if reached is None or first is None else f"{reached / first:.2f}"
            cells = ["not reached" if reached is None else f"{reached:.0f}", relative, *cells]
        lines.append(f"| {variant.value} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def draw(name: str, variants: Sequence[Variant], target: float | None, path: Path) -> None:
    """Plot the held-out loss by updates and word error rates; with a target, updates to it by value instead.

    A dotted line shows what perfect scaling would be: twice the micro-batches, half the updates.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for number, variant in enumerate(variants):
        updates = [point.update for point in variant.points]
        left.plot(
            updates, [point.loss for point in variant.points], color=f"C{number}", label=f"{name} {variant.value}"
        )
        left.plot(updates, [point.training_loss for point in variant.points], ":", color=f"C{number}")
        if target is None:
            right.plot(updates, [point.wer for point in variant.points], color=f"C{number}", label=variant.value)
    left.set(xlabel="updates", ylabel="nats per letter; dotted: training", yscale="log")
    if target is None:
        right.set(xlabel="updates", ylabel="word error rate")
    else:
        left.axhline(target, color="gray", linewidth=0.8)
        reached = [(float(each.value), each.reached) for each in variants if each.reached is not None]
        if reached:
            values, taken = zip(*reached, strict=True)
            right.plot(values, taken, "o-", label="measured")
            right.plot(values, [taken[0] * values[0] / value for value in values], ":", label="perfect")
        right.set(xlabel=name, ylabel=f"updates to a loss of {target:g}", xscale="log", yscale="log")
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _typed(name: str, values: Sequence[str]) -> list[Any]:
    """Values with the type of the recipe's default. Raises: typer.BadParameter."""
    defaults = {each.name: each.default for each in dataclasses.fields(Recipe)}
    default = defaults.get(name)
    if isinstance(default, bool) or not isinstance(default, (int, float, str)):
        valid = ", ".join(key for key, each in defaults.items() if isinstance(each, (int, float, str)))
        raise typer.BadParameter(f"{name!r} is not a number or a name in a recipe; one of {valid}")
    try:
        return [type(default)(value) for value in values]
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {error}") from None


def main(
    name: Annotated[str, typer.Argument(help="Key of the recipe that differs, such as micro_batches or precision.")],
    values: Annotated[list[str], typer.Argument(help="Its values, one run each.")],
    *,
    manifest: Annotated[list[Path], typer.Option(help="Training recordings as JSON lines; repeatable.")],
    validation: Annotated[list[Path], typer.Option(help="Held-out recordings; repeatable.")],
    recipe: Annotated[Path, typer.Option(help="Recipe of all runs: a JSON file, or the name of a shipped one.")],
    out: Annotated[Path, typer.Option(help="Path without extension.")],
    target: Annotated[float | None, typer.Option(help="End a run at this validation loss, nats per letter.")] = None,
    every: Annotated[int, typer.Option(help="Updates between validations.", min=1)] = 10,
    cache: Annotated[Path, typer.Option(help="Folder in which decoded audio is cached.")] = Path("build/audio"),
) -> None:
    """Compare short training runs that differ in one value of the recipe."""
    chosen = _typed(name, values)
    if target is not None and name == "precision":
        raise typer.BadParameter("--target plots updates against a number; precision has names")
    try:
        config, base = read_recipe(recipe)
        training, held_out = (
            Corpus(spelled(read_manifests(paths), config), cache, config.sample_rate)
            for paths in (manifest, validation)
        )
        found = compare(
            config, base, (training, held_out), name, chosen, every=every, target=target, announce=typer.echo
        )
    except (ModelError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    options = [f"--target {target:g}"] if target is not None else []
    files = [
        f"--{kind} {path.name}"
        for kind, paths in (("manifest", manifest), ("validation", validation))
        for path in paths
    ]
    program = f"python -m tutti_asr_lab.training.acoustic.curves.variants {name}"
    command = " ".join([program, *values, *files, f"--recipe {recipe}", *options, f"--every {every}", f"--out {out}"])
    document = {"name": name, "target": target, "command": command, "variants": [asdict(each) for each in found]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(document) + "\n")
    out.with_suffix(".md").write_text(markdown(name, found, target, command), encoding="utf-8")
    draw(name, found, target, out.with_suffix(".png"))
    typer.echo(f"wrote {out}.json, .md and .png")


if __name__ == "__main__":
    typer.run(main)
