"""Calibration of one machine: measured batch times, costs of the rest of the server, and the spread of single events.

Owns the JSON format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tutti_asr_lab.simulation.service_table import DRAWS, ServiceTable

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
    """Event loop, per row: building its answer, and passing it to the socket when all of the batch are built."""
    engine_s: float = 0.0
    """Model thread, per batch, outside the step, while it holds the interpreter lock."""
    engine_row_s: float = 0.0
    """The same, per row."""
    path_s: float = 0.0
    """Round trip of a step outside all threads: sockets."""
    wake_s: float = 0.0
    """Median from an event to the start of its work in a thread that sleeps: event loop or model thread."""
    other_s: float = 0.0
    """Processor time per row of threads that are not simulated, such as the voice detector's: it takes cores."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of a time: the `quantiles` of its ratio to a typical time are in `shape`."""

    quantiles: tuple[float, ...] = (0.5,)
    shape: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if len(self.quantiles) != len(self.shape) or not self.shape:
            raise ValueError(f"a spread needs one factor per quantile, has {len(self.shape)} for {len(self.quantiles)}")

    @classmethod
    def of(cls, seconds: Sequence[float] | NDArray[np.float64], typical_s: float, quantiles: Sequence[float]) -> Spread:
        """Return the spread of measured times around a typical one, which is positive."""
        shape = np.quantile(np.asarray(seconds) / typical_s, quantiles)
        return cls(tuple(quantiles), tuple(float(factor) for factor in shape))

    def factors(self) -> list[float]:
        """`DRAWS` equally likely factors, ascending."""
        points = (np.arange(DRAWS) + 0.5) / DRAWS
        return [float(value) for value in np.interp(points, self.quantiles, self.shape)]


@dataclass(frozen=True, slots=True)
class Interference:
    """Additional time of a batch inside a server, compared with the engine alone.

    The two threads share the interpreter lock, caches and memory, so the median grows with the event loop's load:
    `idle_s` + `busy_s` · (share of time in which the loop is busy). Medians, since other programs disturb means more.
    """

    idle_s: float = 0.0
    busy_s: float = 0.0
    spread: Spread = Spread()


@dataclass(frozen=True, slots=True)
class Spreads:
    """How single events differ from the times in `Overheads`."""

    wake: Spread = Spread()
    """Spread of `wake_s`."""
    loop: Spread = Spread()
    """Spread of the event loop's time for the results of a batch."""


@dataclass(frozen=True, slots=True)
class SecondPasses:
    """Second passes over the finished segments of one kind of finals, in audio that streams repeat."""

    audio_steps: int
    """Length of the audio."""
    steps: tuple[int, ...]
    """Of these, from 0 on, the ones that end a segment."""
    seconds: tuple[float, ...]
    """Processor time of the pass after each, on a thread of its own."""
    loop_s: float = 0.0
    """Event loop, per row, beyond what `decode_s` has for finals without a pass; negative for a narrower search."""

    @property
    def step_s(self) -> float:
        """Processor time of the passes per step of audio."""
        return sum(self.seconds) / self.audio_steps


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
    decoder: str = ""
    lm: str = ""
    """The language model: built-in or off."""
    others: float = 0.0
    """Cores used by other programs during the measurement."""
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
    spreads: Spreads = Spreads()
    flush_steps: int = 0
    """Additional steps at the end of a stream."""
    passes: Mapping[str, SecondPasses] = field(default_factory=dict)
    """By finals; those without a second pass, as `fast`, are not in it."""

    def save(self, path: Path) -> None:
        """Write the JSON document."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read the JSON document. Raises: OSError; ValueError for a file of another format."""
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return msgspec.convert(document | {"passes": document["passes"]}, cls)  # files of before have none
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise ValueError(f"{path} is not a calibration file of this version: {error}") from error


def shipped() -> Calibration:
    """Return the calibration in this package; its `provenance` names the machine."""
    return Calibration.load(SHIPPED)


class RandomFactors:
    """Draws factors from measured spreads, all from one seed."""

    def __init__(self, spreads: Spreads, seed: int) -> None:
        random = Random(seed).random
        self.wake = _drawing(spreads.wake, random)
        """Factor of the time that a sleeping thread takes to wake up."""
        self.loop = _drawing(spreads.loop, random)
        """Factor of the event loop's time for the results of a batch."""


def _drawing(spread: Spread, random: Callable[[], float]) -> Callable[[], float]:
    factors = spread.factors()
    return lambda: factors[int(random() * DRAWS)]
