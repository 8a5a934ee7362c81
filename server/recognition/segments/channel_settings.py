"""Settings of a range of a channel's audio, and changes that wait until earlier audio is processed. Pure.

Key-term bias, endpoint rules and the answers of a turn model: each takes effect at a step of the channel.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from model.ctc.bias import NO_BIAS, Bias
from server.recognition.segments.endpointing import EndpointRules, ScoredEnd

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
        """Apply the changes whose earlier steps are all answered."""
        while self.waiting and self.waiting[0][0] <= steps_answered:
            self.current = self.waiting.popleft()[1]


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """Settings of a range of audio: key-term bias and endpoint rules."""

    bias: Bias
    rules: EndpointRules


class SettingsByStep:
    """The settings of one channel, by numbers of steps sent and steps answered."""

    def __init__(self, bias: Bias, rules: EndpointRules) -> None:
        self.steps_sent = 0  # to the engine
        self.steps_answered = 0
        self.rules = rules  # the current ones
        self.changes = PendingChanges(ChannelSettings(bias, rules))
        self.bias_until: tuple[int, Bias] | None = None  # number of its last step, and the bias after it
        self.answers: deque[tuple[int, float | None]] = deque()  # of the turn model: step and answer
        self.answer: float | None = None  # the present one

    @property
    def bias(self) -> Bias:
        """The bias of the steps that are being answered."""
        return self.changes.current.bias

    @property
    def bias_steps(self) -> int:
        """Number of further steps for which the bias holds, if `set_bias` set one; else 0."""
        return 0 if self.bias_until is None else self.bias_until[0] - self.steps_sent

    def set_bias(self, bias: Bias, steps: int = 0, after: Bias = NO_BIAS) -> None:
        """Set the bias of later steps; with `steps`, only for that many, and `after` for those that follow."""
        self.bias_until = (self.steps_sent + steps, after) if steps else None
        self.changes.change(replace(self.changes.latest, bias=bias), self.steps_sent)

    def set_endpoint(self, silence_s: float, scored: ScoredEnd | None) -> None:
        """End utterances in later steps after `silence_s` of silence."""
        rules = replace(self.changes.latest.rules, endpoint_s=silence_s, quiet_s=silence_s, scored=scored)
        self.changes.change(replace(self.changes.latest, rules=rules), self.steps_sent)

    def apply(self) -> bool:
        """Apply the changes whose earlier steps are all answered; return whether the bias has changed."""
        before = self.changes.current
        self.changes.apply(self.steps_answered)
        current = self.changes.current
        self.rules = current.rules
        return current.bias is not before.bias

    def take_answer(self, answer: float | None, after_step: int) -> bool:
        """Apply an answer of the turn model after a step, numbered from 1; None cancels the last answer.

        Return whether it is in time, that is, no later step was answered.
        """
        if self.steps_answered > after_step:
            return False
        self.answers.append((after_step, answer))
        return True

    def due_answers(self) -> list[float | None]:
        """Return the answers that count from the present step on; the last of them becomes current."""
        due: list[float | None] = []
        while self.answers and self.answers[0][0] <= self.steps_answered:
            self.answer = self.answers.popleft()[1]
            due.append(self.answer)
        return due

    def fork(self) -> SettingsByStep:
        """Return settings that continue from the last step answered, without pending changes and answers."""
        twin = copy(self)
        twin.changes, twin.answers = PendingChanges(self.changes.current), deque()
        return twin

    def restore(self, bias: Bias) -> None:
        """Continue with the bias of a snapshot."""
        self.changes = PendingChanges(ChannelSettings(bias, self.rules))
