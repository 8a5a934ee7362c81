"""Uploads and live streams on one server: uploads use no live slots, and wait while live streams fill the server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from server.recognition import recognizer
from tests.support.protocols.bare_http import LISTEN, rest, uploading
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import Client, LiveServer, transcript
from tests.support.servers.recognizers.spelling import GatedSpellingModel, spell
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]
TEXT = "abcdefgh " * 50
STEREO = "/v1/listen?multichannel=true"


@contextmanager
def recognizing(server: LiveServer, number: int, path: str = "/v1/listen") -> Iterator[list[Future[httpx.Response]]]:
    """Keep recordings of two channels each in recognition."""
    body = encoded(np.stack([spell(TEXT)] * 2, axis=1), "FLAC")
    with ThreadPoolExecutor(number) as pool:
        answers = [pool.submit(server.http.post, path, content=body) for _ in range(number)]
        end_s = time.monotonic() + WAIT_S
        while stage(server, "recognizing") != number:
            assert time.monotonic() < end_s
        yield answers


def stage(server: LiveServer, name: str) -> float:
    return server.metric(f'tutti_uploads_active{{stage="{name}"}}')


@pytest.mark.parametrize(("path", "channels"), [("/v1/listen", 1), (STEREO, 2)])
def test_live_streams_are_admitted_up_to_the_limit_while_every_upload_place_is_taken(
    live_server: Start, path: str, channels: int
) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model, max_streams=2, max_uploads=3)
    model.shut()
    with recognizing(server, 3, path) as answers, ExitStack() as opened:
        streams = [opened.enter_context(server.listen()) for _ in range(2)]
        with pytest.raises(InvalidStatus) as refused:
            server.listen()
        assert refused.value.response.status_code == 503
        assert server.replica.models.slots_used == 2 + 3 * channels
        for client in streams:
            client.send(spell("live"))
        model.open()
        assert [transcript(client.finish()) for client in streams] == ["live"] * 2
        for answer in answers:
            assert [said(answer.result().json(), channel) for channel in range(channels)] == [TEXT.strip()] * channels
    server.wait_idle()


def test_uploads_do_not_count_in_the_autoscaling_gauge(live_server: Start) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model)
    model.shut()
    with recognizing(server, 2, STEREO) as answers:
        assert (stage(server, "recognizing"), server.metric("tutti_sessions_active")) == (2, 0)
        with server.listen() as client:
            assert server.metric("tutti_sessions_active") == 1
            model.open()
            client.finish()
        assert [answer.result().status_code for answer in answers] == [200, 200]
    server.wait_idle()
    assert stage(server, "recognizing") == server.metric("tutti_sessions_active") == 0
    assert server.metric('tutti_sessions_total{outcome="completed",protocol="upload"}') == 2


def test_uploads_do_not_change_the_capacity_estimate(live_server: Start) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model, max_streams="auto", latency_budget_ms=0.001)  # an estimate of one stream
    model.shut()
    with recognizing(server, 3) as answers, server.listen() as client:
        client.send(spell("live"))
        model.open()
        assert transcript(client.finish()) == "live"
        assert [said(answer.result().json()) for answer in answers] == [TEXT.strip()] * 3
    server.wait_idle()


WAITED = spell("waited").tobytes()
RAW_HEAD = LISTEN.replace(" HTTP", "?encoding=linear16&sample_rate=16000 HTTP")


@contextmanager
def filled(server: LiveServer) -> Iterator[tuple[Client, socket.socket]]:
    """Open the only live stream that fits, and an upload that started before it, whose body still arrives."""
    with uploading(server, WAITED[:100], head=RAW_HEAD, length=len(WAITED)) as (bare,):
        while stage(server, "receiving") < 1:
            pass
        with server.listen() as client:
            yield client, bare


def answer_of(bare: socket.socket) -> httpx.Response:
    head, _, body = rest(bare).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return httpx.Response(int(status.split()[1]), headers=[line.split(": ", 1) for line in lines], content=body)


def test_a_recording_on_a_full_server_waits_for_a_live_stream_to_end(live_server: Start) -> None:
    server = live_server(max_streams=1)
    with filled(server) as (client, upload):
        with pytest.raises(InvalidStatus):
            server.listen()
        upload.sendall(WAITED[100:])
        server.wait_until(lambda: server.replica.sessions.count("upload") == 1)
        assert (stage(server, "waiting"), stage(server, "recognizing")) == (1, 0)
        assert server.replica.models.slots_used == 2, "the recording keeps its model"
        client.finish()
        assert said(answer_of(upload).json()) == "waited"
    server.wait_idle()
    assert stage(server, "waiting") == 0


def test_a_recording_that_waited_too_long_is_refused_by_name(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognizer, "BACKGROUND_BUDGET_S", 0.1)
    server = live_server(max_streams=1)
    with filled(server) as (client, upload):
        upload.sendall(WAITED[100:])
        answer = answer_of(upload)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "live streams" in answer.json()["err_msg"]
        client.send(spell("live"))
        assert transcript(client.finish()) == "live"
    server.wait_idle()
    assert stage(server, "waiting") == 0
    assert server.metric('tutti_handshakes_rejected_total{reason="capacity"}') == 1


def test_a_recording_that_waits_while_the_server_drains_is_recognized_once_live_streams_have_ended(
    live_server: Start,
) -> None:
    server = live_server(max_streams=1)
    with filled(server) as (client, upload):
        upload.sendall(WAITED[100:])
        server.wait_until(lambda: server.replica.sessions.count("upload") == 1)
        server.server.loop.call_soon_threadsafe(server.replica.drain.begin)
        client.send(spell("live"))
        assert transcript(client.finish()) == "live"
        assert said(answer_of(upload).json()) == "waited"
