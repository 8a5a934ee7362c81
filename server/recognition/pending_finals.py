"""A final whose segment is decoded again, and the steps of its channel that wait behind it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from model.ctc.words import Word
from server.recognition.events import Event, Final, StepTiming, UtteranceGap


@dataclass(eq=False, slots=True)
class OpenFinal:
    """A final with the first decode's words, one at least; its last form is not known before `again` has returned."""

    first: Final
    again: Callable[[], tuple[Word, ...]]  # the words of the segment in stream time; on any thread
    settled: Final | None = None

    def settle(self, words: tuple[Word, ...] | None) -> None:
        """Take the words of the second decode; if it failed, None, or found none at all, the first one's stand."""
        self.settled = replace(self.first, words=words) if words else self.first


Result = Event | OpenFinal


@dataclass(eq=False, slots=True)
class Held:
    """Results that wait, of one step or of none, and the timing of that step."""

    results: Sequence[Result]
    is_step: bool
    timing: StepTiming | None = None


@dataclass(eq=False, slots=True)
class HeldSteps:
    """The results of one channel from its oldest open final on, in their order."""

    waiting: deque[Held] = field(default_factory=deque)
    _moved: tuple[float, float] | None = None  # end of the last final's last word: by the first decode, as it was told

    def hold(self, results: Sequence[Result], *, is_step: bool) -> None:
        """Append results that are open finals, or come behind one."""
        self.waiting.append(Held(results, is_step))

    def timed(self, timing: StepTiming) -> None:
        """Give the newest step its timing."""
        for held in reversed(self.waiting):
            if held.is_step:
                held.timing = timing
                return

    def due(self) -> list[tuple[Held, list[Event]]]:
        """Remove what no open final holds any more; return it with its events."""
        released: list[tuple[Held, list[Event]]] = []
        while self.waiting and all(one.settled for one in open_finals(self.waiting[0].results)):
            held = self.waiting.popleft()
            released.append((held, [self._event(one) for one in held.results]))
        return released

    def told(self, results: Sequence[Result]) -> list[Event]:
        """Return events that nothing holds, as they are told."""
        return [self._event(one) for one in results]

    def _event(self, result: Result) -> Event:
        """Return a final as it was settled, and the gap behind it with the end of its last word."""
        if isinstance(result, OpenFinal):
            assert result.settled is not None, "nothing else is due"
            self._moved = result.first.words[-1].end_s, result.settled.words[-1].end_s
            return result.settled
        if isinstance(result, UtteranceGap) and self._moved is not None and result.last_word_end_s == self._moved[0]:
            return replace(result, last_word_end_s=self._moved[1])
        return result


def open_finals(results: Sequence[Result]) -> list[OpenFinal]:
    """Return those that wait for a second decode, or did."""
    return [one for one in results if isinstance(one, OpenFinal)]
