"""OpenTelemetry traces: one span per stream, one event per final, no transcript text.

Off unless an endpoint is named; needs the extra `otel`. The trace id of a request is its request id without dashes. A
span costs nothing between finals, and there is no cost at all if tracing is off.
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

from model.ctc.interface import Decoder
from model.description import ModelDescription
from server.operations.logs import current_request_id
from server.recognition.events import Final
from server.recognition.messages import EndOfAudio, ReleaseStates
from server.recognition.segments.endpointing import VoiceRules
from server.recognition.session import Session
from server.recognition.session_options import Limits, SessionOptions

CLOSE_TIMEOUT_S = 2.0  # time to send the last spans


class Tracing:
    """Creates traced sessions."""

    def __init__(self, processor: SpanProcessor, resource: Mapping[str, str]) -> None:
        own = Resource.create({"service.name": "tutti", "service.version": version("tutti-asr"), **resource})
        both = own.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        self._provider = TracerProvider(resource=both, id_generator=_RequestIds(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tutti", version("tutti-asr"))

    @classmethod
    def over_http(cls, resource: Mapping[str, str]) -> Tracing:
        """Send spans to the collector of the `OTEL_…` variables."""
        return cls(BatchSpanProcessor(OTLPSpanExporter()), resource)

    def session(
        self,
        options: SessionOptions,
        config: ModelDescription,
        decoder: Decoder,
        limits: Limits,
        voice: VoiceRules | None,
    ) -> Session:
        """Return a traced session; arguments as for `Session`."""
        attributes: dict[str, str | int | bool] = {
            "tutti.request_id": current_request_id() or "",
            "tutti.sample_rate_hz": options.sample_rate,
            "tutti.channels": options.streams,
            "tutti.interim_results": options.partials,
        }
        span = self._tracer.start_span("recognise", kind=SpanKind.SERVER, attributes=attributes)
        return TracedSession(span, options, config, decoder, limits, voice)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the waiting spans, for at most `timeout_s`."""
        shutdown = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        shutdown.start()
        shutdown.join(timeout_s)


class TracedSession(Session):
    """A session that records its finals in a span, without their words."""

    def __init__(self, span: Span, *args: Any) -> None:
        """Take a span, then the arguments of `Session`."""
        super().__init__(*args)
        self._span = span
        self._finals = 0

    def take(self, message: Any) -> list[Any]:
        """As `Session`; the last message ends the span.

        It lacks a close reason if the connection was cut or recognition failed.
        """
        if isinstance(message, ReleaseStates):
            steps = sum(channel.settings.steps_answered for channel in self.channels)
            totals = {"tutti.audio_s": self.audio.received_s, "tutti.steps": steps, "tutti.finals": self._finals}
            self._span.set_attributes(totals)
            self._span.end()
        elif isinstance(message, EndOfAudio):
            self._span.set_attribute("tutti.close_reason", message.reason.value)
        events = super().take(message)
        for event in events:
            if isinstance(event, Final):
                self._finals += 1
                self._span.add_event("final", _facts(event))
        return events


class _RequestIds(RandomIdGenerator):
    """Makes request ids the trace ids."""

    def generate_trace_id(self) -> int:
        """Return the id of the context's request, a random one outside any."""
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
