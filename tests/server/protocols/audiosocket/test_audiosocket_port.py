"""The port of AudioSocket on a real socket, driven frame by frame as Asterisk does; text goes to an operator's URL."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pytest
from structlog.testing import capture_logs

from server.audio.pcm import PCM
from server.errors import SettingsError
from tests.support.servers.destination import Json, destination, received_frames
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import poison, silence, spell

Start = Callable[..., LiveServer]
END, UUID, DTMF, ERROR = 0x00, 0x01, 0x03, 0xFF
SLIN, SLIN16, SLIN48, SLIN96 = 0x10, 0x12, 0x16, 0x17
FRAME_S = 0.02  # of audio, as Asterisk sends it
HANGUP = b"\x00\x00\x00"
SILENCE = b"\x10\x01\x40" + bytes(320)


def frame(kind: int, payload: bytes = b"") -> bytes:
    return bytes([kind]) + len(payload).to_bytes(2, "big") + payload


def audio_frames(audio: PCM, kind: int = SLIN, rate: int = 8_000) -> bytes:
    size = round(FRAME_S * rate)
    return b"".join(frame(kind, audio[at : at + size].tobytes()) for at in range(0, len(audio), size))


def said(text: str, rate: int = 8_000) -> PCM:
    return np.concatenate([spell(text, rate), silence(0.6, rate)])


class Call:
    """One connection of Asterisk, closed at the end of a `with` block."""

    def __init__(self, port: int) -> None:
        self.uuid = uuid4()
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def identify(self) -> None:
        self.send(frame(UUID, self.uuid.bytes))

    def send(self, frames: bytes, pieces: Iterable[int] = ()) -> None:
        """Send bytes, in segments of these sizes first."""
        at = 0
        for size in pieces:
            self._socket.sendall(frames[at : at + size])
            at += size
        self._socket.sendall(frames[at:])

    def rest(self) -> bytes:
        """Return all that the server sends up to the end of the connection, without silence."""
        found = b""
        while data := self._socket.recv(4_096):
            found += data
        return found.replace(SILENCE, b"")

    def next_bytes(self, size: int) -> bytes:
        """Return the next bytes of the server."""
        found = b""
        while len(found) < size:
            found += self._socket.recv(size - len(found))
        return found


@pytest.fixture
def receiver() -> Iterator[Any]:
    with destination() as found:
        yield found


@pytest.fixture
def port(receiver: Any) -> Callable[..., str]:
    def setting(**parameters: str) -> str:
        pairs = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"0?forward_url={quote(receiver[0])}{pairs}"

    return setting


@pytest.fixture
def server(live_server: Start, port: Callable[..., str]) -> LiveServer:
    return live_server(audiosocket_port=port())


def texts(frames: list[Json]) -> list[str]:
    """Return the texts of finals."""
    results = [one["result"] for one in frames if one["event"] == "transcript"]
    finals = [one["channel"]["alternatives"][0]["transcript"] for one in results if one.get("is_final")]
    return [text for text in finals if text]


@pytest.mark.parametrize("pieces", [(), (1,) * 60, (2, 18, 3, 319, 2)], ids=len)
def test_the_text_of_a_call_goes_to_the_url_with_its_uuid(
    server: LiveServer, receiver: Any, pieces: tuple[int, ...]
) -> None:
    with Call(server.audiosocket_port) as call:
        call.send(frame(UUID, call.uuid.bytes) + audio_frames(said("hello")) + audio_frames(said("you")), pieces)
        call.send(frame(DTMF, b"#") + frame(END))
        assert call.rest() == b"", "Asterisk is sent no audio"
    frames = received_frames(receiver[1])
    assert {one["uuid"] for one in frames} == {str(call.uuid)}
    assert [one["event"] for one in (frames[0], frames[-1])] == ["start", "stop"]
    assert texts(frames) == ["hello", "you"]
    assert [one["digit"] for one in frames if one["event"] == "dtmf"] == ["#"]
    assert frames[-2]["result"]["type"] == "Metadata"
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="completed",protocol="audiosocket"}') == 1


def test_asterisk_is_sent_silence_while_it_sends_nothing(server: LiveServer, receiver: Any) -> None:
    """Its thread of a channel may wait in a read for ever, and then sends no audio: asterisk/asterisk#2089."""
    with Call(server.audiosocket_port) as call:
        call.identify()
        assert call.next_bytes(2 * len(SILENCE)) == 2 * SILENCE
        call.send(audio_frames(said("hello")) + frame(END))
        assert call.rest() == b""
    assert texts(received_frames(receiver[1])) == ["hello"]


def test_a_caller_who_hangs_up_closes_the_connection_and_the_last_words_come(server: LiveServer, receiver: Any) -> None:
    with Call(server.audiosocket_port) as call:
        call.identify()
        call.send(audio_frames(said("bye now")[: -round(0.5 * 8_000)]))
    assert texts(received_frames(receiver[1])) == ["bye now"]
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="completed",protocol="audiosocket"}') == 1


def test_other_rates_and_a_change_of_the_rate(server: LiveServer, receiver: Any) -> None:
    with Call(server.audiosocket_port) as call:
        call.identify()
        call.send(audio_frames(said("one", 16_000), SLIN16, 16_000) + audio_frames(said("two", 48_000), SLIN48, 48_000))
        call.send(frame(ERROR, b"\x02"))
        assert call.rest() == b""
    assert texts(received_frames(receiver[1])) == ["one", "two"]


REFUSED: list[tuple[bytes, str]] = [
    (frame(SLIN, bytes(320)), "a call begins with its UUID"),
    (frame(UUID, bytes(15)), "whose UUID has 16 bytes"),
    (frame(UUID, bytes(16)) * 2, "a call begins with one frame of kind 0x01"),
    (frame(UUID, bytes(16)) + frame(SLIN96, bytes(3_840)), "audio of 96 and 192 kHz is not supported"),
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(30_000), "a call begins with its UUID"),
]


@pytest.mark.parametrize(("frames", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_is_no_call_is_ended_and_logged(server: LiveServer, frames: bytes, why: str) -> None:
    with capture_logs() as log, Call(server.audiosocket_port) as call:
        call.send(frames)
        assert call.rest() == HANGUP
        server.wait_idle()
    assert [why in line["reason"] for line in log if line["event"] == "invalid message"] == [True]


def test_a_full_or_draining_server_ends_the_call_and_says_why_in_its_log(
    live_server: Start, port: Callable[..., str]
) -> None:
    server = live_server(audiosocket_port=port(), max_streams=1, api_keys=["k3y"], drain_timeout_s=0.0)
    with Call(server.audiosocket_port) as first, Call(server.audiosocket_port) as second, capture_logs() as log:
        first.identify()
        first.send(audio_frames(said("hello")))
        server.wait_until(lambda: len(server.replica.sessions) == 1)
        second.identify()
        assert second.rest() == HANGUP
        assert [line["error"] for line in log if line.get("path") == "/audiosocket"] == ["ServerFull"]
        server.server.handle_exit(15, None)
        assert first.rest() == HANGUP
    server.join()


def test_an_unreachable_url_or_a_broken_model_ends_the_call(live_server: Start, port: Callable[..., str]) -> None:
    with destination() as (gone, _):
        pass
    for setting, audio in ((f"0?forward_url={quote(gone)}", said("hello")), (port(), np.concatenate([poison()] * 2))):
        server = live_server(audiosocket_port=setting)
        with Call(server.audiosocket_port) as call:
            call.identify()
            call.send(audio_frames(audio, SLIN16, 16_000))
            assert call.rest() == HANGUP
        server.wait_idle()
        assert server.metric('tutti_sessions_total{outcome="error",protocol="audiosocket"}') == 1


def test_parameters_of_the_port_apply_and_redaction_withholds_keys(
    live_server: Start, receiver: Any, port: Callable[..., str]
) -> None:
    card = "four five three nine one four eight eight zero three four three six four six seven"
    server = live_server(audiosocket_port=port(redact="pci", interim_results="true", tag="support"))
    with Call(server.audiosocket_port) as call:
        call.identify()
        call.send(audio_frames(said(f"my card is {card} thanks", 16_000), SLIN16, 16_000) + frame(DTMF, b"4"))
        call.send(frame(0x42, b"?") + frame(END))
        call.rest()
    frames = received_frames(receiver[1])
    assert texts(frames) == ["my card is [CREDIT_CARD_1] thanks"]
    assert "nine" not in str(frames)
    assert "dtmf" not in {one["event"] for one in frames}
    assert any(not one["result"]["is_final"] for one in frames if "is_final" in one.get("result", {}))
    assert server.metric('tutti_messages_skipped_total{protocol="audiosocket"}') == 2


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("9092", "audiosocket_port: forward_url: give one, ws:// or wss://"),
        ("9092?forward_url=http://a", "audiosocket_port: forward_url: give one, ws:// or wss://"),
        ("9092?forward_url=ws://a&encoding=mulaw", "audiosocket_port: 'encoding' is not forward_url nor a parameter"),
        ("9092?forward_url=ws://a&diarize=true", "audiosocket_port: diarize: not supported by this server"),
        ("9092?forward_url=ws://a&redact=all", "audiosocket_port: redact"),
        ("9092?forward_url=ws://a&only_registered=2", "audiosocket_port: only_registered: '2' is not valid"),
        ("9092?forward_url=ws://a&rewind=10", "audiosocket_port: 'rewind' is not forward_url nor a parameter"),
        ("9092?forward_url=ws://a&language=xx", "audiosocket_port: language: 'xx' is not served here"),
        ("9092?forward_url=ws://a&model=flux-general-en", "audiosocket_port: model: 'flux-general-en' is a model of"),
        (
            "9092?forward_url=ws://a&grammar=nope",
            "audiosocket_port: grammar: the model 'spelling' does not have 'nope'",
        ),
        ("9092?forward_url=ws://a&rest=true", "audiosocket_port: rest: streams do not rest on this server"),
    ],
)
def test_a_setting_that_is_not_valid_ends_the_start(setting: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        LiveServer(audiosocket_port=setting)
    assert str(refused.value).startswith(why)
