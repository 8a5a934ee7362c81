"""Ceiling of the served figures: the bare model step, without server or sockets.

Owns the form of that measurement; `tutti ceiling` makes it, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from loadtest.generator.settings import STEP_S

COMMAND = (sys.executable, "-m", "server.cli", "ceiling", "--json")
"""Its last line of output is a `Ceiling` as JSON."""

WITHIN_S = 180.0


class Ceiling(msgspec.Struct, frozen=True):
    """Median milliseconds of a model step by batch size, alone on the machine; nanoseconds of a read of its weights."""

    step_ms: dict[int, float]
    precision: str = ""
    threads: int = 0
    read_ns: float | None = None
    in_caches: bool | None = None

    def streams(self, batch: int) -> float:
        """Live streams that steps of this batch size could carry if nothing else took time."""
        return batch * STEP_S * 1e3 / self.step_ms[batch]


def measure_ceiling() -> Ceiling | None:
    """Run `tutti ceiling`; None when it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            COMMAND, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=WITHIN_S, check=True
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Ceiling, strict=False)
    except (OSError, subprocess.SubprocessError, IndexError, msgspec.DecodeError):
        return None
