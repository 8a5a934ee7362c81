"""How often a peer ran batches of each size, which it shows as JSON under `/batches`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class BatchSizes:
    """Rows by the size of the batch that they were in."""

    rows: Counter[int] = field(default_factory=Counter)

    def ran(self, size: int) -> None:
        """A batch was run."""
        self.rows[size] += size

    def ran_row(self, size: int) -> None:
        """One row of a batch of this size came back: for those who see rows alone."""
        self.rows[size] += 1

    def as_json(self) -> dict[str, float]:
        """Batches by size, for a JSON object."""
        return {str(size): rows / size for size, rows in sorted(self.rows.items())}
