"""Learning curves of training runs: losses and error rates on the validation set against hours of training audio.

`tutti train` draws them next to its checkpoint after each validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.measurement.plot import picture
from tutti_asr_lab.training.acoustic.curves.figures import RATES, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALONE = 2  # rates of a run with one source: its own, and that of all


def validations(rows: Sequence[Row]) -> list[Row]:
    """Rows of validations, each with the training loss of the row before."""
    found: list[Row] = []
    loss: float | None = None
    for row in rows:
        loss = row.get("loss", loss)
        if "validation_loss" in row:
            found.append({**row, "loss": loss} if loss is not None else row)
    return found


def rates_of(row: Row, rate: str) -> dict[str, float]:
    """Error rates (one of `RATES`) of a validation by source; `all` is the pooled rate."""
    parts = {name.removeprefix(f"{rate} "): value for name, value in row.items() if name.startswith(f"{rate} ")}
    return {"all": row[rate], **parts}


def draw(runs: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Plot losses, word and character error rates of every run against hours of audio; one color per source."""
    with picture(path, 1, 3, (15, 4.2), sharex=True) as axes_of:
        _draw(axes_of, runs)


def _draw(axes_of: Sequence[Axes], runs: Mapping[str, Sequence[Row]]) -> None:
    of_losses, *of_rates = axes_of
    for (name, rows), style in zip(runs.items(), ("-", "--", ":", "-.") * len(runs), strict=False):
        prefix = f"{name}, " if len(runs) > 1 else ""
        for number, (column, label) in enumerate((("loss", "training"), ("validation_loss", "held-out recordings"))):
            points = [(row["heard_h"], row[column]) for row in rows if column in row]
            of_losses.plot(*zip(*points, strict=True), style, color=f"C{number}", label=prefix + label)
        points_of = validations(rows)
        hours = [row["heard_h"] for row in points_of]
        for axes, rate in zip(of_rates, RATES, strict=True):
            rates = [rates_of(row, rate) for row in points_of]
            for number, source in enumerate(rates[0]):
                if source == "all" and len(rates[0]) == ALONE:  # the curve of the only source would cover it
                    continue
                values = [row[source] for row in rates]
                axes.plot(hours, values, style, color=f"C{number}", marker="o", markersize=3, label=prefix + source)
    of_losses.set(ylabel="nats per letter", yscale="log")
    for axis in (of_losses.yaxis.set_major_formatter, of_losses.yaxis.set_minor_formatter):
        axis("{x:g}")
    for axes, quantity in zip(of_rates, ("word", "character"), strict=True):
        axes.set(ylabel=f"{quantity} error rate, greedy decoding")
    for axes in axes_of:
        axes.set(xlabel="hours of training audio, including repetitions")
