"""OpenTelemetry traces: one span per stream, one in it per final, no transcript text.

Off unless an endpoint is named; needs the extra `otel`. The parent of a stream's span is the caller's, by W3C's
`traceparent`; without one the trace id is the request id without dashes. A span costs nothing between finals, and there
is no cost at all if tracing is off. Names that begin with `gen_ai` are of OpenTelemetry's conventions for GenAI.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from model.ctc.interface import Decoder
from model.description import ModelDescription
from server.operations.logs import caller_trace, current_request_id
from server.recognition.active_session import EventSink
from server.recognition.events import Event, Final, StepTiming
from server.recognition.messages import EndOfAudio, ReleaseStates
from server.recognition.segments.endpointing import VoiceRules
from server.recognition.session import Session
from server.recognition.session_options import Limits, SessionOptions

OPERATION = "transcribe"
_CALLERS = TraceContextTextMapPropagator()
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
            "gen_ai.operation.name": OPERATION,
            "gen_ai.provider.name": "tutti",
            "gen_ai.output.type": "text",
            "gen_ai.response.model": config.name,
            "tutti.request_id": current_request_id() or "",
            "tutti.sample_rate_hz": options.sample_rate,
            "tutti.channels": options.streams,
            "tutti.interim_results": options.partials,
        }
        name, parent = f"{OPERATION} {config.name}", _CALLERS.extract(caller_trace())
        span = self._tracer.start_span(name, parent, kind=SpanKind.SERVER, attributes=attributes)
        return TracedSession(self._tracer, span, options, config, decoder, limits, voice)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the waiting spans, for at most `timeout_s`."""
        shutdown = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        shutdown.start()
        shutdown.join(timeout_s)


class TracedSession(Session):
    """A session that records its finals in spans, without their words."""

    def __init__(self, tracer: Tracer, span: Span, *args: Any) -> None:
        """Take the stream's span, then the arguments of `Session`."""
        super().__init__(*args)
        self._tracer = tracer
        self._span = span
        self._finals = 0

    def watched(self, sink: EventSink) -> EventSink:
        """Return a sink that records the finals on their way to this one."""
        return _TracedSink(self, sink)

    def count(self, finals: int) -> None:
        """Count finals that are about to be sent."""
        self._finals += finals

    def final_sent(self, final: Final, timing: StepTiming | None, begun_ns: int, sent_ns: int) -> None:
        """Record a final as a span, from the arrival of its audio until it was sent; times are of the wall clock."""
        facts, before_s = _facts(final), 0.0
        if timing is not None:
            stages = {
                "queue": timing.queue_wait_s,
                "model": timing.step_s,
                "handover": timing.handover_s,
                "decode": timing.decode_s,
            }
            before_s = sum(stages.values())
            facts |= {f"tutti.{name}_s": seconds for name, seconds in stages.items()}
        facts["tutti.send_s"] = (sent_ns - begun_ns) / 1e9
        within = set_span_in_context(self._span, Context())
        start_ns = begun_ns - round(before_s * 1e9)
        self._tracer.start_span("final", within, attributes=facts, start_time=start_ns).end(sent_ns)

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
        return super().take(message)


class _TracedSink:
    """Passes events on, and records the finals among them."""

    def __init__(self, session: TracedSession, sink: EventSink) -> None:
        self._session = session
        self._sink = sink

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Pass events on."""
        finals = [event for event in events if isinstance(event, Final)]
        self._session.count(len(finals))  # before the last of them ends the stream
        begun_ns = time.time_ns()
        self._sink.on_events(events, timing)
        for final in finals:
            self._session.final_sent(final, timing, begun_ns, time.time_ns())


class _RequestIds(RandomIdGenerator):
    """Makes request ids the trace ids."""

    def generate_trace_id(self) -> int:
        """Return the id of the context's request, a random one outside any."""
        request_id = current_request_id()
        return super().generate_trace_id() if request_id is None else uuid.UUID(request_id).int


def _facts(final: Final) -> dict[str, str | int | float]:
    return {
        "tutti.channel": final.channel,
        "tutti.start_s": final.start_s,
        "tutti.duration_s": final.duration_s,
        "tutti.words": len(final.words),
        "tutti.reason": final.reason.value,
    }
