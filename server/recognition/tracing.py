"""Traces of streams by OpenTelemetry: one span a stream, an event a final, and never a word of what was said.

Off unless an endpoint is named; needs the extra `otel`. The trace of a request bears the request's own name: its id
without the dashes. A span costs nothing while audio flows, and nothing at all where tracing is off.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind

from model.config import ModelConfig
from model.ctc.words import Decoder
from server.errors import CloseReason
from server.operations.logs import current_request_id
from server.recognition.events import Event, Final
from server.recognition.segmenter import Segmenter
from server.recognition.session import Limits, Session, SessionOptions
from server.recognition.steps import StepTag, Work

CLOSE_TIMEOUT_S = 2.0  # for the last spans to be sent


class Tracing:
    """Makes sessions that are traced."""

    def __init__(self, processor: SpanProcessor, resource: Mapping[str, str]) -> None:
        ours = Resource.create({"service.name": "tutti", "service.version": version("tutti-asr"), **resource})
        theirs = OTELResourceDetector().detect()  # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        self._provider = TracerProvider(resource=ours.merge(theirs), id_generator=_RequestIds(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tutti", version("tutti-asr"))

    @classmethod
    def over_http(cls, endpoint: str | None, resource: Mapping[str, str]) -> Tracing:
        """Send spans to a collector: `endpoint` without its path, None: as the `OTEL_…` variables say."""
        url = None if endpoint is None else endpoint.rstrip("/") + "/v1/traces"
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)), resource)

    def session(
        self, options: SessionOptions, config: ModelConfig, decoder: Decoder, limits: Limits, window_samples: int | None
    ) -> Session:
        """Make a session, as `Session` does."""
        attributes: dict[str, str | int | bool] = {
            "tutti.request_id": current_request_id() or "",
            "tutti.sample_rate_hz": options.sample_rate,
            "tutti.channels": options.streams,
            "tutti.interim_results": options.partials,
        }
        span = self._tracer.start_span("recognise", kind=SpanKind.SERVER, attributes=attributes)
        return TracedSession(span, options, config, decoder, limits, window_samples)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what waits, if the collector takes it within so long."""
        last = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        last.start()
        last.join(timeout_s)


class TracedSession(Session):
    """A session that tells its span what it says, but for the words."""

    def __init__(self, span: Span, *args: Any) -> None:
        """Take the span and what a `Session` takes."""
        super().__init__(*args)
        self._span = span
        self._finals = 0

    def decoded(self, channel: Segmenter, tag: StepTag) -> list[Event]:
        """As `Session`."""
        return self._told(super().decoded(channel, tag))

    def finalize(self, channel: int | None, now: float) -> tuple[list[Work], list[Event]]:
        """As `Session`."""
        work, events = super().finalize(channel, now)
        return work, self._told(events)

    def close(self, reason: CloseReason, now: float) -> tuple[list[Work], list[Event]]:
        """As `Session`."""
        self._span.set_attribute("tutti.close_reason", reason.value)
        work, events = super().close(reason, now)
        return work, self._told(events)

    def release(self) -> None:
        """As `Session`; nothing follows it. Without a close reason the connection was cut, or recognition failed."""
        totals = {"tutti.audio_s": self.audio_s, "tutti.steps": self.steps, "tutti.finals": self._finals}
        self._span.set_attributes(totals)
        self._span.end()
        super().release()

    def _told(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, Final):
                self._finals += 1
                self._span.add_event("final", _facts(event))
        return events


class _RequestIds(RandomIdGenerator):
    """Trace ids that are request ids."""

    def generate_trace_id(self) -> int:
        """Take the id of the context's request."""
        request_id = current_request_id()
        return super().generate_trace_id() if request_id is None else uuid.UUID(request_id).int


def _facts(final: Final) -> dict[str, str | int | float]:
    return {
        "channel": final.channel,
        "start_s": final.start_s,
        "duration_s": final.duration_s,
        "words": len(final.words),
        "reason": final.reason.value,
    }
