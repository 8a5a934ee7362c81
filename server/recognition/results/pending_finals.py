"""Pending results: finals that wait for a second pass, forks that wait for words, and all later results. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from model.ctc.words import Word
from server.recognition.audio_digest import AudioMark
from server.recognition.events import (
    Event,
    Fallback,
    Final,
    Forked,
    ForkWords,
    Partial,
    Silence,
    SpeechStarted,
    StepTiming,
    UtteranceGap,
)
from server.recognition.results.result_order import ResultOrder, Unanswered
from server.recognition.steps import Work

Words = tuple[Word, ...]


@dataclass(eq=False, slots=True)
class PendingFinal:
    """A final with the first pass's words, at least one; `resolved` once `decode` has returned or failed."""

    first: Final
    decode: Callable[[], Words]  # the second pass: the segment's words in stream time; on any thread
    resolved: Final | None = None
    fork: PendingFork | None = None  # the last one in its segment, until the final is resolved or its pass is due

    @property
    def channel(self) -> int:
        """Channel of the segment."""
        return self.first.channel

    def resolve(self, words: Words | None, fallback: Fallback | None = None) -> None:
        """Take the second pass's words. If it failed (None) or found none, the first pass's words are kept."""
        self.resolved = replace(self.first, words=words) if words else replace(self.first, fallback=fallback)

    def take_from(self, fork: PendingFork) -> bool:
        """Take the words of a resolved fork if its first pass had the same text; return whether it had."""
        assert fork.resolved is not None, "its words are known"
        forked = fork.resolved.found
        if forked is None or _texts(forked.first) != _texts(self.first.words):
            return False
        self.resolve(forked.words)
        return True


@dataclass(eq=False, slots=True)
class PendingFork:
    """The place of a fork among the results, at `end_s`; `resolved` once its words are known, or it was refused."""

    channel: int
    end_s: float
    steps: tuple[Work, ...]  # of silence, to run in the fork
    resolved: Forked | None = None

    def resolve(self, found: ForkWords | None) -> None:
        """Take the fork's words; None if it was refused or failed."""
        self.resolved = Forked(self.channel, self.end_s, found)


def _texts(words: Words) -> list[str]:
    return [word.text for word in words]


Pending = PendingFinal | PendingFork
_PLAIN = {Silence, Partial, SpeechStarted}  # sent as they are; most steps have no others
Result = Event | Pending
Due = Iterator[tuple[list[Event], StepTiming | None]]
"""Events that waited, step by step."""


def marked(results: list[Any], mark: Callable[[], AudioMark]) -> list[Any]:
    """Return the results, with the mark of the audio that it depends on in each final."""
    for at, result in enumerate(results):
        if isinstance(result, Final):
            results[at] = replace(result, audio=mark())
        elif isinstance(result, PendingFinal):
            result.first = replace(result.first, audio=mark())
    return results


@dataclass(eq=False, slots=True)
class _Held:
    """Pending results of one step, or of no step, and the timing of that step."""

    results: Sequence[Result]
    is_step: bool
    timing: StepTiming | None = None

    @property
    def resolved(self) -> bool:
        return all(one.resolved for one in self.results if isinstance(one, Pending))


@dataclass(eq=False, slots=True)
class _Channel:
    """The results of one channel from its oldest pending one on."""

    held: deque[_Held] = field(default_factory=deque)
    fork: PendingFork | None = None  # the last one since the last final
    ends_s: tuple[float, float] | None = None  # of the last final's last word: in the first pass, and as sent

    def due_passes(self, results: Sequence[Result]) -> list[PendingFinal]:
        """Take a step's results; return the finals whose second pass is due.

        A final after a fork of its segment waits for the words of the fork: the same text is not read twice.
        """
        due: list[PendingFinal] = []
        for result in results:
            if isinstance(result, PendingFork):
                self.fork = result
            elif isinstance(result, Final | PendingFinal):
                fork, self.fork = self.fork, None
                if isinstance(result, PendingFinal):
                    result.fork = fork
                    due += self.decided(result)
        return due

    @staticmethod
    def decided(final: PendingFinal) -> list[PendingFinal]:
        """Return a final if its second pass is due; none if it still waits for a fork, or has the words of one."""
        fork = final.fork
        if fork is not None and fork.resolved is None:
            return []
        final.fork = None
        return [] if fork is not None and final.take_from(fork) else [final]

    def sent(self, result: Result) -> Event:
        """Return a result as it is sent: a final as resolved, a gap with the end time of the word that was sent."""
        if isinstance(result, PendingFork):
            assert result.resolved is not None, "only resolved forks are sent"
            return result.resolved
        if isinstance(result, PendingFinal):
            assert result.resolved is not None, "only resolved finals are sent"
            self.ends_s = result.first.words[-1].end_s, result.resolved.words[-1].end_s
            return result.resolved
        if isinstance(result, UtteranceGap) and self.ends_s is not None and result.last_word_end_s == self.ends_s[0]:
            return replace(result, last_word_end_s=self.ends_s[1])
        return result


class PendingFinals:
    """A `ResultOrder` in which a pending result delays later results of its channel; wraps another order."""

    def __init__(self, channels: int, order: ResultOrder, unanswered: Unanswered) -> None:
        """`unanswered`: count of the session, in which steps stay while their results wait."""
        self._order = order
        self._unanswered = unanswered
        self._channels = [_Channel() for _ in range(channels)]
        self._new: list[PendingFinal] = []  # until `take_new`
        self._forks: deque[PendingFork] = deque()  # whose state the engine has not exported yet
        self.by_audio = order.by_audio

    def __bool__(self) -> bool:
        """Whether any result waits."""
        return any(channel.held for channel in self._channels)

    def send(self, work: list[Work]) -> None:
        """As the other order."""
        self._order.send(work)

    def answered(self, channel: int, results: list[Any]) -> list[Event]:
        """Take a step's results; return the events that are due."""
        here = self._channels[channel]
        if not here.held and _PLAIN.issuperset(map(type, results)):
            return self._order.answered(channel, results)
        self._new += here.due_passes(results)
        self._forks += [one for one in results if isinstance(one, PendingFork)]
        if here.held or not all(one.resolved for one in results if isinstance(one, Pending)):
            here.held.append(_Held(results, is_step=True))
            self._unanswered.steps += 1
            return []
        return self._order.answered(channel, [here.sent(one) for one in results])

    def unasked(self, channel: int, events: list[Event]) -> list[Event]:
        """Return events of a channel that answer no step, unless they have to wait."""
        held = self._channels[channel].held
        if self.by_audio or not events or not held:
            return self._order.unasked(channel, events)
        held.append(_Held(events, is_step=False))
        return []

    def add(self, events: list[Event]) -> list[Event]:
        """As the other order."""
        return self._order.add(events)

    def finishes(self) -> bool:
        """Whether all results were returned."""
        return not self and self._order.finishes()

    def sent_before(self, channel: int, first_s: float, sent_s: float) -> None:
        """Continue after a final whose last word ends at `first_s` in the first pass, and at `sent_s` as sent."""
        self._channels[channel].ends_s = first_s, sent_s

    def take_new(self) -> list[PendingFinal]:
        """Return the finals whose second pass has to be started, once each."""
        new, self._new = self._new, []
        return new

    def next_fork(self) -> PendingFork:
        """Return the oldest fork that was not returned yet, once the engine has exported the state for it."""
        return self._forks.popleft()

    def timed(self, channel: int, timing: StepTiming) -> None:
        """Note the timing of the channel's newest step, if its results wait."""
        for held in reversed(self._channels[channel].held):
            if held.is_step:
                held.timing = timing
                return

    def first_word_s(self, channel: int) -> float:
        """Start of the first word of a channel's finals that wait; infinity without one."""
        results = (one for held in self._channels[channel].held for one in held.results)
        finals = (one.first if isinstance(one, PendingFinal) else one for one in results)
        return next((one.words[0].start_s for one in finals if isinstance(one, Final) and one.words), math.inf)

    def resolve(self, final: PendingFinal, words: Words | None, fallback: Fallback | None = None) -> Due:
        """Take a second pass's words, None if it failed; give the events that waited, step by step.

        `fallback` is noted in a final without such words. Results not yet returned are still pending: `first_word_s`
        includes them.
        """
        final.resolve(words, fallback)
        return self._due(final.channel)

    def resolve_fork(self, fork: PendingFork, found: ForkWords | None) -> Due:
        """Take a fork's words, None if it was refused or failed; give the events that waited, step by step.

        Second passes that waited for these words may be due then.
        """
        fork.resolve(found)
        here = self._channels[fork.channel]
        waiting = [one for held in here.held for one in held.results if isinstance(one, PendingFinal)]
        self._new += [due for one in waiting if one.fork is fork for due in here.decided(one)]
        return self._due(fork.channel)

    def _due(self, index: int) -> Due:
        here = self._channels[index]
        while here.held and here.held[0].resolved:
            held = here.held.popleft()
            self._unanswered.steps -= held.is_step
            events = [here.sent(one) for one in held.results]
            yield self._order.answered(index, events) if held.is_step else events, held.timing
