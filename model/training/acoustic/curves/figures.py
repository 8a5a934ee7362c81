"""The figures of a run as rows of a CSV file beside its checkpoint: one every few updates, and one a validation."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = dict[str, float]  # by column, without those that the row does not have

COLUMNS = (
    "update",
    "epoch",
    "heard_h",  # audio, every repetition counted
    "elapsed_s",  # over all parts of an interrupted run
    "loss",  # nats per target letter, mean since the row before
    "learning_rate",
    "gradient_norm",  # before clipping
    "real_time_factor",  # seconds of audio a second, since the row before
    "audio_s",  # and what one process spent its time on, mean of an update: audio,
    "compute_s",  # gradients,
    "wait_s",  # other processes,
    "exchange_s",  # passing and adding,
    "step_s",  # the optimizers
    "validation_loss",
    "wer",
    "cer",
)


class Figures:
    """The file of one run. Going on from an update drops the rows after it, which come again."""

    def __init__(self, path: Path, sources: Sequence[str], update: int) -> None:
        """`sources` have error rates of their own; `update` is the last one done."""
        self.path = path
        self.columns = [*COLUMNS, *(f"{rate} {source}" for rate in ("wer", "cer") for source in sources)]
        self.rows = [row for row in read(path) if row["update"] <= update] if update and path.exists() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self.rows)

    @property
    def elapsed_s(self) -> float:
        """Of the run, at its last row."""
        return self.rows[-1]["elapsed_s"] if self.rows else 0.0

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row."""
        self.rows.append(dict(row))
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns).writerow(row)


def read(path: Path) -> list[Row]:
    """Rows of a file, without a last one that was cut off. Raises: OSError, ValueError."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        whole = [row for row in reader if None not in row.values()]
    return [{name: float(value) for name, value in row.items() if value != ""} for row in whole]
