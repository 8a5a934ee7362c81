"""Learning curves of training runs: error rates on the validation set against the audio heard.

Usage: python -m model.training.learning_curves NAME=LOG… --out loadtest/results/learning_curves

Reads the output of `tutti train`; writes OUT.json, OUT.md and OUT.png. Loads no model.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

_HEARD = re.compile(r"update (\d+)/\d+ epoch (\d+) loss (\S+) heard (\S+) h elapsed (\S+) s")
_SCORED = re.compile(r"update (\d+) validation (\{.*\})$")


@dataclass(frozen=True, slots=True)
class Point:
    """One validation. Error rates by source, `all` pooled; `loss` is of the training batches just before."""

    update: int
    epoch: int
    heard_h: float
    elapsed_s: float
    loss: float
    wer: dict[str, float]
    cer: dict[str, float]


def read_log(lines: Iterable[str]) -> list[Point]:
    """Points of one run, in order; the log of an interrupted run may repeat updates, of which the last counts."""
    points: dict[int, Point] = {}
    progress: re.Match[str] | None = None
    for line in lines:
        progress = _HEARD.match(line) or progress
        scored = _SCORED.match(line)
        if scored is None or progress is None:
            continue
        figures = ast.literal_eval(scored[2])
        rows: Mapping[str, Mapping[str, float]] = {"all": figures, **figures["by_source"]}
        points[int(scored[1])] = Point(
            update=int(scored[1]),
            epoch=int(progress[2]),
            heard_h=float(progress[4]),
            elapsed_s=float(progress[5]),
            loss=float(progress[3]),
            wer={source: row["wer"] for source, row in rows.items()},
            cer={source: row["cer"] for source, row in rows.items()},
        )
    return [points[update] for update in sorted(points)]


def markdown(runs: Mapping[str, Sequence[Point]]) -> str:
    """A table a run."""
    lines = ["# Learning curves", "", "Greedy decoding, no language model; audio heard counts every repetition.", ""]
    for name, points in runs.items():
        if not points:
            continue
        sources = list(points[0].wer)
        lines += [
            f"## {name}",
            "",
            "| updates | heard, h | loss | " + " | ".join(f"{s} WER / CER" for s in sources) + " |",
        ]
        lines += ["|" + "---:|" * (3 + len(sources))]
        for p in points:
            cells = " | ".join(f"{p.wer[s]:.3f} / {p.cer[s]:.3f}" for s in sources)
            lines.append(f"| {p.update} | {p.heard_h:.1f} | {p.loss:.2f} | {cells} |")
        lines.append("")
    return "\n".join(lines)


def draw(runs: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Word and character error rates of every run against hours heard, one colour a source."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharex=True)
    for (name, points), style in zip(runs.items(), ("-", "--", ":", "-.") * len(runs), strict=False):
        hours = [point.heard_h for point in points]
        for number, source in enumerate(points[0].wer):
            label = f"{source}, {name}" if len(runs) > 1 else source
            for axes, rates in zip(panels, ([p.wer for p in points], [p.cer for p in points]), strict=True):
                values = [rate[source] for rate in rates]
                axes.plot(hours, values, style, color=f"C{number}", marker="o", markersize=3, label=label)
    for axes, quantity in zip(panels, ("word", "character"), strict=True):
        axes.set(xlabel="hours of audio heard in training, repetitions counted", ylabel=f"{quantity} error rate")
        axes.grid(visible=True, alpha=0.25)
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(
    runs: Annotated[list[str], typer.Argument(help="NAME=LOG, the output of a training run; repeatable.")],
    out: Annotated[Path, typer.Option(help="Path without its ending.")] = Path("loadtest/results/learning_curves"),
) -> None:
    """Write the curves of these runs."""
    curves: dict[str, list[Point]] = {}
    for run in runs:
        name, _, path = run.partition("=")
        if not path:
            raise typer.BadParameter(f"{run!r} is not NAME=LOG")
        curves[name] = read_log(Path(path).read_text(encoding="utf-8").splitlines())
        if not curves[name]:
            raise typer.BadParameter(f"{path} holds no validation")
    out.with_suffix(".json").write_text(json.dumps({n: [asdict(p) for p in ps] for n, ps in curves.items()}) + "\n")
    out.with_suffix(".md").write_text(markdown(curves), encoding="utf-8")
    draw(curves, out.with_suffix(".png"))
    typer.echo(f"wrote {out}.json, .md and .png")


if __name__ == "__main__":
    typer.run(main)
