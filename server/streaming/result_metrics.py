"""Metrics of one connection's results: time to the first interim, reasons of finals, delays of words, repaired losses.

The delay of a word is the time from the arrival of the audio at its end (as timed by the recognizer) until its message
is written to the socket. In real time it is the audio since the word plus the latency of the step. The true ends of
words and the network delay are measured by `tutti loadtest --ruler word-delay`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from server.audio.formats import Losses
from server.operations.metrics import Metrics
from server.recognition.events import Event, Final, Partial, StepTiming


class WordDelays:
    """Word delays of one connection; a word counts when it is first shown, when it becomes stable, and when it is
    final.
    """

    __slots__ = ("_by_kind", "_clock", "_counted", "_time_to_final")

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._by_kind, self._time_to_final = metrics.word_delay, metrics.time_to_final
        self._clock = clock
        self._counted: dict[int, tuple[int, int]] = {}  # by channel: words of the open segment shown, and stable

    def observe(self, event: Partial | Final, timing: StepTiming) -> None:
        """Count the words that this message shows, marks as stable, or makes final for the first time."""
        shown, stable = self._counted.get(event.channel, (0, 0))
        words, final = event.words, isinstance(event, Final)
        now_stable = len(words) if isinstance(event, Final) else event.stable_words
        if len(words) > shown or now_stable > stable or (final and words):
            since_s = event.start_s + event.duration_s + self._clock() - timing.arrived_s
            self._by_kind["shown"].observe_all([since_s - word.end_s for word in words[shown:]])
            self._by_kind["stable"].observe_all([since_s - word.end_s for word in words[stable:now_stable]])
            if final and words:
                self._by_kind["final"].observe_all([since_s - word.end_s for word in words])
                self._time_to_final.observe(since_s - words[-1].end_s)
        counted = (0, 0) if final else (max(shown, len(words)), max(stable, now_stable))
        self._counted[event.channel] = counted


class ResultMetrics:
    """Observes the results that one connection sends."""

    __slots__ = ("_clock", "_counted", "_first_audio_s", "_interim_seen", "_metrics", "_word_delays")

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics, self._clock = metrics, clock
        self._word_delays = WordDelays(metrics, clock)
        self._first_audio_s: float | None = None
        self._interim_seen = False
        self._counted = Losses()

    def audio_arrived(self, arrived_s: float) -> None:
        """Record when the first audio arrived."""
        if self._first_audio_s is None:
            self._first_audio_s = arrived_s

    def repaired(self, losses: Losses) -> None:
        """Count the losses that the decoder has repaired since the last call."""
        if losses != self._counted:
            self._metrics.audio_concealed.inc(losses.concealed - self._counted.concealed)
            self._metrics.audio_resyncs.inc(losses.resyncs - self._counted.resyncs)
            self._counted = replace(losses)

    def sent(self, event: Event, timing: StepTiming | None) -> None:
        """Observe an event that was sent; `timing` is that of its step, None if it answers no step."""
        if isinstance(event, Partial):
            if event.words and not self._interim_seen and self._first_audio_s is not None:
                self._interim_seen = True
                self._metrics.first_interim.observe(self._clock() - self._first_audio_s)
        elif isinstance(event, Final):
            self._metrics.endpoints[event.reason].inc()
            if event.endpoint_delay_s is not None:
                self._metrics.endpoint_delay.observe(event.endpoint_delay_s)
        if timing is not None and isinstance(event, Partial | Final):
            self._word_delays.observe(event, timing)
