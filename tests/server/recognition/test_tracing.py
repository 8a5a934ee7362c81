"""Spans: one a stream, one in it for each final, the caller's trace or the request's id, no transcript text."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs
from websockets.sync.client import connect

from server.recognition.tracing import Tracing
from server.serve import open_tracing
from server.settings import Settings
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import silence, spell

Start = Callable[..., LiveServer]


def streams_of(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    """Return the finished spans of streams and uploads."""
    return [span for span in exporter.get_finished_spans() if span.name != "final"]


def test_a_stream_or_an_upload_is_one_span_with_one_for_each_final(live_server: Start) -> None:
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
    spans = streams_of(exporter)
    attributes = [dict(span.attributes or {}) for span in spans]
    assert [f"{span.context.trace_id:032x}" for span in spans] == [each.replace("-", "") for each in ids]
    assert [own["tutti.request_id"] for own in attributes] == ids
    assert [own.get("tutti.close_reason") for own in attributes] == ["close_stream", None, "close_stream"]
    finals = [span for span in exporter.get_finished_spans() if span.parent and span.parent == spans[0].context]
    assert (attributes[0]["tutti.finals"], attributes[0]["tutti.channels"]) == (len(finals), 1)
    assert [(span.attributes or {})["tutti.words"] for span in finals] == [2, 1]
    assert [(span.attributes or {})["tutti.reason"] for span in finals] == ["finalize", "close"]
    for span in finals:
        stages = dict(span.attributes or {})
        names = ("queue", "model", "handover", "decode", "send")
        total_s = sum(float(str(stages[f"tutti.{name}_s"])) for name in names)
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(total_s, abs=1e-3)  # type: ignore[operator]
        assert stages["tutti.send_s"] > 0  # type: ignore[operator]
    assert attributes[0]["gen_ai.operation.name"] == "transcribe"
    assert spans[0].name == f"transcribe {attributes[0]['gen_ai.response.model']}" == "transcribe spelling"
    exported = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert not [word for word in ("secret", "first", "second") if word in exported]
    assert json.loads(spans[0].to_json())["resource"]["attributes"]["service.name"] == "tutti"


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("path", ["/v1/listen", "/v2/listen", "/vosk", "/v1/realtime"])
def test_the_callers_span_is_the_parent_by_header_or_by_query(live_server: Start, path: str) -> None:
    exporter = InMemorySpanExporter()
    server = live_server(make_session=Tracing(SimpleSpanProcessor(exporter), {}).session)
    queries = {
        "/v1/listen": "encoding=linear16&sample_rate=16000",
        "/v2/listen": "model=flux-general-en&encoding=linear16&sample_rate=16000",
        "/vosk": "sample_rate=16000",
        "/v1/realtime": "intent=transcription",
    }
    ways: tuple[tuple[str, dict[str, str]], ...] = (
        ("", {"traceparent": PARENT, "tracestate": "a=b"}),
        (f"&traceparent={PARENT}&tracestate=a%3Db", {}),
        ("&traceparent=nonsense", {}),
    )
    for query, headers in ways:
        url = f"ws://{server.host}{path}?{queries[path]}{query}"
        with connect(url, additional_headers=headers, compression=None, open_timeout=WAIT_S) as socket:
            assert socket.response is not None
            assert "x-ignored-params" not in socket.response.headers
        server.wait_idle()
    by_header, by_query, other = streams_of(exporter)
    for span in (by_header, by_query):
        assert span.parent is not None
        assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == tuple(PARENT.split("-")[1:3])
        assert span.parent.trace_state.get("a") == "b"
    assert other.parent is None
    assert f"{other.context.trace_id:032x}" == str((other.attributes or {})["tutti.request_id"]).replace("-", "")


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
    spans = message.resource_spans[0].scope_spans[0].spans
    assert sorted(span.name for span in spans) == ["final", "transcribe spelling"]
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
