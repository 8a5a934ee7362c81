"""A connection of any protocol without a socket, whose steps are answered at once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from structlog.testing import capture_logs

from server.audio.formats import audio_form
from server.audio.raw import mulaw_table
from server.models.loading import ModelCard
from server.models.selection import ModelNames
from server.protocols.deepgram.projector import Projector
from server.protocols.deepgram.query import parse_query
from server.protocols.flux.adapter import FluxAdapter
from server.protocols.flux.messages import FluxCode
from server.protocols.flux.messages import parse_query as parse_flux_query
from server.protocols.openai.realtime import RealtimeAdapter
from server.protocols.openai.settings import SessionSettings
from server.protocols.twilio.adapter import TwilioAdapter
from server.protocols.vosk.adapter import VoskAdapter
from server.recognition.session_options import Limits, SessionOptions
from server.streaming.adapter import Adapter
from server.tools.evaluate import coded
from tests.support.servers.adapters import RATE
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.servers.recognizers.wavering import WaveringDecoder
from tests.support.streams.transport_bench import ConnectionBench

LIMITS = Limits(min_endpoint_ms=400.0, max_backlog_s=1e9)
RAW = {"encoding": "linear16", "sample_rate": "16000"}
MODELS = ModelNames({"english": ("en",), "iberia": ("es", "pt")}, {"nova-3": "default"})
PATHS = {
    "listen": "/v1/listen?encoding=linear16&sample_rate=16000",
    "resumable": "/v1/listen?encoding=linear16&sample_rate=16000&resumable=true",
    "flux": "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000",
    "openai": "/v1/realtime?intent=transcription",
    "vosk": "/vosk?sample_rate=16000",
    "twilio": "/v1/twilio?reply=true",
}
FORMAT = {"format": {"type": "audio/pcm", "rate": RATE}}
START: dict[str, Any] = {
    "openai": {"type": "session.update", "session": {"type": "transcription", "audio": {"input": FORMAT}}},
    "twilio": {"event": "start", "start": {"mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": RATE}}},
}
"""The message before audio at the model's rate."""
END: dict[str, Any] = {
    "listen": {"type": "CloseStream"},
    "resumable": {"type": "CloseStream"},
    "flux": {"type": "CloseStream"},
    "openai": {"type": "input_audio_buffer.commit"},  # the client then closes the socket
    "vosk": {"eof": 1},
    "twilio": {"event": "stop"},
}
PROTOCOLS = tuple(END)


def start_of(protocol: str) -> list[dict[str, Any]]:
    """Return the messages before audio at the model's rate."""
    return [START[protocol]] if protocol in START else []


def audio_message(protocol: str, pcm: bytes) -> bytes | dict[str, Any]:
    """Return 16-bit samples at the model's rate as a message."""
    match protocol:
        case "openai":
            return {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}
        case "twilio":
            codes = coded(np.frombuffer(pcm, np.int16), mulaw_table()).tobytes()
            media = {"track": "inbound", "payload": base64.b64encode(codes).decode()}
            return {"event": "media", "media": media}
        case _:
            return pcm


def flux(*, lenient: bool = False, **query: str) -> tuple[Adapter, SessionOptions]:
    """A stream of turns."""
    request = parse_flux_query([("model", "flux-general-en"), *RAW.items(), *query.items()], lenient=lenient)
    options = replace(request.options, sample_rate=request.options.sample_rate or RATE)
    return FluxAdapter(request, "id", delay_s=0.32), options


def realtime(*, lenient: bool = False) -> tuple[RealtimeAdapter, SessionOptions]:
    """A Realtime session."""
    settings = SessionSettings("english")
    adapter = RealtimeAdapter("s1", settings, MODELS, model_rate=RATE, min_silence_ms=400.0, lenient=lenient)
    return adapter, SessionOptions(RATE, partials=True, tell_stable=True, endpointing_ms=500.0, speech_events=True)


def vosk(*, lenient: bool = False) -> tuple[VoskAdapter, SessionOptions]:
    """A stream of vosk's protocol at the model's rate."""
    return VoskAdapter(RATE, rate=RATE, lenient=lenient), SessionOptions(RATE, partials=True, endpointing_ms=400.0)


def twilio(*, lenient: bool = False, track: str = "inbound") -> tuple[TwilioAdapter, SessionOptions]:
    """A call of one track, or of both."""
    del lenient
    channels = 2 if track == "both" else 1
    request = parse_query([("interim_results", "true")], channels)
    projector = Projector(request, channels, "id", "now", ModelCard("tiny", "1", "uuid"))
    adapter = TwilioAdapter(projector, model_rate=RATE, track=track)
    return adapter, SessionOptions(RATE, channels, multichannel=channels > 1, partials=True, endpointing_ms=400.0)


ADAPTERS: dict[str, Callable[..., tuple[Adapter, SessionOptions]]] = {
    "flux": flux, "openai": realtime, "vosk": vosk, "twilio": twilio,
}  # fmt: skip


class ProtocolBench:
    """A connection of one protocol."""

    def __init__(self, protocol: str, *, lenient: bool = False, decoder: Any = None) -> None:
        self.protocol = protocol
        adapter, options = ADAPTERS[protocol](lenient=lenient) if protocol in ADAPTERS else (None, None)
        form = audio_form("linear16", RATE) if protocol == "flux" else None
        resumable = {"resumable": "true"} if protocol == "resumable" else {}
        self.bench = ConnectionBench(LIMITS, None, adapter, options, form, decoder=decoder, **RAW, **resumable)

    @property
    def is_open(self) -> bool:
        """Whether messages are still read."""
        return self.bench.transport.closed is None and self.bench.stream._state.reads

    def begin(self) -> None:
        """Send what comes before audio."""
        for message in start_of(self.protocol):
            self.send(message)

    def say(self, text: str, pause_s: float = 1.2) -> None:
        """Send speech, and a silence, which ends the utterance if it is long."""
        for pcm in (spell(text), silence(pause_s)):
            self.send(audio_message(self.protocol, pcm.tobytes()))

    def send(self, message: bytes | str | dict[str, Any]) -> None:
        """Send a message, and answer all steps."""
        self.bench.send(message)
        self.bench.answer()

    def end(self) -> None:
        """End the stream as a client of this protocol does."""
        self.send(END[self.protocol])
        if self.protocol == "openai":
            self.bench.stream.on_gone()

    def texts(self) -> str:
        """Return the text of all finals sent so far."""
        return " ".join(final_text(self.protocol, frame) for frame in self.bench.frames).casefold()


def final_text(protocol: str, frame: dict[str, Any]) -> str:
    """Return the final text of a frame, empty if it has none."""
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


def refusal_of(protocol: str, message: str, *, lenient: bool = False, beam: bool = False) -> tuple[str, str]:
    """Return the code and text with which a message is refused, by a frame, by a close, or skipped and logged.

    `twilio call` is a call that has started; with `beam` key terms are taken. A skipped message is sent twice: it is
    counted each time, and logged once.
    """
    stream = ProtocolBench(protocol.removesuffix(" call"), lenient=lenient, decoder=WaveringDecoder() if beam else None)
    bench = stream.bench

    async def script(_: ConnectionBench) -> None:
        if protocol.endswith(" call"):
            stream.begin()
        sent = len(bench.frames)
        stream.send(message)
        for _ in range(3):
            await asyncio.sleep(0)
        answers.extend(bench.frames[sent:])
        if bench.transport.closed is None:
            stream.send(message)
            bench.stream.on_gone()

    answers: list[dict[str, Any]] = []
    with capture_logs() as lines:
        bench.run(script)
    closed, said = bench.transport.closed, [frame for frame in answers if "error" in frame or "description" in frame]
    skipped = [line["reason"] for line in lines if line["event"] == "message skipped"]
    if said:
        assert len(said) == 1
        assert (closed is None) == (said[0].get("code") != FluxCode.UNPARSABLE), "all other errors leave a stream open"
        error = said[0].get("error", said[0])
        return error.get("code") or error["variant"], error.get("description") or error["message"]
    if closed is None:
        assert sum(count._value.get() for count in bench.metrics.skipped.values()) == 2
        assert len(skipped) == 1
        return "skipped", skipped[0]
    return str(closed[0]), closed[1].removeprefix("DATA-0000 ")
