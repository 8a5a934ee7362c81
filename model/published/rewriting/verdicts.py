"""Results of rewrites: what was applied to a graph, and why the rest was not. Cached in the graph's folder as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Rewriting = Literal["auto", "off"]
"""All rewrites that keep the results, or none."""

COMPILED_STEP = "compiled step"
"""Name of the verdict on a step that runs instead of the graph."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a rewrite: applied or not, and why not."""

    name: str
    exact: bool
    applied: bool
    reason: str = ""
    largest_difference: float = 0.0


def cached(places: Sequence[Path]) -> tuple[Verdict, ...] | None:
    """Read the first valid file of verdicts; None if there is none."""
    for place in places:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return tuple(Verdict(**each) for each in json.loads(place.read_text()))
    return None


def keep(places: Sequence[Path], verdicts: Sequence[Verdict]) -> None:
    """Write verdicts at the first writable place, if there is one."""
    text = json.dumps([asdict(verdict) for verdict in verdicts], indent=1)
    for place in places:
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            return
