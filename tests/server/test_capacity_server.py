"""Admission by estimated capacity, and latency budgets of single streams, through the real app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from batching.events import BatchDone
from server.errors import BadParameter
from server.protocols.deepgram.query import parse_query
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import spell

Start = Callable[..., LiveServer]


def test_a_replica_with_capacity_for_one_stream_refuses_the_second_before_the_handshake(live_server: Start) -> None:
    server = live_server(max_streams="auto", latency_budget_ms=0.001)  # no batch is that fast
    assert server.metric("tutti_estimated_session_capacity") == 1
    assert server.metric("tutti_sessions_max") == 1
    with server.listen() as client:
        with pytest.raises(InvalidStatus) as refused:
            server.listen()
        assert refused.value.response.status_code == 503
        assert int(refused.value.response.headers["Retry-After"]) >= 1
        client.send(spell("served"))
        client.say("CloseStream")
        frames, code, _ = client.rest()
        assert (transcript(frames), code) == ("served", 1000)
    server.wait_idle()
    assert server.metric('tutti_handshakes_rejected_total{reason="capacity"}') == 1
    with server.listen() as client:
        client.say("CloseStream")
        client.rest()


def test_max_streams_auto_is_the_estimated_capacity_within_the_slots(live_server: Start) -> None:
    server = live_server(max_streams="auto")
    estimate = server.metric("tutti_estimated_session_capacity")
    assert 10 < estimate <= server.replica.models.default.recognizer.slots.estimate + 1
    assert server.metric("tutti_sessions_max") == min(estimate, 1_024)
    assert server.metric("tutti_state_pool_slots") == 1_024 + server.replica.settings.upload_slots


def test_reduced_capacity_shows_in_metrics(live_server: Start) -> None:
    server = live_server(max_streams="auto")
    recognizer = server.replica.models.default.recognizer
    assert server.metric("tutti_slowdown_ratio") > 0
    recognizer.slots.capacity.end_period = lambda *_: None  # nothing rises or falls from here on
    recognizer.slots.capacity.slowdown = 1.0  # whatever else this machine computes
    assert server.metric("tutti_reserved_sessions") == 0
    recognizer.slots.capacity._lowered = 5.0
    possible = int(recognizer.slots.capacity.possible)
    assert server.metric("tutti_reserved_sessions") == possible - 5
    for waits in (True, False):
        recognizer._observe(BatchDone((1,), (None,), np.zeros((1, 1)), (0.0,), 0.0, 0.01, 0, background_waits=waits))
        assert server.metric("tutti_uploads_wait") == waits


def test_a_fixed_max_streams_does_not_limit_the_estimated_capacity(live_server: Start) -> None:
    server = live_server(max_streams=2)
    assert server.metric("tutti_sessions_max") == 2
    assert server.metric("tutti_estimated_session_capacity") > 2


def test_a_streams_own_budget_reaches_the_engine(live_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = live_server(latency_budget_ms=150)
    engine = server.replica.models.default.recognizer.engines._speech
    asked: list[Any] = []
    opened = engine.open

    def spy(**options: Any) -> int:
        asked.append(options["budget_s"])
        return int(opened(**options))

    monkeypatch.setattr(engine, "open", spy)
    for query in ({}, {"latency_budget_ms": 400}):
        with server.listen(**query) as client:
            client.say("CloseStream")
            client.rest()
    assert asked == [0.15, 0.4]
    server.wait_idle()


@pytest.mark.parametrize("value", ["19", "10001", "50.5"])
def test_a_budget_out_of_bounds_is_refused(value: str) -> None:
    with pytest.raises(BadParameter, match="latency_budget_ms"):
        parse_query([("encoding", "linear16"), ("sample_rate", "16000"), ("latency_budget_ms", value)], 2)
