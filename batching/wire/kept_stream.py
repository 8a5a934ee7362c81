"""A front end's copy of a stream, to continue it in another engine: its last state, and the steps pushed since.

A checkpoint and a replay log: `state` is the state after `base` steps of the stream. On a new connection the stream
starts from it and replays the kept steps; answers that were delivered before are dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from batching.events import BatchDone


class KeptStep(NamedTuple):
    """One step, as it was pushed."""

    inputs: np.ndarray
    tag: object
    reset: bool
    ready_s: float


@dataclass(slots=True, eq=False)
class PendingExport:
    """An export without an answer."""

    position: int
    """Steps of the stream before it."""
    tag: object
    own: bool
    """Whether it was requested for recovery, so that its state is not delivered."""
    current: bool = True
    """Whether its state continues the stream: false once another state was restored."""


@dataclass(slots=True)
class KeptStream:
    """One open stream of a front end."""

    budget_s: float
    background: bool
    every_steps: int
    state: bytes | None = None
    """State after `base` steps; None: the state of a new stream."""
    base: int = 0
    steps: deque[KeptStep] = field(default_factory=deque)
    """Steps from number `base` on."""
    answered: int = 0
    """Answers that were delivered."""
    exports: deque[PendingExport] = field(default_factory=deque)
    closing: bool = False
    failed: bool = False
    export_at: float = 0.0
    """Number of delivered answers after which the state is requested again."""

    # On the present connection:
    opened: bool = False
    sent: int = 0
    done: int = 0
    """Steps answered on this connection; fewer than `answered` during a replay."""
    held_up: int = 0
    """Steps pushed before this connection, which waited for it."""
    asked: int = 0
    """Number of `exports` that were sent."""
    restore_waits: bool = False
    """Whether `state` must still be restored, once no step is pending."""

    def __post_init__(self) -> None:
        self.export_at = self.every_steps

    @property
    def pushed(self) -> int:
        """Number of steps pushed so far."""
        return self.base + len(self.steps)

    @property
    def all_sent(self) -> bool:
        """Whether all steps, export requests and restores were sent on this connection."""
        return self.sent == self.base + len(self.steps) and self.asked == len(self.exports) and not self.restore_waits

    @property
    def caught_up(self) -> bool:
        """Whether everything is sent, nothing is repeated, and all that waited for the connection is answered."""
        return self.done >= max(self.answered, self.held_up) and self.all_sent

    def reopen(self) -> None:
        """Start again on another connection."""
        self.opened = False
        self.sent = self.done = self.base
        self.held_up = self.pushed
        self.exports = deque(export for export in self.exports if not export.own)
        self.asked = 0
        self.restore_waits = False
        self.export_at = self.base + self.every_steps

    def take_answer(self) -> bool:
        """Count an answer. Returns: whether it is new."""
        new = self.done >= self.answered
        self.done += 1
        self.answered += new
        return new

    def adopt(self, position: int, state: bytes) -> None:
        """Keep the state after `position` steps, and drop those steps."""
        for _ in range(position - self.base):
            self.steps.popleft()
        self.base, self.state = position, state
        self.export_at = position + self.every_steps

    def restore(self, state: bytes) -> None:
        """Continue from another state; every step was answered."""
        self.adopt(self.pushed, state)
        for export in self.exports:
            export.current = False
        self.restore_waits = True

    def end(self) -> None:
        """Drop everything: the stream failed, or its owner closed it."""
        self.steps.clear()
        self.held_up = 0
        self.export_at = math.inf


def chosen_rows(batch: BatchDone, keep: Sequence[bool], live: Sequence[bool]) -> list[BatchDone]:
    """Return events with the rows to keep: one, or for a batch of chunks up to one for each step of a chunk.

    `live`: which rows belong to live streams. The first event stands for the batch in statistics.
    """
    waits = iter(batch.live_wait_s)
    live_waits = [next(waits) if is_live else None for is_live in live]
    events: list[BatchDone] = []
    for first in range(batch.steps):
        rows = [row for row in range(first, len(keep), batch.steps) if keep[row]]
        if rows:
            events.append(
                batch._replace(
                    streams=tuple([batch.streams[row] for row in rows]),
                    tags=tuple([batch.tags[row] for row in rows]),
                    outputs=batch.outputs[rows],
                    queue_wait_s=tuple([batch.queue_wait_s[row] for row in rows]),
                    live_wait_s=tuple([wait for row in rows if (wait := live_waits[row]) is not None]),
                    steps=1,
                    rows_in_all=batch.rows_in_all or len(batch.streams),
                    leads=batch.leads and not events,
                )
            )
    return events
