"""What operators can see: one Prometheus registry per app, never labelled by session, key, address or text.

Every interval comes from one process's monotonic clock. Source: operations.md 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

# Quantiles are exact only at edges, so each latency objective has one of its own.
LATENCY_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
STAGE_S = (0.0002, 0.0005, 0.001, 0.002, *LATENCY_S)  # the stages take less than the whole
SESSION_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0)
BACKLOG_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
ENDPOINT_S = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
RATIO = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
OUTCOMES = ("completed", "client_abort", "idle_timeout", "error", "drained")
PROTOCOLS = ("deepgram", "upload")


class Metrics:
    """Every metric of the app. Children with labels are made here once: looking them up costs more than counting."""

    def __init__(self, max_batch: int, max_streams: int) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self._gauges(registry, max_streams)
        self._counters(registry)
        self._histograms(registry, max_batch)

    def _gauges(self, registry: CollectorRegistry, max_streams: int) -> None:
        active = Gauge("tutti_sessions_active", "ASR sessions open now", ["protocol"], registry=registry)
        self.sessions_active = {name: active.labels(name) for name in PROTOCOLS}
        Gauge("tutti_sessions_max", "Session cap", registry=registry).set(max_streams)
        self.sessions_draining = Gauge("tutti_sessions_draining", "Sessions open while draining", registry=registry)
        self.queue_depth = Gauge("tutti_batch_queue_depth", "Steps ready and waiting for a batch", registry=registry)
        self.ready = Gauge("tutti_ready", "1 when /readyz answers 200", registry=registry)
        self.slots_used = Gauge("tutti_state_pool_slots_used", "Recurrent-state slots taken", registry=registry)
        Gauge("tutti_state_pool_slots_total", "Recurrent-state slots", registry=registry).set(max_streams)
        self.build_info = Gauge(
            "tutti_build_info", "Constant 1", ["version", "commit", "model", "device"], registry=registry
        )

    def watch_gpu(self, allocated_bytes: Callable[[], float]) -> None:
        """Add the allocator's view of a GPU; without one there is no such metric."""
        gauge = Gauge("tutti_gpu_memory_allocated_bytes", "Allocator view", registry=self.registry)
        gauge.set_function(allocated_bytes)

    def _counters(self, registry: CollectorRegistry) -> None:
        self.sessions = Counter("tutti_sessions", "Sessions that ended", ["protocol", "outcome"], registry=registry)
        for protocol in PROTOCOLS:
            for outcome in OUTCOMES:
                self.sessions.labels(protocol, outcome)
        self.rejected = Counter("tutti_handshakes_rejected", "Requests refused", ["reason"], registry=registry)
        audio = Counter("tutti_audio_seconds", "Audio received", ["encoding"], registry=registry)
        self.audio_seconds = {name: audio.labels(name) for name in ("linear16", "container")}
        self.audio_bytes = Counter("tutti_audio_bytes_received", "Bytes of audio received", registry=registry)
        results = Counter("tutti_results", "Transcripts sent", ["kind"], registry=registry)
        self.results = {kind: results.labels(kind) for kind in ("interim", "final")}
        endpoints = Counter("tutti_endpoints", "Segments closed", ["reason"], registry=registry)
        self.endpoints = {name: endpoints.labels(name) for name in ("endpoint", "finalize", "close", "max_len")}
        self.batches = Counter("tutti_batches", "Model calls", registry=registry)
        self.batch_rows = Counter("tutti_batch_rows", "Steps in them", registry=registry)
        self.errors = Counter("tutti_errors", "Streams that failed", ["stage"], registry=registry)
        self.slow_consumers = Counter(
            "tutti_slow_consumer_closes", "Connections cut because results were not read", registry=registry
        )

    def _histograms(self, registry: CollectorRegistry, max_batch: int) -> None:
        def seconds(name: str, text: str, buckets: Sequence[float] = LATENCY_S) -> Histogram:
            return Histogram(f"tutti_{name}", text, buckets=buckets, registry=registry)

        latency = Histogram(
            "tutti_result_latency_seconds",
            "Arrival of the last sample that a result needs to the frame written",
            ["kind"],
            buckets=LATENCY_S,
            registry=registry,
        )
        self.result_latency = {kind: latency.labels(kind) for kind in ("interim", "final")}
        self.first_interim = seconds("time_to_first_interim_seconds", "First audio to first non-empty interim")
        self.finalize_latency = seconds(
            "finalize_latency_seconds", "Finalize, end of stream or endpoint to final written"
        )
        self.endpoint_delay = seconds(
            "endpoint_delay_seconds", "Audio from the end of the last word to the endpoint", ENDPOINT_S
        )
        self.queue_wait = seconds("queue_wait_seconds", "Step ready to its batch starting", STAGE_S)
        self.inference = seconds("batch_inference_seconds", "One model step", STAGE_S)
        self.decode = seconds("decode_seconds", "Search and text of one batch", STAGE_S)
        self.handshake = seconds("handshake_seconds", "Request received to 101", STAGE_S)
        self.session_duration = seconds("session_duration_seconds", "Accept to close", SESSION_S)
        self.batch_size = seconds("batch_size", "Rows of a batch", _powers_of_two(max_batch))
        self.realtime_factor = seconds("realtime_factor", "Model time per second of audio, one batch", RATIO)
        self.loop_lag = seconds("event_loop_lag_seconds", "Scheduled wake-up to actual", STAGE_S)
        self.backlog = seconds("audio_backlog_seconds", "Audio received and not yet consumed", BACKLOG_S)

    def exposition(self) -> bytes:
        """Return the Prometheus text format."""
        return generate_latest(self.registry)


def _powers_of_two(largest: int) -> tuple[float, ...]:
    edges = [1.0]
    while edges[-1] < largest:
        edges.append(edges[-1] * 2)
    return tuple(edges)
