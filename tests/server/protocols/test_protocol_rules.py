"""Damaged text frames in every protocol: an error in the protocol's own form, or a close with a code; no lost word."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from server.audio.formats import audio_form
from server.audio.raw import mulaw_table
from server.errors import BadFrame
from server.models.loading import ModelCard
from server.models.selection import ModelNames
from server.protocols.deepgram.messages import control_text, parse_frame
from server.protocols.deepgram.projector import Projector
from server.protocols.deepgram.query import parse_query
from server.protocols.flux.adapter import FluxAdapter
from server.protocols.flux.query import parse_query as parse_flux_query
from server.protocols.openai.realtime import RealtimeAdapter
from server.protocols.openai.settings import SessionSettings
from server.protocols.twilio.adapter import TwilioAdapter
from server.protocols.vosk.adapter import VoskAdapter
from server.recognition.session_options import Limits, SessionOptions
from server.streaming.adapter import Adapter
from server.tools.evaluate import coded
from tests.support.protocols.mutations import MESSAGES, mutated
from tests.support.servers.adapters import RATE
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.spelling import silence, spell
from tests.support.streams.transport_bench import ConnectionBench

LIMITS = Limits(min_endpoint_ms=400.0, max_backlog_s=1e9)
RAW = {"encoding": "linear16", "sample_rate": "16000"}
FRAMES_A_STREAM = 12
OPENAI_FORMAT = {"type": "transcription", "audio": {"input": {"format": {"type": "audio/pcm", "rate": RATE}}}}
MULAW_START = {"event": "start", "start": {"mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": RATE}}}
PROTOCOLS = tuple(MESSAGES)
PATHS = {
    "listen": "/v1/listen?encoding=linear16&sample_rate=16000",
    "resumable": "/v1/listen?encoding=linear16&sample_rate=16000&resumable=true",
    "flux": "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000",
    "openai": "/v1/realtime?intent=transcription",
    "vosk": "/vosk",
    "twilio": "/v1/twilio?reply=true",
}
ENDS = {
    "listen": {"type": "CloseStream"},
    "resumable": {"type": "CloseStream"},
    "flux": {"type": "CloseStream"},
    "openai": None,  # the client closes the socket
    "vosk": {"eof": 1},
    "twilio": {"event": "stop"},
}


def flux() -> tuple[Adapter, SessionOptions]:
    request = parse_flux_query([("model", "flux-general-en"), *RAW.items()])
    return FluxAdapter(request, "id", delay_s=0.32), request.options


def realtime() -> tuple[Adapter, SessionOptions]:
    names = ModelNames({"tiny": ("en",)}, {}, strict=True)
    adapter = RealtimeAdapter("s", SessionSettings("tiny"), names, model_rate=RATE, min_silence_ms=500.0)
    return adapter, SessionOptions(RATE, partials=True, tell_stable=True, endpointing_ms=500.0, speech_events=True)


def vosk() -> tuple[Adapter, SessionOptions]:
    return VoskAdapter(RATE, rate=RATE), SessionOptions(RATE, partials=True, endpointing_ms=400.0)


def twilio() -> tuple[Adapter, SessionOptions]:
    projector = Projector(parse_query([], 1), 1, "id", "now", ModelCard("tiny", "1", "uuid"))
    adapter = TwilioAdapter(projector, model_rate=RATE, track="inbound")
    return adapter, SessionOptions(RATE, partials=True, endpointing_ms=400.0)


ADAPTERS: dict[str, Callable[[], tuple[Adapter, SessionOptions]]] = {
    "flux": flux, "openai": realtime, "vosk": vosk, "twilio": twilio,
}  # fmt: skip


class Stream:
    """A connection of one protocol, whose steps are answered at once."""

    def __init__(self, protocol: str) -> None:
        self.protocol, self.ended_early = protocol, False
        self.damaged: list[str] = []
        adapter, options = ADAPTERS[protocol]() if protocol in ADAPTERS else (None, None)
        form = audio_form("linear16", RATE) if protocol == "flux" else None
        resumable = {"resumable": "true"} if protocol == "resumable" else {}
        self.bench = ConnectionBench(LIMITS, None, adapter, options, form, **RAW, **resumable)

    @property
    def is_open(self) -> bool:
        return self.bench.transport.closed is None and self.bench.stream._state.reads

    def say(self, text: str, pause_s: float = 1.2) -> None:
        """Send speech, and a silence, which ends the utterance if it is long."""
        for pcm in (spell(text), silence(pause_s)):
            match self.protocol:
                case "openai":
                    audio = base64.b64encode(pcm.tobytes()).decode()
                    self.send({"type": "input_audio_buffer.append", "audio": audio})
                case "twilio":
                    payload = base64.b64encode(coded(pcm, mulaw_table()).tobytes()).decode()
                    self.send({"event": "media", "media": {"track": "inbound", "payload": payload}})
                case _:
                    self.send(pcm.tobytes())

    def send(self, message: bytes | str | dict[str, Any]) -> None:
        self.bench.send(message)
        self.bench.answer()

    def texts(self) -> str:
        """Return the text of all finals sent so far."""
        return " ".join(final_text(self.protocol, frame) for frame in self.bench.frames).casefold()


def final_text(protocol: str, frame: dict[str, Any]) -> str:
    match protocol:
        case "flux":
            return frame["transcript"] if frame.get("event") == "EndOfTurn" else ""
        case "openai":
            return frame.get("transcript", "")
        case "vosk":
            return frame.get("text", "") or frame.get("alternatives", [{"text": ""}])[0]["text"]
        case "twilio":
            frame = frame.get("result", {})
    return frame["channel"]["alternatives"][0]["transcript"] if frame.get("is_final") else ""


async def play(stream: Stream, frames: Iterator[str], _: ConnectionBench) -> None:
    """Play speech, damaged frames, and more speech if the stream is open then."""
    prepare = {"openai": {"type": "session.update", "session": OPENAI_FORMAT}, "twilio": MULAW_START}
    if stream.protocol in prepare:
        stream.send(prepare[stream.protocol])
    stream.say("ab", 1.2 if stream.protocol == "openai" else 0.0)  # a `clear` may follow there
    for frame in itertools.islice(frames, FRAMES_A_STREAM):
        stream.damaged.append(frame)
        stream.send(frame)
        await asyncio.sleep(0)
        if not stream.is_open:
            stream.ended_early = True
            return
    if stream.protocol == "openai":
        stream.send({"type": "input_audio_buffer.clear"})
        stream.send(prepare["openai"])
    stream.say("cd")
    end = ENDS[stream.protocol]
    if end is None:
        stream.send({"type": "input_audio_buffer.commit"})
        stream.bench.stream.on_gone()
    else:
        stream.send(end)


def fuzz(protocol: str, count: int, seed: int) -> int:
    """Send this many damaged frames, over as many streams as it takes; return the number sent."""
    frames, sent = mutated(protocol, count, seed), 0
    while sent < count:
        stream = Stream(protocol)
        stream.bench.run(partial(play, stream, frames))
        check(stream)
        sent += len(stream.damaged)
    return sent


def check(stream: Stream) -> None:
    text, closed = stream.texts(), stream.bench.transport.closed
    last = [frame[:300] for frame in stream.damaged[-2:]]
    assert "ab" in text, last
    assert "cd" in text or stream.ended_early, last
    codes = (1000,) if stream.protocol in ("listen", "resumable", "twilio") else (1000, 1008)
    assert closed is None or closed[0] in codes, (closed, last)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_damaged_message_loses_a_word_or_raises(protocol: str) -> None:
    assert fuzz(protocol, 400, seed=1) >= 400


@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_damaged_message_of_many_loses_a_word_or_raises(protocol: str) -> None:
    """Over all protocols 240,000."""
    assert fuzz(protocol, 40_000, seed=2) >= 40_000


@pytest.mark.parametrize(
    "text",
    ['{"type":"keepalive"', '{"type":"Resume"', '{"type":"Foo","x":NaN}', '{"type":"Context","text":"\\ud800"}', "{"],
)
def test_a_message_that_is_not_json_gets_an_error_whatever_its_type(text: str) -> None:
    with pytest.raises(BadFrame, match="not JSON"):
        parse_frame(text, 1)


@pytest.mark.parametrize("chunk", [b'{"type":"KeepAlive","x":"\xff"}', b'{"type":"KeepAlive\xff"}', b'{"type":"\xc3'])
def test_a_binary_message_that_is_not_utf8_never_raises(chunk: bytes) -> None:
    text = control_text(chunk)
    assert text is None or text.startswith('{"type":"KeepAlive"')


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_real_server_answers_damaged_messages_without_a_cut_or_an_error_in_its_log(
    protocol: str, live_server: Callable[..., LiveServer]
) -> None:
    server, frames = live_server(max_streams=8), mutated(protocol, 120, seed=3)
    with capture_logs() as lines:
        closes = Counter(sent_to(server, protocol, frames) for _ in range(24))
        server.wait_idle()
    assert closes.keys() <= {1000, 1008}, closes
    assert not [line for line in lines if line["log_level"] in ("error", "critical")]


def sent_to(server: LiveServer, protocol: str, frames: Iterator[str]) -> int | None:
    """Send damaged messages on a new connection, and end it; return its close code, None if it was cut."""
    connecting = connect(f"ws://{server.host}{PATHS[protocol]}", compression=None, close_timeout=WAIT_S)
    with connecting as socket, pytest.raises(ConnectionClosed) as closed:
        talk(socket, itertools.islice(frames, 5), ENDS[protocol])
    return None if closed.value.rcvd is None else closed.value.rcvd.code


def talk(socket: ClientConnection, frames: Iterator[str], end: dict[str, Any] | None) -> None:
    """Send the frames and the end, and read to the close. Raises: ConnectionClosed."""
    for frame in frames:
        socket.send(frame)
    if end is None:
        socket.close()
    else:
        socket.send(json.dumps(end))
    while True:
        socket.recv(timeout=WAIT_S)
