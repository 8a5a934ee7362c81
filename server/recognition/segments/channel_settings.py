"""Settings of a stretch of a channel's audio, and changes that wait for the audio before them. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from model.ctc.bias import Bias
from server.recognition.segments.endpointing import EndpointRules

T = TypeVar("T")


class PendingChanges(Generic[T]):
    """A setting that must not affect audio received earlier: a change waits until the steps before it are answered.

    Of changes with no step between them only the last is kept.
    """

    def __init__(self, current: T) -> None:
        self.current = current
        self.waiting: deque[tuple[int, T]] = deque()  # each with the number of steps that were sent before it

    @property
    def latest(self) -> T:
        """The setting of audio that comes now."""
        return self.waiting[-1][1] if self.waiting else self.current

    def change(self, to: T, steps_sent: int) -> None:
        """Change the setting for all steps after the first `steps_sent`."""
        if self.waiting and self.waiting[-1][0] == steps_sent:
            self.waiting.pop()
        self.waiting.append((steps_sent, to))

    def apply(self, steps_answered: int) -> None:
        """Make the changes current whose earlier steps are all answered."""
        while self.waiting and self.waiting[0][0] <= steps_answered:
            self.current = self.waiting.popleft()[1]


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """Settings of a stretch of audio: key-term bias and endpoint rules."""

    bias: Bias
    rules: EndpointRules
