"""The documented metrics: every name, type and label, a bucket edge at each objective, and counted values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.audio.speech import ROOT
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import spell

Start = Callable[..., LiveServer]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "tutti.json"

TABLE: dict[str, tuple[str, set[str]]] = {
    "tutti_sessions_active": ("gauge", {"protocol"}),
    "tutti_sessions_max": ("gauge", set()),
    "tutti_sessions_draining": ("gauge", set()),
    "tutti_estimated_session_capacity": ("gauge", set()),
    "tutti_model_session_capacity": ("gauge", {"model"}),
    "tutti_reserved_sessions": ("gauge", {"model"}),
    "tutti_slowdown_ratio": ("gauge", {"model"}),
    "tutti_uploads_wait": ("gauge", {"model"}),
    "tutti_batch_queue_depth": ("gauge", {"model"}),
    "tutti_ready": ("gauge", set()),
    "tutti_state_pool_slots_used": ("gauge", {"model"}),
    "tutti_state_pool_slots": ("gauge", {"model"}),
    "tutti_gpu_memory_allocated_bytes": ("gauge", set()),
    "tutti_build_info": ("gauge", {"version", "commit", "model", "device"}),
    "tutti_sessions": ("counter", {"protocol", "outcome"}),
    "tutti_handshakes_rejected": ("counter", {"reason"}),
    "tutti_audio_seconds": ("counter", {"encoding"}),
    "tutti_audio_bytes_received": ("counter", set()),
    "tutti_audio_losses": ("counter", {"kind"}),
    "tutti_results": ("counter", {"kind"}),
    "tutti_endpoints": ("counter", {"reason"}),
    "tutti_batches": ("counter", {"model"}),
    "tutti_batch_rows": ("counter", {"model"}),
    "tutti_errors": ("counter", {"stage"}),
    "tutti_slow_consumer_closes": ("counter", set()),
    "tutti_messages_skipped": ("counter", {"protocol"}),
    "tutti_log_lines_lost": ("counter", set()),
    "tutti_usage_records_lost": ("counter", set()),
    "tutti_callbacks": ("counter", {"outcome"}),
    "tutti_callbacks_waiting": ("gauge", set()),
    "tutti_file_descriptor_shortages": ("counter", set()),
    "tutti_result_latency_seconds": ("histogram", {"kind"}),
    "tutti_time_to_first_interim_seconds": ("histogram", set()),
    "tutti_finalize_latency_seconds": ("histogram", set()),
    "tutti_time_to_final_seconds": ("histogram", set()),
    "tutti_word_delay_seconds": ("histogram", {"kind"}),
    "tutti_queue_wait_seconds": ("histogram", {"model"}),
    "tutti_batch_inference_seconds": ("histogram", {"model"}),
    "tutti_handover_seconds": ("histogram", {"model"}),
    "tutti_decode_seconds": ("histogram", {"model"}),
    "tutti_second_decode_seconds": ("histogram", {"model"}),
    "tutti_second_decode_wait_seconds": ("histogram", {"model"}),
    "tutti_second_decode_queue": ("gauge", {"model"}),
    "tutti_second_decode_failures": ("counter", {"model"}),
    "tutti_second_decode_fallbacks": ("counter", {"model", "reason"}),
    "tutti_forks": ("counter", {"model", "outcome"}),
    "tutti_resting_channels": ("gauge", {"model"}),
    "tutti_rested_steps": ("counter", {"model"}),
    "tutti_turn_words_differing": ("counter", set()),
    "tutti_handshake_seconds": ("histogram", set()),
    "tutti_session_duration_seconds": ("histogram", set()),
    "tutti_batch_size": ("histogram", {"model"}),
    "tutti_realtime_factor": ("histogram", {"model"}),
    "tutti_event_loop_lag_seconds": ("histogram", set()),
    "tutti_audio_backlog_seconds": ("histogram", set()),
    "process_resident_memory_bytes": ("gauge", set()),
    "process_open_fds": ("gauge", set()),
}
"""All metrics of the server; counters without the suffix `_total` of the text format."""
VALUES = {
    ("tutti_sessions", "outcome"): {"completed", "client_abort", "idle_timeout", "error", "drained"},
    ("tutti_handshakes_rejected", "reason"): {"auth", "quota", "capacity", "draining", "bad_request"},
    ("tutti_audio_losses", "kind"): {"concealed_packet", "resynchronized"},
    ("tutti_results", "kind"): {"interim", "final"},
    ("tutti_result_latency_seconds", "kind"): {"interim", "final"},
    ("tutti_word_delay_seconds", "kind"): {"shown", "stable", "final"},
}
FREE_LABELS = {"session", "request_id", "key", "address", "ip", "text", "path"}
LATENCY_EDGES = {"0.005", "0.01", "0.02", "0.03", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5", "0.75", "1.0"}


def families(server: LiveServer) -> dict[str, Any]:
    with server.http as http:
        return {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}


def test_a_fresh_replica_exposes_the_whole_table(live_server: Start) -> None:
    found = families(live_server())
    assert set(TABLE) <= set(found)
    for name, (kind, labels) in TABLE.items():
        family = found[name]
        assert family.type == kind, name
        assert family.samples, f"{name} has no initial value: dashboards would show a gap"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, name
    for (name, label), values in VALUES.items():
        assert values <= {sample.labels[label] for sample in found[name].samples}, name
    for family in found.values():
        assert not any(FREE_LABELS & set(sample.labels) for sample in family.samples), family.name


NO_UNIT = {"tutti_batch_size", "tutti_realtime_factor"}  # rows, and a ratio
OTHER_UNITS = re.compile(r"_(?:ms|us|ns|s|sec|secs|msec|milliseconds|minutes|hours|kb|mb|kib|mib|percent|pct)(?:_|$)")
OF_SAMPLES = ("_total", "_count", "_sum", "_bucket", "_created")  # series suffixes of the text format
MEASURED = re.compile(r"latency|duration|delay|_lag|memory|time_to|_bytes")


def test_every_metric_of_the_dashboard_is_exposed(live_server: Start) -> None:
    names = re.findall(r"\b(?:tutti|process|python)_\w+", DASHBOARD.read_text())
    assert len(names) > 40
    exposed = {sample.name for family in families(live_server()).values() for sample in family.samples}
    assert not set(names) - exposed


def test_every_metric_is_named_by_prometheus_conventions(live_server: Start) -> None:
    """Source: Prometheus, "Metric and label naming"."""
    server = live_server()
    found = list(server.replica.metrics.registry.collect())
    assert len(found) > 50
    for family in found:
        name = family.name  # a counter's name has no suffix
        assert re.fullmatch(r"(?:tutti|process|python)(?:_[a-z0-9]+)+", name), name
        assert not OTHER_UNITS.search(name), f"{name}: use seconds and bytes, unabbreviated"
        assert not name.endswith(OF_SAMPLES), f"{name}: a {family.type} with the suffix of another type"
        assert family.type != "counter" or all(s.name == f"{name}_total" for s in family.samples), name
        assert family.type != "histogram" or name.endswith("_seconds") or name in NO_UNIT, (
            f"{name}: the unit is missing"
        )
        assert not MEASURED.search(name) or {"seconds", "bytes"} & set(name.split("_")), f"{name}: the unit is missing"
        assert family.documentation, f"{name} has no help"


@pytest.mark.parametrize("name", ["result_latency", "finalize_latency", "time_to_first_interim"])
def test_quantiles_are_exact_at_every_objective(live_server: Start, name: str) -> None:
    samples = families(live_server())[f"tutti_{name}_seconds"].samples
    assert {sample.labels["le"] for sample in samples if "le" in sample.labels} >= LATENCY_EDGES


def test_one_stream_is_counted_in_every_stage(live_server: Start) -> None:
    server = live_server(decoder=ShoutingDecoder())
    with server.listen(interim_results="true") as client:
        client.send(spell("hello there"))
        client.until(lambda frame: frame["type"] == "Results")
        server.replica.sessions.look()  # as the watchdog does, twice a second
        client.finish()
    server.wait_idle()
    found = families(server)
    for name, (kind, labels) in TABLE.items():
        if kind == "histogram" and name != "tutti_event_loop_lag_seconds":
            count = sum(s.value for s in found[name].samples if s.name.endswith("_count"))
            assert count > 0, f"{name}{labels}"
    values = {s.name: s.value for family in found.values() for s in family.samples if not s.labels}
    assert values["tutti_ready"] == 1
    assert values["tutti_audio_bytes_received_total"] == len(spell("hello there").tobytes())
