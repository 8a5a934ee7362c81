"""Word error rate against the number of beams and their processor time, to show whether the search converges.

Usage: python -m tutti_asr_lab.training.evaluation.beam_curve --manifest ../shared/data/dev.jsonl
           --out loadtest/results/beams

The acoustic model runs once over whole recordings; then each number of beams decodes them in turn, for several rounds.
Writes OUT.json, OUT.md and OUT.svg. With `--letters` each number of beams also searches the letters, with the language
model and without the lexicon. Times are medians over the rounds, in processor time of one thread, so that other
programs affect them only through the caches.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from llvmlite import binding

from model.acoustic import load_own
from model.config import MAX_BEAMS
from model.ctc.interface import Decoder
from model.decoder import SHIPPED_LM, Language, decoder_of, own_search
from model.evaluation.parts import parts_of
from model.evaluation.scoring import Score, by_source
from model.machine.runtime import keep_kernels
from model.recordings import read_manifests
from tutti_asr_lab.training.evaluation.outputs import RecordingOutput, outputs_of, text_of

BEAMS = (8, 16, 32, 64, 128, 256, 512, MAX_BEAMS)


Key = tuple[str, int]  # name of the language model, beams


@dataclass(frozen=True, slots=True)
class Point:
    """Result of one number of beams with one language model; word error rates by source, by part, and `all` pooled."""

    lm: str
    beams: int
    wer: dict[str, float]
    cer: float
    us_a_frame: float
    times_real_time: float  # seconds of speech that one core decodes in a second


def measure(
    decoders: Mapping[Key, Decoder], outputs: Sequence[RecordingOutput], rounds: int, frame_s: float
) -> list[Point]:
    """Decode all recordings with each decoder in turn, `rounds` times."""
    frames = sum(len(item.log_probs) for item in outputs)
    spent: dict[Key, list[float]] = {key: [] for key in decoders}
    texts: dict[Key, list[str]] = {}
    for _ in range(rounds):
        for key, decoder in decoders.items():
            began = time.thread_time()
            texts[key] = [text_of(decoder, item) for item in outputs]
            spent[key].append(time.thread_time() - began)
    points = []
    for key in decoders:
        frame_cost = statistics.median(spent[key]) / frames
        wer, cer = _rates(outputs, texts[key])
        points.append(Point(*key, wer, cer, round(frame_cost * 1e6, 2), round(frame_s / frame_cost, 1)))
    return points


def _rates(outputs: Sequence[RecordingOutput], texts: Sequence[str]) -> tuple[dict[str, float], float]:
    """Word error rates by source, by part and over all recordings; the character error rate over all."""
    rows = [(item.utterance.source, item.utterance.text, text) for item, text in zip(outputs, texts, strict=True)]
    sources = by_source(rows)
    total = sum(sources.values(), Score())
    rates = {"all": total.wer, **{name: score.wer for name, score in sources.items()}}
    parts = parts_of([item.utterance for item in outputs])
    for part in sorted(set(parts)):
        picked = by_source(row for row, own in zip(rows, parts, strict=True) if own == part)
        rates[f"part {part}"] = sum(picked.values(), Score()).wer
    return {name: round(rate, 4) for name, rate in rates.items()}, round(total.cer, 4)


def markdown(points: Sequence[Point], facts: Mapping[str, object]) -> str:
    """Markdown table of the points, followed by the facts of the run."""
    columns = list(points[0].wer)
    lines = ["# Word error rate against beams", ""]
    lines.append("| language model | beams | " + " | ".join(columns) + " | CER | µs per frame | times real time |")
    lines.append("|---|---:|" + "---:|" * (len(columns) + 3))
    for point in points:
        rates = " | ".join(f"{point.wer[name]:.3f}" for name in columns)
        cost = f"{point.us_a_frame:.1f} | {point.times_real_time:,.0f}"
        lines.append(f"| {point.lm} | {point.beams:,} | {rates} | {point.cer:.3f} | {cost} |")
    lines += ["", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    return "\n".join(lines)


def draw(points: Sequence[Point], path: Path) -> None:
    """Plot word error rate against beams and against processor time, one line per language model."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "beams"  # makes the file deterministic
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained", sharey=True)
    for lm in dict.fromkeys(point.lm for point in points):
        line = [point for point in points if point.lm == lm]
        rates = [point.wer["all"] for point in line]
        left.plot([point.beams for point in line], rates, marker="o", markersize=4, label=lm)
        right.plot([point.us_a_frame for point in line], rates, marker="o", markersize=4, label=lm)
        for point in line:
            right.annotate(str(point.beams), (point.us_a_frame, point.wer["all"]), fontsize="x-small", xytext=(3, 3),
                           textcoords="offset points")  # fmt: skip
    left.set(xlabel="beams", ylabel="word error rate", xscale="log")
    right.set(xlabel="µs per frame of 40 ms, one core", xscale="log")
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.25)
    left.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(
    *,
    manifest: Annotated[list[Path], typer.Option(help="JSON lines with audio and text; repeatable.")],
    out: Annotated[Path, typer.Option(help="Path without extension.")],
    lm: Annotated[list[Path] | None, typer.Option(help="Language models. Default: the shipped one.")] = None,
    model: Annotated[Path | None, typer.Option(help="A .safetensors checkpoint. Default: the shipped model.")] = None,
    precision: Annotated[str, typer.Option(help="Precision of the acoustic model.")] = "int8",
    rounds: Annotated[int, typer.Option(help="Number of rounds.", min=1)] = 3,
    beams: Annotated[str, typer.Option(help="Numbers of beams, separated by commas.")] = ",".join(map(str, BEAMS)),
    letters: Annotated[
        bool, typer.Option("--letters", help="Also search letters, with the language model and without the lexicon.")
    ] = False,
) -> None:
    """Write JSON, table and plot."""
    out.parent.mkdir(parents=True, exist_ok=True)  # fails early: decoding takes minutes
    keep_kernels()
    acoustic = load_own(model, precision=precision)
    config = acoustic.facts.own_config
    outputs = outputs_of(acoustic, read_manifests(manifest))
    decoders: dict[Key, Decoder] = {}
    for path in lm or [SHIPPED_LM]:
        name = path.name.partition(".")[0]
        for count in map(int, beams.split(",")):
            decoders[name, count] = decoder_of(acoustic.facts, decoder="beam", beams=count, lm=path)
            if letters:
                decoders[f"{name}, letters", count] = own_search(config, count, Language.load(path))
    points = measure(decoders, outputs, rounds, config.frame_s)
    facts = {
        "recordings": f"{len(outputs)}, {sum(len(item.log_probs) for item in outputs) * config.frame_s:.0f} s, whole",
        "model": f"{config.name} {config.version}, {acoustic.facts.precision}, sha256 {acoustic.facts.digest}",
        "processor": binding.get_host_cpu_name(),
        "rounds": rounds,
    }
    kept = {**facts, "points": [asdict(point) for point in points]}
    out.with_suffix(".json").write_text(json.dumps(kept) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(markdown(points, facts), encoding="utf-8")
    draw(points, out.with_suffix(".svg"))
    typer.echo(f"wrote {out}.json, .md and .svg")


if __name__ == "__main__":
    typer.run(main)
