"""Upper bound of the served figures: the bare model step without server and sockets, measured by `tutti ceiling`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from loadtest.generator.settings import STEP_S

COMMAND = (sys.executable, "-m", "server.cli", "ceiling", "--json")
"""The last line of its output is a `Ceiling` as JSON."""

WITHIN_S = 180.0


class Ceiling(msgspec.Struct, frozen=True):
    """Median time of a model step in ms by batch size, and time of one read of its weights in ns."""

    step_ms: dict[int, float]
    precision: str = ""
    threads: int = 0
    read_ns: float | None = None
    in_caches: bool | None = None

    def streams(self, batch: int) -> float:
        """Return the live streams possible at this batch size if only steps took time."""
        return batch * STEP_S * 1e3 / self.step_ms[batch]


def measure_ceiling() -> Ceiling | None:
    """Run `tutti ceiling`; returns None if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            COMMAND, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=WITHIN_S, check=True
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Ceiling, strict=False)
    except (OSError, subprocess.SubprocessError, IndexError, msgspec.DecodeError):
        return None
