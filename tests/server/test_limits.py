"""Limits of a connection without another test: duration, compression, message size, backlog."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.http.uvicorn_server import MAX_MESSAGE_BYTES, uvicorn_config
from server.streaming import flow_control
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import GatedSpellingModel, silence, spell

Start = Callable[..., LiveServer]


def test_a_stream_over_the_longest_duration_is_flushed_and_closed_with_1008(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_control, "MAX_SESSION_S", 0.5)
    server = live_server()
    with server.listen() as client:
        client.send(spell("so far"))
        frames, code, reason = client.rest()
    assert (transcript(frames), frames[-1]["type"], code) == ("so far", "Metadata", 1008)
    assert "longest" in reason or "as long as" in reason
    server.wait_idle()


def test_messages_are_a_mebibyte_at_most_and_not_compressed() -> None:
    server = LiveServer()
    config = uvicorn_config(server.app, server.replica)
    assert (config.ws_max_size, config.ws_per_message_deflate) == (MAX_MESSAGE_BYTES, False)
    assert MAX_MESSAGE_BYTES == 2**20


def test_the_backlog_of_a_stalled_engine_is_bounded(live_server: Start) -> None:
    """Audio over the backlog limit is not read: TCP slows the client down."""
    model = GatedSpellingModel()
    server = live_server(model=model, max_backlog_s=3.0)
    with server.listen() as client:
        model.shut()
        for _ in range(8):
            client.send(silence(0.5))
        model.wait_inside()
        (stream,) = server.replica.sessions._sessions
        assert stream.backlog_s <= 3.0
        model.open()
        client.finish()
