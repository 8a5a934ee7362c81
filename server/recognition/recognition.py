"""One session's place in the engine: its streams, the way back to its connection, and what waits on that way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from server.recognition.events import Event, StepTiming, StreamBroken
from server.recognition.segmenter import Channel
from server.recognition.session import Session
from server.recognition.steps import StepTag, Work

Outputs = NDArray[np.float32]


class Sink(Protocol):
    """Whoever holds the other end of a session."""

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Take what a step changed, often nothing. `timing` is None for what answers no step."""


class Streams(Protocol):
    """What a recognition needs of the recognizer."""

    def push(self, recognition: Recognition, work: Sequence[Work]) -> None:
        """Hand work to the engines, in order."""

    def close(self, recognition: Recognition) -> None:
        """Let go of a session's streams."""

    def export(self, recognition: Recognition) -> None:
        """Have the engine's states of a session told to it, as they are behind all work so far."""

    def restore(self, recognition: Recognition, states: Sequence[bytes]) -> None:
        """Give a session's streams these states, by channel."""


class Recognition:
    """One session's streams in the engine. `close` it when the session is over; more often does no harm."""

    def __init__(self, owner: Streams, session: Session, sink: Sink, streams: Sequence[int]) -> None:
        self.session = session
        self.sink = sink
        self.streams = tuple(streams)  # by channel
        self.open = True
        self._owner = owner

    def push(self, work: Sequence[Work]) -> None:
        """Hand work to the engine, in order."""
        if self.open:
            self._owner.push(self, work)

    def export(self) -> None:
        """Have the engine's states told to the session, as they are behind all work so far."""
        if self.open:
            self._owner.export(self)

    def restore(self, states: Sequence[bytes]) -> None:
        """Go on from these states, by channel; before any work. Raises: WrongState."""
        if self.open:
            self._owner.restore(self, states)

    def close(self) -> None:
        """Drop whatever is still waiting; decoder states come back now, slots when the engine has let go of them."""
        if self.open:
            self.open = False
            self._owner.close(self)
            self.session.release()

    def fail(self, error: Exception) -> None:
        """Tell the connection that nothing more will come."""
        if self.open:
            self.close()
            self.sink.on_events([StreamBroken(error)], None)


class BatchTiming(msgspec.Struct, frozen=True, gc=False):
    """What all rows of a batch share; `done_s` is the clock time at which the outputs were there."""

    step_s: float
    done_s: float
    rows: int


class Row(msgspec.Struct, frozen=True):
    """One step's answer, outputs (T, V)."""

    tag: StepTag
    outputs: Outputs
    queue_wait_s: float
    batch: BatchTiming


@dataclass(frozen=True, slots=True)
class Route:
    """One channel's way back; `held` are answers that wait for the voice-activity model."""

    recognition: Recognition
    channel: Channel
    held: deque[Row] = field(default_factory=deque)

    @property
    def due(self) -> bool:
        """Whether the oldest held answer is still wanted, and its audio was heard by the voice-activity model."""
        speech = self.channel.speech
        if not self.held or speech is None or not self.recognition.open:
            return False
        return speech.covers(self.held[0].tag.end_sample)
