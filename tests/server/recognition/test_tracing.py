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


def test_a_stream_or_an_upload_is_one_span_with_an_event_for_each_final(live_server: Start) -> None:
    exporter = InMemorySpanExporter()
    server = live_server(make_session=Tracing(SimpleSpanProcessor(exporter), {"tutti.commit": "test"}).session)
    with server.listen(interim_results="true") as client:
        ids = [client.socket.response.headers["dg-request-id"]]
        client.send(spell("first secret"))
        client.say("Finalize")
        client.until(lambda frame: frame.get("from_finalize", False))
        client.send(spell("second"))
        assert transcript(client.finish()) == "second"
    server.wait_idle()
    with server.listen() as client:
        ids.append(client.socket.response.headers["dg-request-id"])
        client.send(silence(0.2))
        client.vanish()
        server.wait_idle()
    with server.http as http:
        for path in ("/healthz", "/metrics", "/absent"):
            http.get(path)
        body = spell("uploaded").tobytes()
        ids.append(http.post("/v1/listen?encoding=linear16&sample_rate=16000", content=body).headers["dg-request-id"])
    server.wait_idle()
    spans = exporter.get_finished_spans()
    attributes = [dict(span.attributes or {}) for span in spans]
    assert [f"{span.context.trace_id:032x}" for span in spans] == [each.replace("-", "") for each in ids]
    assert [own["tutti.request_id"] for own in attributes] == ids
    assert [own.get("tutti.close_reason") for own in attributes] == ["close_stream", None, "close_stream"]
    assert (attributes[0]["tutti.finals"], attributes[0]["tutti.channels"]) == (len(spans[0].events), 1)
    assert [(event.attributes or {})["words"] for event in spans[0].events][:2] == [2, 1]
    assert [(event.attributes or {})["reason"] for event in spans[0].events] == ["finalize", "close"]
    exported = spans[0].to_json()
    assert not [word for word in ("secret", "first", "second") if word in exported]
    assert json.loads(exported)["resource"]["attributes"]["service.name"] == "tutti"


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
