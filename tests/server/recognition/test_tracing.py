"""Spans: one a stream, an event a final, the request's id, no transcript text."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from server.recognition.tracing import Tracing
from server.serve import open_tracing
from server.settings import Settings
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.spelling import silence, spell

Start = Callable[..., LiveServer]


@pytest.fixture
def traced(live_server: Start) -> tuple[LiveServer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter), {"tutti.commit": "test"})
    return live_server(make_session=tracing.session), exporter


def test_a_stream_is_one_span_with_an_event_for_each_final(traced: tuple[LiveServer, InMemorySpanExporter]) -> None:
    server, exporter = traced
    with server.listen(interim_results="true") as client:
        given = client.socket.response.headers["dg-request-id"]
        client.send(spell("first secret"))
        client.say("Finalize")
        client.until(lambda frame: frame.get("from_finalize", False))
        client.send(spell("second"))
        frames = client.finish()
    assert transcript(frames) == "second"
    server.wait_idle()
    (span,) = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == given.replace("-", "")
    assert span.name == "recognise"
    attributes = dict(span.attributes or {})
    assert attributes["tutti.request_id"] == given
    assert attributes["tutti.close_reason"] == "close_stream"
    assert (attributes["tutti.finals"], attributes["tutti.channels"]) == (len(span.events), 1)
    assert [(event.attributes or {})["words"] for event in span.events][:2] == [2, 1]
    assert [(event.attributes or {})["reason"] for event in span.events] == ["finalize", "close"]
    exported = span.to_json()
    assert not [word for word in ("secret", "first", "second") if word in exported]
    assert json.loads(exported)["resource"]["attributes"]["service.name"] == "tutti"


def test_messages_make_no_spans_and_uploads_make_one(traced: tuple[LiveServer, InMemorySpanExporter]) -> None:
    server, exporter = traced
    with server.http as http:
        for path in ("/healthz", "/metrics", "/absent"):
            http.get(path)
        body = spell("uploaded").tobytes()
        upload = http.post("/v1/listen?encoding=linear16&sample_rate=16000", content=body)
    server.wait_idle()
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["tutti.request_id"] == upload.headers["dg-request-id"]


def test_a_client_that_vanishes_ends_its_span_without_a_reason(
    traced: tuple[LiveServer, InMemorySpanExporter],
) -> None:
    server, exporter = traced
    with server.listen() as client:
        client.send(silence(0.2))
        client.vanish()
        server.wait_idle()
    (span,) = exporter.get_finished_spans()
    assert "tutti.close_reason" not in (span.attributes or {})


class Collector(HTTPServer):
    """Receives spans over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Takes)
        self.taken: list[tuple[str, Any]] = []
        self.came = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Takes(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        message = ExportTraceServiceRequest()
        message.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.taken.append((self.path, message))
        self.server.came.set()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_spans_reach_a_collector_over_http(live_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        tracing = open_tracing(Settings(), os.environ)
        assert tracing is not None
        server = live_server(make_session=tracing.session)
        with server.listen() as client:
            client.send(spell("over http"))
            client.finish()
        server.wait_idle()
        tracing.close(WAIT_S)
        assert collector.came.wait(WAIT_S)
        collector.shutdown()
    ((path, message),) = collector.taken
    assert path == "/v1/traces"
    (span,) = message.resource_spans[0].scope_spans[0].spans
    assert [event.name for event in span.events] == ["final"]
    assert b"over http" not in message.SerializeToString()


def test_a_collector_that_is_not_there_holds_nothing_up(live_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracing = open_tracing(Settings(), os.environ)
    assert tracing is not None
    server = live_server(make_session=tracing.session)
    with server.listen() as client:
        client.send(spell("alone"))
        assert transcript(client.finish()) == "alone"
    tracing.close(0.5)


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_it_is_off_unless_an_endpoint_is_named(environment: dict[str, str], *, on: bool) -> None:
    tracing = open_tracing(Settings(), environment)
    assert (tracing is not None) is on
    if tracing is not None:
        tracing.close(0.0)


def test_without_the_extra_an_endpoint_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "server.recognition.tracing", None)
    with capture_logs() as lines:
        assert open_tracing(Settings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) is None
    assert "[otel]" in lines[0]["needed"]
