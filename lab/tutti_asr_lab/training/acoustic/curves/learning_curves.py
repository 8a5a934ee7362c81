"""Learning curves of a training run: losses and error rates on the validation set against hours of training audio.

`tutti train` draws them next to the checkpoint after each validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.measurement.plot import picture
from tutti_asr_lab.training.acoustic.curves.figures import RATES, Row

ALONE = 2  # rates of a run with one source: its own, and that of all


def rates_of(row: Row, rate: str) -> dict[str, float]:
    """Error rates (one of `RATES`) of a validation by source; `all` is the pooled rate."""
    parts = {name.removeprefix(f"{rate} "): value for name, value in row.items() if name.startswith(f"{rate} ")}
    return {"all": row[rate], **parts}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Plot losses, word and character error rates of a run against hours of audio; one color per source."""
    with picture(path, 1, 3, (15, 4.2), sharex=True) as axes_of:
        of_losses, *of_rates = axes_of
        for column, label in (("loss", "training"), ("validation_loss", "held-out recordings")):
            points = [(row["heard_h"], row[column]) for row in rows if column in row]
            of_losses.plot(*zip(*points, strict=True), label=label)
        validations = [row for row in rows if "validation_loss" in row]
        hours = [row["heard_h"] for row in validations]
        for axes, rate, quantity in zip(of_rates, RATES, ("word", "character"), strict=True):
            rates = [rates_of(row, rate) for row in validations]
            for number, source in enumerate(rates[0]):
                if source == "all" and len(rates[0]) == ALONE:  # the curve of the only source would cover it
                    continue
                axes.plot(
                    hours, [row[source] for row in rates], color=f"C{number}", marker="o", markersize=3, label=source
                )
            axes.set(ylabel=f"{quantity} error rate, greedy decoding")
        of_losses.set(ylabel="nats per letter", yscale="log")
        for axis in (of_losses.yaxis.set_major_formatter, of_losses.yaxis.set_minor_formatter):
            axis("{x:g}")
        for axes in axes_of:
            axes.set(xlabel="hours of training audio, including repetitions")
