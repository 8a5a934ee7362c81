"""Common part of the adapters of telephone calls: results in Deepgram's protocol, in frames of the call. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from server.protocols.deepgram.projector import Projector
from server.recognition.events import Closed, Event, StepTiming
from server.streaming.adapter import Action, Actions, SendFrame
from server.streaming.outbox import kind_of

encode = msgspec.json.Encoder().encode


class CallAdapter(ABC):
    """Adapter of one call, without what its client sends."""

    def __init__(self, projector: Projector) -> None:
        self._projector = projector

    def opened(self) -> Actions:
        """Send nothing."""
        return ()

    def event(self, event: Event, timing: StepTiming | None) -> Actions:
        """Convert a recognition event into frames."""
        message = self._projector.frame(event, timing)
        actions: list[Action] = []
        if message is not None:
            kind, flushed = kind_of(event)
            payload = self._frame("transcript", result=msgspec.Raw(message), channel=getattr(event, "channel", None))
            actions.append(SendFrame(payload, kind, flushed))
        if isinstance(event, Closed):
            actions.append(SendFrame(self._frame("stop")))
        return actions

    def bias_refused(self, why: str) -> Actions:  # noqa: ARG002 - an adapter's
        """Do nothing: key terms come before the audio and never change."""
        return ()

    @abstractmethod
    def _frame(self, event: str, *, channel: int | None = None, **fields: Any) -> bytes:
        """Return a frame with these fields; `result` is a message of Deepgram's protocol about a channel."""
