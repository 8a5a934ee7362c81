"""Figures of a training run as a CSV file next to its checkpoint: one row every few updates and per validation."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = dict[str, float]  # by column; empty cells are left out

RATES = ("greedy_wer", "greedy_cer")  # word and character error rates by greedy decoding, without a language model
COLUMNS = (
    "update",
    "epoch",
    "heard_h",  # audio used for training, including repetitions
    "elapsed_s",  # summed over all parts of an interrupted run
    "loss",  # nats per target letter, mean since the previous row
    "learning_rate",
    "gradient_norm",  # before clipping
    "real_time_factor",  # seconds of audio per second, since the previous row
    "gflops",  # products per second of all processes, since the previous row
    "share_of_peak",  # of the products' peak, measured at the start
    "audio_s",  # time of one process, mean per update: waiting for batches,
    "compute_s",  # gradients,
    "wait_s",  # waiting for other processes,
    "exchange_s",  # exchanging and adding gradients,
    "step_s",  # optimizers
    "validation_loss",
    *RATES,
)


class Figures:
    """CSV file of one run. When the run resumes, rows after its update are dropped, because they are written again."""

    def __init__(self, path: Path, sources: Sequence[str], update: int) -> None:
        """Open the file. `sources` get error rates of their own; `update` is the last one that the run completed."""
        self.path = path
        self.columns = [*COLUMNS, *(f"{rate} {source}" for rate in RATES for source in sources)]
        self.rows = [row for row in read(path) if row["update"] <= update] if update and path.exists() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self.rows)

    @property
    def elapsed_s(self) -> float:
        """Training time up to the last row."""
        return self.rows[-1]["elapsed_s"] if self.rows else 0.0

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row."""
        self.rows.append(dict(row))
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns).writerow(row)


def read(path: Path) -> list[Row]:
    """Read the rows of a file, without an incomplete last one. Raises: OSError, ValueError."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        whole = [row for row in reader if None not in row.values()]
    return [{name: float(value) for name, value in row.items() if value != ""} for row in whole]
