"""The port of Wyoming on a real socket: events however they arrive, refusals, and ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from server.access.guard import Guard
from server.protocols.wyoming.endpoint import WyomingSocket
from server.streaming import tcp
from tests.support.protocols.wyoming_client import (
    AUDIO_START,
    AUDIO_STOP,
    FORM,
    WyomingClient,
    chunk,
    packed,
    utterance,
)
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import CONFIG, poison, silence, spell
from tests.support.servers.two_models import two_models

Start = Callable[..., LiveServer]
HELLO = np.concatenate([spell("hello you"), silence(0.5)])
STOP = packed(AUDIO_STOP)


@pytest.fixture
def server(live_server: Start) -> LiveServer:
    return live_server(wyoming_port=0)


@pytest.fixture
def client(server: LiveServer) -> Iterator[WyomingClient]:
    with WyomingClient(server.wyoming_port) as connected:
        yield connected


@pytest.mark.parametrize("pieces", [(), (1,) * 700, (40, 1, 1, 20_000, 3), (8_000,) * 2], ids=len)
def test_an_utterance_has_its_text_however_tcp_cuts_it(client: WyomingClient, pieces: tuple[int, ...]) -> None:
    client.send(utterance(HELLO), pieces)
    assert client.transcript() == "hello you"


def test_utterances_of_a_connection_are_answered_in_order_even_if_they_do_not_wait(
    server: LiveServer, client: WyomingClient
) -> None:
    texts = ["first one", "second", "third one here"]
    client.send(b"".join(utterance(np.concatenate([spell(text), silence(0.5)])) for text in texts))
    assert [client.transcript() for _ in texts] == texts
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="completed",protocol="wyoming"}') == 3


def test_info_names_models_and_languages_also_while_a_stream_is_open(live_server: Start) -> None:
    server = live_server(model=two_models(), wyoming_port=0)
    with WyomingClient(server.wyoming_port) as client:
        client.send(chunk(HELLO) + packed("describe") + packed("ping", text="here"))
        *_, info = client.until("info")
        [program] = info["asr"]
        assert program["supports_transcript_streaming"]
        assert [(each["name"], each["languages"], each["installed"]) for each in program["models"]] == [
            (entry.card.name, list(entry.languages), True) for entry in server.replica.models.entries
        ]
        assert client.until("pong")[-1]["text"] == "here"
        client.send(STOP)
        assert client.until("transcript")[-1]["text"] == "hello you"


def test_language_and_name_choose_the_model(live_server: Start) -> None:
    server = live_server(model=two_models(), wyoming_port=0)
    first, second = server.replica.models.entries
    for asked, entry in (({"language": second.languages[0]}, second), ({"name": first.name}, first)):
        with WyomingClient(server.wyoming_port) as client:
            client.send(packed("transcribe", **asked) + chunk(silence(0.1)))
            client.until("transcript-start")
            assert (first.streams, second.streams) == ((1, 0) if entry is first else (0, 1))
        server.wait_idle()
    with WyomingClient(server.wyoming_port) as client:
        client.send(packed("transcribe", language="tlh") + chunk(HELLO))
        assert "language: 'tlh' is not served here" in client.error()["text"]


def test_what_is_asked_for_an_utterance_ends_with_it(live_server: Start) -> None:
    server = live_server(model=two_models(), wyoming_port=0)
    first, second = server.replica.models.entries
    with WyomingClient(server.wyoming_port) as client:
        client.send(utterance(silence(0.2), language=second.languages[0]))
        client.until("transcript-stop")
        server.wait_idle()
        client.send(chunk(silence(0.1)))
        client.until("transcript-start")
        assert (first.streams, second.streams) == (1, 0)


def test_audio_without_a_stop_before_new_audio_is_dropped(server: LiveServer, client: WyomingClient) -> None:
    client.send(chunk(spell("given up")) + utterance(HELLO))
    client.until("transcript-start")
    assert client.transcript() == "hello you"
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="client_abort",protocol="wyoming"}') == 1
    assert server.metric('tutti_messages_skipped_total{protocol="wyoming"}') == 1


@pytest.mark.parametrize("asked", [{"language": "en"}, {}])
def test_a_transcribe_that_changes_nothing_may_come_after_audio(client: WyomingClient, asked: dict[str, str]) -> None:
    head, tail = HELLO[: len(HELLO) // 2], HELLO[len(HELLO) // 2 :]
    client.send(packed("transcribe", language="en") + chunk(head) + packed("transcribe", **asked) + chunk(tail) + STOP)
    assert client.transcript() == "hello you"


def test_a_transcribe_after_audio_that_changes_the_language_is_refused(client: WyomingClient) -> None:
    client.send(chunk(HELLO) + packed("transcribe", language="zh") + STOP)
    assert client.error() == {
        "type": "error",
        "text": "transcribe: send it before the audio, whose model and language are chosen by then",
        "code": "1008",
    }


def test_audio_start_may_come_before_transcribe(client: WyomingClient) -> None:
    client.send(packed(AUDIO_START, **FORM) + packed("transcribe", language="en") + chunk(HELLO) + STOP)
    assert client.transcript() == "hello you"


def in_width(width: int) -> bytes:
    """Return `HELLO` with this many bytes a sample."""
    if width == 1:
        return ((HELLO >> 8) + 128).astype(np.uint8).tobytes()
    wide = (HELLO.astype("<i4") << 16).tobytes()
    return wide if width == 4 else b"".join(wide[at + 4 - width : at + 4] for at in range(0, len(wide), 4))


@pytest.mark.parametrize("width", [2, 3, 4])
def test_samples_of_every_width_give_the_same_text(client: WyomingClient, width: int) -> None:
    client.send(chunk(in_width(width), width=width) + STOP)
    assert client.transcript() == "hello you"


def test_samples_of_one_byte_are_unsigned(client: WyomingClient) -> None:
    """This model reads a letter from a sample's exact value, of which 8 bits leave little: silence stays silence."""
    client.send(chunk(bytes([128]) * CONFIG.sample_rate, width=1) + STOP)
    assert client.transcript() == ""


def test_channels_are_mixed_and_a_frame_may_be_cut(client: WyomingClient) -> None:
    both = np.repeat(HELLO, 2).tobytes()
    client.send(chunk(both[:1_001], channels=2) + chunk(both[1_001:], channels=2) + STOP)
    assert client.transcript() == "hello you"


def test_the_form_of_audio_may_change_between_two_chunks(client: WyomingClient) -> None:
    quarters = [bytes(part) for part in np.array_split(HELLO, 2)]
    stereo = np.repeat(np.frombuffer(quarters[1], np.int16), 2).tobytes()
    client.send(packed(AUDIO_START, **FORM) + chunk(quarters[0]) + chunk(stereo, channels=2) + STOP)
    assert client.transcript() == "hello you"


def test_other_rates_are_resampled(client: WyomingClient) -> None:
    slow = np.concatenate([spell("hello you", 8_000), silence(0.5, 8_000)])
    client.send(chunk(slow, rate=8_000) + STOP)
    assert client.transcript() == "hello you"


REFUSED: list[tuple[bytes, str]] = [
    (packed(AUDIO_START, **FORM | {"rate": 4_000}), "audio-start: rate: 4000 must be from 8000 to 48000"),
    (packed(AUDIO_START, **FORM | {"width": 5}), "audio-start: width: 5 must be from 1 to 4"),
    (chunk(HELLO, channels=9), "audio-chunk: channels: 9 must be from 1 to 8"),
    (packed("audio-chunk", b"\0\0", rate=16_000, width=2), "audio-chunk: channels: missing"),
    (packed(AUDIO_START, rate="fast", width=2, channels=1), "audio-start: rate: expected int, got str"),
    (packed("transcribe", language=7), "transcribe: language: expected str or null, got int"),
    (packed("select-program", name="whisper"), "select-program: there is only 'tutti' here"),
    (b'{"type":"describe","payload_length":1048577}\n', "payload_length: 1048577 is not a number of bytes from 0 to"),
    (b'{"type":"describe","data_length":-1}\n', "data_length: -1 is not a number of bytes from 0 to 262144"),
    (b'{"type":"ping","data_length":4}\nnull', "the data of an event must be a JSON object"),
    (b'{"no":"type"}\n', "an event begins with a line of JSON that has its type"),
    (b"[" * 20_000 + b"\n", "an event begins with a line of JSON that has its type"),
    (b"\xff\xfe\n", "an event begins with a line of JSON that has its type"),
    (b"{" + b" " * 70_000, "an event begins with a line of JSON of at most 65536 bytes"),
    (b"POST /chunk HTTP/1.1\r\nOrigin: http://page.example\r\n\r\n" + utterance(HELLO), "an event begins with a line"),
]


@pytest.mark.parametrize(("events", "why"), REFUSED, ids=[why[:40] for _, why in REFUSED])
def test_what_cannot_be_served_is_refused_by_name_and_ends_the_connection(
    server: LiveServer, client: WyomingClient, events: bytes, why: str
) -> None:
    client.send(events)
    assert why in client.error()["text"]
    assert server.metric("tutti_sessions_total") == 0
    assert not len(server.replica.sessions)


def test_events_may_have_data_in_their_line_payloads_and_unknown_names(
    server: LiveServer, client: WyomingClient
) -> None:
    inline = b'{"type":"transcribe","data":{"language":"en","name":"x"},"data_length":13}\n{"name":null}'
    client.send(packed("describe", b"payload that no one reads"))
    client.until("info")
    client.send(packed("run-pipeline", b"\n{}", start_stage="asr") + inline)
    client.send(packed("transcribe", context={"turn": 1}, vad_sensitivity="aggressive") + utterance(HELLO))
    assert client.transcript() == "hello you"
    assert server.metric('tutti_messages_skipped_total{protocol="wyoming"}') == 3


def test_a_stop_without_audio_is_answered_by_an_empty_transcript(client: WyomingClient) -> None:
    client.send(packed("transcribe", language="en") + packed(AUDIO_START, **FORM) + STOP)
    assert client.transcript() == ""


def test_a_client_that_leaves_without_a_stop_holds_nothing(server: LiveServer, client: WyomingClient) -> None:
    client.send(chunk(HELLO))
    client.until("transcript-start")
    client.__exit__()
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="client_abort",protocol="wyoming"}') == 1


def test_a_full_server_says_so_and_no_key_is_needed_where_others_need_one(live_server: Start) -> None:
    server = live_server(wyoming_port=0, max_streams=1, api_keys=["k3y"])
    with WyomingClient(server.wyoming_port) as first, WyomingClient(server.wyoming_port) as second:
        first.send(chunk(HELLO))
        first.until("transcript-start")
        second.send(packed("describe") + utterance(HELLO))
        error = second.error()
        assert error["code"] == "SERVICE_UNAVAILABLE"
        first.send(STOP)
        assert first.until("transcript")[-1]["text"] == "hello you"
    server.wait_idle()
    with WyomingClient(server.wyoming_port) as third:
        third.send(utterance(HELLO))
        assert third.transcript() == "hello you"
    assert server.metric('tutti_handshakes_rejected_total{reason="capacity"}') == 1


def test_a_drain_gives_no_transcript_of_half_a_command(live_server: Start) -> None:
    server = live_server(wyoming_port=0, drain_timeout_s=0.0)
    with WyomingClient(server.wyoming_port) as client:
        client.send(chunk(HELLO))
        client.until("transcript-chunk")
        server.server.handle_exit(15, None)
        assert client.error() == {"type": "error", "text": "the server is restarting", "code": "1012"}
    server.join()


def test_a_draining_server_refuses_new_audio_and_ends(live_server: Start) -> None:
    server = live_server(wyoming_port=0, drain_timeout_s=30.0)
    with WyomingClient(server.wyoming_port) as busy, WyomingClient(server.wyoming_port) as idle:
        busy.send(chunk(HELLO))
        busy.until("transcript-start")
        server.server.handle_exit(15, None)
        server.wait_until(lambda: server.replica.sessions.draining)
        idle.send(packed("describe") + utterance(HELLO))
        assert idle.error()["code"] == "SERVICE_UNAVAILABLE"
        busy.send(STOP)
        assert busy.until("transcript")[-1]["text"] == "hello you"
    server.join()


def test_a_connection_without_streams_ends_after_a_while(monkeypatch: pytest.MonkeyPatch, server: LiveServer) -> None:
    monkeypatch.setattr(tcp, "QUIET_S", 0.3)
    with WyomingClient(server.wyoming_port) as silent:
        silent.send(packed("ping", text="a"))
        silent.until("pong")
        silent.send(b'{"type":"pi')  # an event that never ends
        assert silent.read() is None
    with WyomingClient(server.wyoming_port) as served:
        served.send(chunk(HELLO))
        served.until("transcript-start")
        time.sleep(0.5)
        served.send(STOP)
        assert served.until("transcript")[-1]["text"] == "hello you"
        served.until("transcript-stop")
        assert served.read() is None


def test_a_client_that_reads_nothing_is_not_read_and_dropped(
    monkeypatch: pytest.MonkeyPatch, live_server: Start
) -> None:
    monkeypatch.setattr(tcp, "QUIET_S", 2.0)
    monkeypatch.setattr(tcp, "LINGER_S", 0.2)
    server = live_server(wyoming_port=0)
    client = WyomingClient(server.wyoming_port)
    sent = client.send_until_refused(packed("describe") * 200, 1.0)
    assert sent < 50 * 2**20
    port = server.application.ports["wyoming_port"]
    ends_s = time.monotonic() + WAIT_S
    while port.connections:
        assert time.monotonic() < ends_s, "the connection stays"
        time.sleep(0.05)
    client.__exit__()


def test_a_client_that_reads_nothing_during_a_stream_is_not_read_either(server: LiveServer) -> None:
    client = WyomingClient(server.wyoming_port)
    client.send(chunk(HELLO))
    client.until("transcript-start")
    assert client.send_until_refused(packed("describe") * 200, 1.0) < 50 * 2**20
    client.__exit__()
    server.wait_idle()


def test_a_client_that_leaves_during_its_admission_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, live_server: Start
) -> None:
    """With front ends an admission waits for the supervisor."""
    waiting, left, go_on = threading.Event(), threading.Event(), threading.Event()
    enter, connection_lost = Guard.enter_without_key, WyomingSocket.connection_lost

    async def slow(*arguments: Any) -> None:
        await enter(*arguments)
        waiting.set()
        await asyncio.to_thread(go_on.wait, WAIT_S)

    def lost(self: WyomingSocket, exc: Exception | None) -> None:
        connection_lost(self, exc)
        left.set()

    server = live_server(wyoming_port=0, max_streams=1)
    with monkeypatch.context() as patch, capture_logs() as log:
        patch.setattr(Guard, "enter_without_key", slow)
        patch.setattr(WyomingSocket, "connection_lost", lost)
        client = WyomingClient(server.wyoming_port)
        client.send(chunk(HELLO))
        assert waiting.wait(WAIT_S)
        [connection] = server.application.ports["wyoming_port"]._state.connections
        server.server.loop.call_soon_threadsafe(connection.abort)
        assert left.wait(WAIT_S)
        go_on.set()
    with WyomingClient(server.wyoming_port) as next_one:  # the only slot is free
        next_one.send(utterance(HELLO))
        assert next_one.transcript() == "hello you"
    assert not [line for line in log if line["log_level"] == "error"]
    client.__exit__()


def test_a_failure_of_the_model_ends_the_connection_with_an_error(client: WyomingClient) -> None:
    client.send(chunk(np.concatenate([spell("hello"), poison(), silence(1.0)])) + STOP)
    assert client.error()["text"] == "NET-0000 recognition failed on this stream"
