"""Share of the users that speak, as a function of time. Owns the CSV format."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLUMNS = ("time", "speaking")


@dataclass(frozen=True, slots=True)
class Profile:
    """Shares of the users that speak at the same time, by seconds since the beginning; linear in between."""

    at_s: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if len(self.at_s) < 2 or self.at_s[0] != 0 or any(np.diff(self.at_s) <= 0):
            raise ValueError("needs at least two times that ascend and begin with 00:00")
        if not all(0 <= share <= 1 for share in self.shares) or not any(self.shares):
            raise ValueError("`speaking` must be a share of the users, from 0 to 1, and not always 0")

    @property
    def seconds(self) -> float:
        """Length of the profile."""
        return self.at_s[-1]

    def speaking(self, at_s: float) -> float:
        """Share of the users that speak at this time."""
        return float(np.interp(at_s, self.at_s, self.shares))

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a CSV file with the columns `time` (HH:MM or HH:MM:SS) and `speaking`. Raises: OSError, ValueError."""
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ValueError(f"the first line must be {','.join(COLUMNS)}")
            rows = [_row(number, row) for number, row in enumerate(reader, 2)]
        return cls(tuple(at_s for at_s, _ in rows), tuple(share for _, share in rows))


def _row(number: int, row: dict[str, str]) -> tuple[float, float]:
    try:
        hours, minutes, seconds = (int(part) for part in f"{row['time']}:0".split(":")[:3])
        return 3600.0 * hours + 60.0 * minutes + seconds, float(row["speaking"])
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"line {number}: must be HH:MM[:SS] and a share of the users, such as 09:30,0.02") from error
