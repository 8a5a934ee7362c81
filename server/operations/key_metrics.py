"""Metrics by API key, for a bounded number of keys; off unless an operator asks for them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

OTHER = "other"


class KeyMetrics:
    """Counters by the name of a key, else its id. Keys beyond `limit` count together as `other`."""

    def __init__(self, registry: CollectorRegistry, limit: int) -> None:
        self._limit = limit
        self._keys = {OTHER}
        self._audio = Counter(
            "tutti_key_audio_seconds",
            "Audio received, over all channels; at most a minute old",
            ["key"],
            registry=registry,
        )
        self._calls = Counter("tutti_key_calls", "Streams and uploads that began", ["key"], registry=registry)

    def began(self, key: str) -> None:
        """Count a stream or upload."""
        self._calls.labels(self._label(key)).inc()

    def received(self, key: str, audio_s: float) -> None:
        """Count seconds of audio."""
        self._audio.labels(self._label(key)).inc(audio_s)

    def _label(self, key: str) -> str:
        name = key or OTHER
        if name not in self._keys and len(self._keys) <= self._limit:
            self._keys.add(name)
        return name if name in self._keys else OTHER
