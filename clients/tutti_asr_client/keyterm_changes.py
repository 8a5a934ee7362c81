"""Configure and Context messages of a stream: their answers, and the messages that a replay repeats. Pure.

A Configure holds until the next one. A Context holds for `CONTEXT_S` of audio, and a later one extends the terms in
force; its answer lists all terms. So one message with the terms of the last answer replaces all Contexts before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import msgspec

from tutti_asr_client.audio_shape import AudioShape
from tutti_asr_client.messages import ConfigureFailure, ConfigureSuccess, ContextFailure, ContextSuccess
from tutti_asr_client.send_log import Control

CONTEXT_S = 30.0
"""Seconds of audio for which a server favors the terms of a Context."""

KINDS = ("Configure", "Context")
Answer = ConfigureSuccess | ConfigureFailure | ContextSuccess | ContextFailure


class KeytermChanges:
    """The changes of a stream's key terms, over all its connections."""

    def __init__(self, shape: AudioShape) -> None:
        self._context_size = shape.size(CONTEXT_S)
        self._controls: dict[str, list[Control]] = {kind: [] for kind in KINDS}  # a replay may have to repeat them
        self._sent: dict[str, deque[Control]] = {kind: deque() for kind in KINDS}  # unanswered on this connection

    def add(self, control: Control) -> None:
        """Take a message of the caller."""
        self._controls[control.kind].append(control)

    def connected(self) -> None:
        """Start a new connection."""
        for sent in self._sent.values():
            sent.clear()

    def sent(self, control: Control) -> None:
        """Record that a message was sent on this connection."""
        self._sent[control.kind].append(control)

    def answered(self, answer: Answer) -> bool:
        """Match an answer to the oldest unanswered message of its kind; return whether the caller lacks it."""
        kind = "Configure" if isinstance(answer, ConfigureSuccess | ConfigureFailure) else "Context"
        if not self._sent[kind]:
            return True
        control = self._sent[kind].popleft()
        known = control.answered
        control.delivered.add(0)
        control.confirmed = True
        if isinstance(answer, ContextSuccess):
            control.terms = answer.keyterms
        return not known

    def to_repeat(self, position: int, held: Collection[Control]) -> list[Control]:
        """Return the messages in force at `position`, except those that the log (`held`) sends again there."""

        def gone(controls: Sequence[Control]) -> list[Control]:
            return [one for one in _until(controls, position) if one.at < position or one not in held]

        latest = _until(self._controls["Configure"], position)[-1:]
        return [*gone(latest), *self._in_force(gone(self._controls["Context"]), position)]

    def _in_force(self, contexts: Sequence[Control], position: int) -> list[Control]:
        """Return the Contexts in force; those up to the last answer are one message with its terms."""
        contexts = [one for one in contexts if one.at > position - self._context_size]
        unanswered = [one for one in contexts if not one.answered]
        for latest in reversed(contexts):
            if latest.terms:
                text = msgspec.json.encode({"type": "Context", "text": " ".join(latest.terms)}).decode()
                repeated = Control("Context", text, latest.at, latest.channels, delivered=set(latest.channels))
                return [repeated, *unanswered]
        return unanswered

    def forget_before(self, position: int) -> None:
        """Drop messages that no replay from `position` or later repeats."""
        configures = self._controls["Configure"]
        del configures[: max(0, len(_until(configures, position)) - 1)]
        begin = position - self._context_size
        self._controls["Context"] = [one for one in self._controls["Context"] if one.at > begin]


def _until(controls: Sequence[Control], position: int) -> list[Control]:
    return [one for one in controls if one.at <= position]
