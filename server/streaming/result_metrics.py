"""Metrics of one connection's results: the first interim, reasons of finals, delays of words."""

from __future__ import annotations

from collections.abc import Callable

from server.operations.metrics import Metrics
from server.recognition.events import Event, Final, Partial, StepTiming
from server.streaming.word_delays import WordDelays


class ResultMetrics:
    """Observes the results that one connection sends."""

    __slots__ = ("_clock", "_first_audio_s", "_interim_seen", "_metrics", "_word_delays")

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics, self._clock = metrics, clock
        self._word_delays = WordDelays(metrics, clock)
        self._first_audio_s: float | None = None
        self._interim_seen = False

    def audio_arrived(self, arrived_s: float) -> None:
        """Note when the first audio arrived."""
        if self._first_audio_s is None:
            self._first_audio_s = arrived_s

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
