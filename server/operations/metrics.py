"""Prometheus metrics: one registry per app, without labels for session, address or text; for keys: `KeyMetrics`.

Metrics of a model's batches have its name in the label `model`, see `ModelMetrics`. Intervals are measured by the
process's monotonic clock. Source: Prometheus, "Metric and label naming".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from server.audio.formats import Encoding
from server.errors import TicketCode
from server.operations.loop_metrics import (
    Counters,
    Gauges,
    Histograms,
    LoopCounter,
    LoopGauge,
    LoopHistogram,
    counter,
    histogram,
)

# Quantiles are exact only at bucket edges, so each latency objective is an edge.
LATENCY_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
STAGE_S = (0.0002, 0.0005, 0.001, 0.002, *LATENCY_S)  # stages are shorter than the total latency
SESSION_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0)
BACKLOG_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
ENDPOINT_S = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
DELAY_S = (*ENDPOINT_S[:8], 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)  # of words
RATIO = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
OUTCOMES = ("completed", "client_abort", "idle_timeout", "error", "drained")
REASONS = ("auth", "quota", "rate", "capacity", "uploads", "draining", "bad_request", "error")
FALLBACKS = ("full", "late", "failed", "repeated", "empty")  # of a second pass
FORK_OUTCOMES = ("done", "refused", "failed")
CALLBACK_OUTCOMES = ("delivered", "retried", "failed", "refused")
VOICE_OUTCOMES = ("marked", "left_out")
TURN_RESULTS = ("answered", "late", "refused", "failed")
STAGES = ("step", "decode", "vad", "speakers", "engine")
LIVE = ("deepgram", "flux", "vosk", "openai", "twilio", "wyoming", "audiosocket", "freeswitch")
PROTOCOLS = (*LIVE, "upload")
OTHER_KEYS = "other"
Family = TypeVar("Family")


class Combine(Enum):
    """How a gauge of several processes becomes one of the service; counters and histograms are always summed."""

    SUM = auto()
    LARGEST = auto()
    SMALLEST = auto()
    ONE = auto()  # that of the first process: constants, of which a second series would spoil a join


GAUGES = {
    # Each process has a part.
    "tutti_sessions_active": Combine.SUM,
    "tutti_sessions_draining": Combine.SUM,
    "tutti_uploads_active": Combine.SUM,
    "tutti_callbacks_waiting": Combine.SUM,
    "tutti_event_loop_tasks": Combine.SUM,
    "tutti_gpu_memory_allocated_bytes": Combine.SUM,
    "tutti_state_pool_slots_used": Combine.SUM,
    "tutti_second_decode_queue": Combine.SUM,
    "tutti_resting_channels": Combine.SUM,
    "process_virtual_memory_bytes": Combine.SUM,
    "process_resident_memory_bytes": Combine.SUM,  # pages that processes share count once for each
    "process_open_fds": Combine.SUM,
    "process_max_fds": Combine.SUM,
    # Each process shows the whole: limits and estimates of the service, states of the engine.
    "tutti_sessions_max": Combine.LARGEST,
    "tutti_estimated_session_capacity": Combine.LARGEST,
    "tutti_model_session_capacity": Combine.LARGEST,
    "tutti_reserved_sessions": Combine.LARGEST,
    "tutti_slowdown_ratio": Combine.LARGEST,
    "tutti_state_pool_slots": Combine.LARGEST,
    "tutti_uploads_wait": Combine.LARGEST,
    "tutti_batch_queue_depth": Combine.LARGEST,
    # The service is as ready as the least ready process, and as old as the oldest.
    "tutti_ready": Combine.SMALLEST,
    "process_start_time_seconds": Combine.SMALLEST,
    "tutti_build_info": Combine.ONE,
    "python_info": Combine.ONE,
}
"""Every gauge; with one process it has no effect. A test checks that none is missing."""


def process_registry() -> CollectorRegistry:
    """Return a registry with the metrics of this process alone: memory, descriptors, processor time, Python."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # an unused second series per counter
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def processes_lost(registry: CollectorRegistry) -> Counter:
    """Return the counter of processes of this server that ended unexpectedly, by kind; 0 with one process."""
    lost = Counter("tutti_processes_lost", "Processes that ended unexpectedly", ["process"], registry=registry)
    for process in ("front_end", "engine_host"):
        lost.labels(process)
    return lost


class Metrics:
    """All metrics of the app. Labeled children are created once, because looking them up costs more than counting."""

    def __init__(self, max_batch: int, max_streams: int) -> None:
        """`max_streams` is the number of slots of each model."""
        self._max_batch, self._max_streams = max_batch, max_streams
        self.registry = registry = process_registry()
        self._gauges(registry)
        self._counters(registry)
        self._histograms(registry)
        self._of_models: dict[str, Any] = {}

    def of_model(self, name: str) -> ModelMetrics:
        """Return the metrics of one model; its series exist from now on."""
        slots, max_batch = self._max_streams, self._max_batch
        return ModelMetrics(self.registry, self._of_models, name, slots=slots, max_batch=max_batch, errors=self.errors)

    def _gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tutti_{name}", text, labels, registry=registry)

        active = gauge("sessions_active", "Channels of open live streams, without uploads", "protocol")
        self.sessions_active = {name: active.labels(name) for name in LIVE}
        self.sessions_max = gauge("sessions_max", "Limit of channels of live streams that do not rest")
        within = "Estimated number of channels within the latency objective"
        self.estimated_capacity = gauge("estimated_session_capacity", within)
        self.sessions_draining = gauge("sessions_draining", "Channels open while draining")
        self.uploads_active = gauge("uploads_active", "Uploads in progress", "stage")
        self.callbacks_waiting = gauge("callbacks_waiting", "Results that are not delivered to their callbacks yet")
        self.ready = gauge("ready", "1 when /readyz answers 200")
        self.loop_tasks = gauge("event_loop_tasks", "Tasks of the event loop")
        self.gpu_memory = gauge("gpu_memory_allocated_bytes", "GPU memory allocated by torch")
        self.build_info = gauge("build_info", "Constant 1", "version", "commit", "model", "device")

    def _counters(self, registry: CollectorRegistry) -> None:
        def count(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tutti_{name}", text, labels, registry=registry)

        def by(name: str, text: str, label: str, values: Iterable[str]) -> tuple[Counter, dict[str, Counter]]:
            """Return a counter, and its children for these values of a label, which are exported from the start."""
            counted = count(name, text, label)
            return counted, {value: counted.labels(value) for value in values}

        self.sessions = count("sessions", "Ended calls", "protocol", "outcome")
        for protocol in PROTOCOLS:
            for outcome in OUTCOMES:
                self.sessions.labels(protocol, outcome)
        self.rejected, _ = by("handshakes_rejected", "Requests refused", "reason", REASONS)
        audio = Counters(registry, "tutti_audio_seconds", "Audio received", "encoding")
        self.audio_seconds = {name: audio.labels(name) for name in Encoding}
        self.audio_bytes = counter(registry, "tutti_audio_bytes_received", "Bytes of audio received")
        losses = count("audio_losses", "Audio losses that were repaired", "kind")
        self.audio_concealed, self.audio_resyncs = losses.labels("concealed_packet"), losses.labels("resynchronized")
        results = Counters(registry, "tutti_results", "Transcripts sent", "kind")
        self.results = {kind: results.labels(kind) for kind in ("interim", "final")}
        _, self.endpoints = by("endpoints", "Segments closed", "reason", ("endpoint", "finalize", "close", "max_len"))
        self.errors, _ = by("errors", "Streams that failed", "stage", STAGES)
        processes_lost(registry)
        self.log_lines_lost = count("log_lines_lost", "Log lines that could not be written")
        self.usage_records_lost = count("usage_records_lost", "Usage records that could not be written")
        self.descriptor_shortages = count("file_descriptor_shortages", "Checks that found no free file descriptor")
        self.tickets = count("resume_tickets", "Tickets sent to resumable streams")
        outcomes = ("resumed", "replayed", *TicketCode)
        self.resumes, _ = by("resumes", "Attempts to resume a stream", "outcome", outcomes)
        _, self.skipped = by("messages_skipped", "Client messages that were not understood", "protocol", LIVE)
        differing = "Words of ended turns that the stream itself recognized otherwise afterwards"
        self.turn_words_differing = count("turn_words_differing", differing)
        _, self.turn_questions = by("turn_questions", "Questions to the turn model", "result", TURN_RESULTS)
        _, self.callbacks = by("callbacks", "Results for callbacks, and failed tries", "outcome", CALLBACK_OUTCOMES)
        self.slow_consumers = count("slow_consumer_closes", "Connections closed because results were not read")

    def _histograms(self, registry: CollectorRegistry) -> None:
        def add(name: str, text: str, edges: Sequence[float] = LATENCY_S) -> LoopHistogram:
            return histogram(registry, f"tutti_{name}", text, edges)

        self.first_interim = add("time_to_first_interim_seconds", "First audio to first non-empty interim")
        self.finalize_latency = add("finalize_latency_seconds", "Finalize, end of stream or endpoint to final written")
        self.endpoint_delay = add(
            "endpoint_delay_seconds", "Audio from the end of the last word to the endpoint", ENDPOINT_S
        )
        self.time_to_final = add(
            "time_to_final_seconds", "Arrival of the audio of a final's last word to the final written", DELAY_S
        )
        delays = Histograms(
            registry,
            "tutti_word_delay_seconds",
            "Arrival of the audio of a word's end to the message that shows it, marks it stable, or has it in a final",
            DELAY_S,
            "kind",
        )
        self.word_delay = {kind: delays.labels(kind) for kind in ("shown", "stable", "final")}
        self.handshake = add("handshake_seconds", "Request received to 101", STAGE_S)
        self.session_duration = add("session_duration_seconds", "Accept to close", SESSION_S)
        self.loop_lag = add("event_loop_lag_seconds", "Scheduled wake-up to actual", STAGE_S)
        self.backlog = add("audio_backlog_seconds", "Audio received and not yet consumed", BACKLOG_S)
        latencies = Histograms(
            registry,
            "tutti_result_latency_seconds",
            "Arrival of the last sample that a result needs to the frame written",
            LATENCY_S,
            "kind",
        )
        self.result_latency = {kind: latencies.labels(kind) for kind in ("interim", "final")}
        self.write = add("write_seconds", "Result decoded to its frame written", STAGE_S)

    def exposition(self) -> bytes:
        """Return the Prometheus text format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """The series of one model. `errors` is a counter shared by all models.

    The latency of a result is the sum of consecutive stages, apart from splitting audio into steps: queue wait,
    inference, handover, decoding, writing. The first is recorded per step, the last per frame for all models together,
    the others per batch.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        families: dict[str, Any],
        name: str,
        *,
        slots: int,
        max_batch: int,
        errors: Counter,
    ) -> None:
        """`families`: the metrics of all models by name, which the first model makes."""

        def once(metric: str, make: Callable[[str], Family]) -> Family:
            if metric not in families:
                families[metric] = make(f"tutti_{metric}")
            family: Family = families[metric]
            return family

        def gauge(metric: str, text: str) -> Gauge:
            return once(metric, lambda full: Gauge(full, text, ["model"], registry=registry)).labels(name)

        def loop_gauge(metric: str, text: str) -> LoopGauge:
            return once(metric, lambda full: Gauges(registry, full, text, "model")).labels(name)

        def loop_counter(metric: str, text: str) -> LoopCounter:
            return once(metric, lambda full: Counters(registry, full, text, "model")).labels(name)

        def add(metric: str, text: str, edges: Sequence[float] = STAGE_S) -> LoopHistogram:
            return once(metric, lambda full: Histograms(registry, full, text, edges, "model")).labels(name)

        def by(metric: str, text: str, label: str, values: Iterable[str]) -> dict[str, Counter]:
            counted = once(metric, lambda full: Counter(full, text, ["model", label], registry=registry))
            return {value: counted.labels(name, value) for value in values}

        self.capacity = gauge("model_session_capacity", "Estimated number of channels if no other model had any")
        late = "Channels subtracted from the estimate because steps are late or were late in the last minutes"
        self.reserved = gauge("reserved_sessions", late)
        self.slowdown = gauge("slowdown_ratio", "Batch time relative to the warm-up")
        self.uploads_wait = loop_gauge("uploads_wait", "1 while uploads wait for late live steps")
        self.queue_depth = loop_gauge("batch_queue_depth", "Ready steps waiting for a batch")
        self.slots_used = gauge("state_pool_slots_used", "Recurrent-state slots of streams that do not rest")
        gauge("state_pool_slots", "Recurrent-state slots").set(slots)
        self.resting = loop_gauge("resting_channels", "Channels of live streams at rest: silent, not computed")
        rested = "Steps of silence that were answered without computing them"
        self.rested_steps = loop_counter("rested_steps", rested)
        self.batches = loop_counter("batches", "Model calls")
        self.batch_rows = loop_counter("batch_rows", "Steps in model calls")
        self.batch_size = add("batch_size", "Rows per batch", _powers_of_two(max_batch))
        self.realtime_factor = add("realtime_factor", "Model time per second of audio, one batch", RATIO)
        self.queue_wait = add("queue_wait_seconds", "Step ready to start of its batch")
        self.inference = add("batch_inference_seconds", "Model call of one batch")
        self.handover = add("handover_seconds", "Outputs of a batch ready to start of their decoding")
        self.decode = add("decode_seconds", "Decoding of one batch to text")
        self.second_queue = gauge("second_decode_queue", "Finished segments waiting for their second pass")
        self.second_wait = add("second_decode_wait_seconds", "End of a segment to the start of its second pass")
        self.second_decode = add("second_decode_seconds", "Second pass of one segment")
        failed = "Segments whose second pass failed, so the first pass's text was sent"
        self.second_failures = once(
            "second_decode_failures", lambda full: Counter(full, failed, ["model"], registry=registry)
        ).labels(name)
        fallback = "Finals with the first pass's text because `second_pass` gave none in time, or none to use"
        self.second_fallbacks = by("second_decode_fallbacks", fallback, "reason", FALLBACKS)
        forks = "Forks of streams in pauses; refused: no slot was spare"
        self.forks = by("forks", forks, "outcome", FORK_OUTCOMES)
        others = "Words by other voices than the one that a stream listens to: marked, or left out of its results"
        self.other_voice_words = by("other_voice_words", others, "outcome", VOICE_OUTCOMES)
        self.errors = errors
        self.failed_steps = 0  # of stage "step", for the watchdog: a Counter can only be read by collecting it

    def gone(self) -> None:
        """Set the gauges of an unloaded model to 0; counters keep their values."""
        for gauge in (self.capacity, self.reserved, self.slowdown):
            gauge.set_function(_zero)

    def step_failed(self) -> None:
        """Count a stream that failed in the model's step."""
        self.errors.labels("step").inc()
        self.failed_steps += 1


def _zero() -> float:
    return 0.0


def _powers_of_two(largest: int) -> tuple[float, ...]:
    edges = [1.0]
    while edges[-1] < largest:
        edges.append(edges[-1] * 2)
    return tuple(edges)


class KeyMetrics:
    """Counters by the name of an API key, else its id; off unless an operator asks for them.

    Keys beyond `limit` count together as `other`.
    """

    def __init__(self, registry: CollectorRegistry, limit: int) -> None:
        self._limit = limit
        self._keys = {OTHER_KEYS}
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
        name = key or OTHER_KEYS
        if name not in self._keys and len(self._keys) <= self._limit:
            self._keys.add(name)
        return name if name in self._keys else OTHER_KEYS
