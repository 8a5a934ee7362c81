"""When a partial is worth saying: when its words changed, and not more often than the client asked for. Pure."""

from __future__ import annotations

from server.recognition.events import Partial
from server.recognition.saved_state import SavedInterims


class Interims:
    """What was said last about the open segment of one channel. Time is audio time, so timing decides nothing."""

    def __init__(self, *, tell_stable: bool, interval_s: float) -> None:
        self._tell_stable = tell_stable
        self._interval_s = interval_s
        self._seen: tuple[int, int] | None = None  # revision and stable words looked at last
        self._told: tuple[tuple[str, ...], int] = ((), 0)
        self._told_s: float | None = None  # cursor of the segment's last partial
        self.said_s = 0.0  # where the last result of any kind ended

    def saved(self) -> SavedInterims:
        """Return all of it."""
        texts, stable = self._told
        return SavedInterims(self._seen, texts, stable, self._told_s, self.said_s)

    def restore(self, saved: SavedInterims) -> None:
        """Go on as the one that `saved` told would."""
        self._seen, self._told, self._told_s = saved.seen, (saved.texts, saved.stable), saved.told_s
        self.said_s = saved.said_s

    def restart(self, end_s: float) -> None:
        """A final ended the segment there; what it left open is news."""
        self._seen, self._told, self._told_s = None, ((), 0), None
        self.said_s = end_s

    def look(self, revision: int, stable: int, cursor_s: float) -> bool:
        """Whether there may be news, and it may be told now. Cheap: asked after every step."""
        if self._told_s is not None and cursor_s - self._told_s < self._interval_s:
            return False  # not seen: it is looked at again when the interval is over
        before, self._seen = self._seen, (revision, stable)
        return before != self._seen

    def is_news(self, partial: Partial) -> bool:
        """Whether it says anything that the last one did not; if so, it counts as told."""
        texts = tuple(word.text for word in partial.words)
        told = (texts, partial.stable_words if self._tell_stable else 0)
        if told == self._told:
            return False
        self._told, self._told_s = told, partial.start_s + partial.duration_s
        self.said_s = self._told_s
        return True
