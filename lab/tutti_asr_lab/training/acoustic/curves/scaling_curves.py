"""Error rates against one parameter that was varied in training, for example hours of speech or width.

Usage: python -m tutti_asr_lab.training.acoustic.curves.scaling_curves "hours of speech" 1.7=EVALUATION… --out OUT

Each EVALUATION is the output of `tutti evaluate --json`, one row per decoder. Writes OUT.json, OUT.md and OUT.png;
loads no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from loadtest.measurement.plot import picture
from model.text.files import read_text


@dataclass(frozen=True, slots=True)
class Point:
    """Trained model with one decoder; word error rates by source, `all` is the pooled rate."""

    value: float
    decoder: str
    wer: dict[str, float]
    cer: float
    model_sha256: str


def read_point(value: float, text: str) -> list[Point]:
    """Points of one evaluation, one per decoder. Raises: ValueError unless the last line is such a JSON document."""
    document: Mapping[str, Any] = json.loads(text.strip().split("\n")[-1])
    try:
        return [
            Point(
                value=value,
                decoder=row["decoder"],
                wer={"all": row["wer"], **{name: source["wer"] for name, source in row["by_source"].items()}},
                cer=row["cer"],
                model_sha256=document["model_sha256"],
            )
            for row in document["combinations"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not the output of `tutti evaluate --json`: {error} is missing") from error


def markdown(axis: str, points: Sequence[Point], references: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown table of the points, followed by the references' error rates on the same recordings."""
    sources = list(points[0].wer)
    lines = [f"# Word error rate against {axis}", "", f"| {axis} | decoder | " + " | ".join(sources) + " | CER, all |"]
    lines.append("|---:|---|" + "---:|" * (len(sources) + 1))
    for point in sorted(points, key=lambda p: (p.decoder, p.value)):
        rates = " | ".join(f"{point.wer[source]:.3f}" for source in sources)
        lines.append(f"| {point.value:g} | {point.decoder} | {rates} | {point.cer:.3f} |")
    for name, wer in references.items():
        lines.append(f"| | {name} | " + " | ".join(f"{wer[source]:.3f}" for source in sources) + " | |")
    return "\n".join([*lines, ""])


def draw(axis: str, points: Sequence[Point], references: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Plot one panel per source and one line per decoder, references as dashed lines; the x axis is logarithmic."""
    sources, decoders = list(points[0].wer), sorted({point.decoder for point in points})
    with picture(path, 1, len(sources), (3.2 * len(sources), 3.4)) as axes_of:
        for source, axes in zip(sources, axes_of, strict=True):
            for decoder in decoders:
                line = sorted((p.value, p.wer[source]) for p in points if p.decoder == decoder)
                axes.plot(*zip(*line, strict=True), marker="o", markersize=4, label=decoder)
            for number, (name, wer) in enumerate(references.items(), start=len(decoders)):
                axes.axhline(wer[source], color=f"C{number}", linestyle="--", label=name)
            axes.set(title=source, xlabel=axis, ylabel="word error rate", xscale="log")
            axes.set_xticks(sorted({point.value for point in points}))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")


def main(
    axis: Annotated[str, typer.Argument(help="What was varied, with its unit.")],
    evaluations: Annotated[list[str], typer.Argument(help="VALUE=FILE, the output of `tutti evaluate --json`.")],
    out: Annotated[Path, typer.Option(help="Path without extension.")],
    pocketsphinx: Annotated[
        Path | None,
        typer.Option(help="Results for comparison: loadtest/results/pocketsphinx.json."),
    ] = None,
) -> None:
    """Write JSON, table and plot."""
    points: list[Point] = []
    for evaluation in evaluations:
        value, _, path = evaluation.partition("=")
        try:
            points += read_point(float(value), read_text(Path(path), ValueError))
        except (ValueError, IndexError) as error:
            raise typer.BadParameter(f"{evaluation}: {error}") from error
    references: dict[str, dict[str, float]] = {}
    if pocketsphinx is not None:
        rates = json.loads(read_text(pocketsphinx, typer.BadParameter))["rates"]
        references["pocketsphinx"] = {"all": rates["wer"], **{k: v["wer"] for k, v in rates["by_source"].items()}}
    kept = {"axis": axis, "points": [asdict(point) for point in points], "references": references}
    out.with_suffix(".json").write_text(json.dumps(kept) + "\n")
    out.with_suffix(".md").write_text(markdown(axis, points, references), encoding="utf-8")
    draw(axis, points, references, out.with_suffix(".png"))
    typer.echo(f"wrote {out}.json, .md and .png")


if __name__ == "__main__":
    typer.run(main)
