"""Calibration of one machine: measured batch times and the costs of the rest of the server. Owns the JSON format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from batching.simulation.service_table import DRAWS, ServiceTable

SHIPPED = Path(__file__).with_name("calibration.json")


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds per step outside the model; all zero means the model alone, without any server around it.

    The event loop is one server with one queue: it receives messages and sends answers.
    """

    open_s: float = 0.0
    """Event loop, per stream: handshake, start and end."""
    receive_s: float = 0.0
    """Event loop, per message."""
    batch_s: float = 0.0
    """Event loop, per batch: waking up, and the part of decoding that does not depend on the rows."""
    decode_s: float = 0.0
    """Event loop, per row, before any row of the batch is written."""
    write_s: float = 0.0
    """Event loop, per row: building and writing its answer."""
    engine_s: float = 0.0
    """Model thread, per batch, outside the step, while it holds the interpreter lock."""
    engine_row_s: float = 0.0
    """The same, per row."""
    path_s: float = 0.0
    """Round trip of a step outside both threads: sockets and thread wake-ups."""


@dataclass(frozen=True, slots=True)
class Interference:
    """Additional time of a batch inside a server, compared with the engine alone.

    The two threads share the interpreter lock, caches and memory, so the mean grows with the event loop's load:
    `idle_s` + `busy_s` · (share of time in which the loop is busy). A single batch differs from the mean by a factor
    whose `quantiles` are in `shape`.
    """

    idle_s: float = 0.0
    busy_s: float = 0.0
    quantiles: tuple[float, ...] = (0.5,)
    shape: tuple[float, ...] = (1.0,)

    def factors(self) -> list[float]:
        """`DRAWS` equally likely factors, ascending."""
        points = (np.arange(DRAWS) + 0.5) / DRAWS
        return [float(value) for value in np.interp(points, self.quantiles, self.shape)]


@dataclass(frozen=True, slots=True)
class Client:
    """Load generator on the same machine, a third server with one queue. Times in seconds."""

    send_s: float = 0.0
    receive_s: float = 0.0
    tick_s: float = 0.0
    """Timer resolution: a due message is sent at the next tick."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Machine, model and software of a measurement."""

    hardware: str = ""
    cores: int = 0
    model: str = ""
    digest: str = ""
    precision: str = ""
    device: str = ""
    threads: int = 0
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, slots=True)
class Calibration:
    """One machine with one model."""

    provenance: Provenance
    step_s: float
    """Seconds of audio in one step."""
    table: ServiceTable
    overheads: Overheads
    interference: Interference = Interference()
    flush_steps: int = 0
    """Additional steps at the end of a stream."""

    def save(self, path: Path) -> None:
        """Write the JSON document."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read the JSON document. Raises: OSError; ValueError for a file of another format."""
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            table = document["table"]
            return cls(
                provenance=Provenance(**document["provenance"]),
                step_s=float(document["step_s"]),
                table=ServiceTable(
                    tuple(table["rows"]), tuple(table["quantiles"]), tuple(tuple(line) for line in table["seconds"])
                ),
                overheads=Overheads(**document["overheads"]),
                interference=_interference(document["interference"]),
                flush_steps=int(document["flush_steps"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a calibration file: {error}") from error


def _interference(found: dict[str, Any]) -> Interference:
    quantiles, shape = tuple(found["quantiles"]), tuple(found["shape"])
    if len(quantiles) != len(shape) or not shape:
        raise ValueError(f"interference needs one factor per quantile, has {len(shape)} for {len(quantiles)}")
    return Interference(float(found["idle_s"]), float(found["busy_s"]), quantiles, shape)


def shipped() -> Calibration:
    """Return the calibration in this package; its `provenance` names the machine."""
    return Calibration.load(SHIPPED)
