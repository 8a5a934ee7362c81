"""Port of the Wyoming protocol, for Home Assistant: each utterance of a connection is a stream of its own.

The protocol has no keys. So the port is that of the setting `wyoming_port`, which names its address itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from model.text.files import read_lines, stamp_of
from server.access.guard import CountedRefusal
from server.audio.formats import AudioForm, Encoding
from server.audio.pcm import MAX_CHANNELS
from server.configuration.addresses import ListenAddress
from server.errors import BadFrame, BadParameter, SettingsError, of_setting
from server.models.registry import RegistryEntry
from server.models.service import ModelService
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.features import REDACT, SAMPLE_RATES, redaction
from server.protocols.handshake import Admitted, live_endpoint
from server.protocols.wyoming.adapter import STOP, WyomingAdapter, transcript
from server.protocols.wyoming.events import (
    CODECS,
    AudioFormat,
    Event,
    TranscribeRequest,
    data_of,
    encode_event,
    parse_event,
)
from server.recognition.keyterms.keyterms import usable_hints
from server.recognition.request import Request
from server.recognition.session_options import Finals, SessionOptions, finals_of
from server.replica import Replica
from server.streaming.tcp import StreamSocket, asked_of
from server.text.redaction_kinds import Redaction

SETTING, PROTOCOL, PROGRAM = "wyoming_port", "wyoming", "tutti"
KEYTERMS = "keyterms"
PARAMETERS = frozenset({"finals", "grammar", KEYTERMS, REDACT})  # clients choose model and language
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.wyoming")


class TermsFile:
    """File of key terms, one a line, read again when it changes; blank lines and those with # are skipped."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises: SettingsError."""
        self._path = path
        self._stamp = stamp_of(self._path)
        self._terms = self._read()

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms; those of the last readable file if it cannot be read."""
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._terms = self._read()
            except SettingsError as error:
                _log.warning("key terms not read again, the old ones stay", reason=str(error))
        return self._terms

    def _read(self) -> tuple[str, ...]:
        lines = (line.strip() for line in read_lines(self._path, lambda problem: SettingsError(f"keyterms: {problem}")))
        return tuple(line for line in lines if line and not line.startswith("#"))


@dataclass(frozen=True, slots=True)
class WyomingOptions:
    """Parameters of the port, for all of its streams."""

    grammar: str
    finals: Finals | None
    redact: frozenset[Redaction]
    file: TermsFile | None

    @classmethod
    def read(cls, address: ListenAddress) -> WyomingOptions:
        """Read the setting, and the file that it names. Raises: SettingsError."""
        parameters = dict(address.parameters)
        with of_setting(SETTING):
            for name in parameters:
                if name not in PARAMETERS:
                    raise SettingsError(f"{name[:32]!r} is not a parameter; valid: {', '.join(sorted(PARAMETERS))}")
            file = TermsFile(Path(parameters[KEYTERMS])) if KEYTERMS in parameters else None
            redact, finals = redaction(address.parameters), finals_of(parameters.get("finals", ""))
            return cls(parameters.get("grammar", ""), finals, redact, file)

    def request(self, model: ModelService) -> Request:
        """Return the request of a stream."""
        settled_words = not self.redact and (self.finals or model.finals) in {"auto", "fast"}
        options = SessionOptions(
            partials=settled_words,
            tell_stable=settled_words,
            endpointing_ms=None,  # the client knows where a command ends
            grammar=self.grammar,
            finals=self.finals,
            redact=self.redact,
        )
        return Request(form=AudioForm(Encoding.LINEAR16, model.config.sample_rate), options=options)


class WyomingPort:
    """Admission of the port's streams."""

    def __init__(self, replica: Replica, address: ListenAddress) -> None:
        """Raises: SettingsError, also for options that no loaded model has."""
        self.replica = replica
        self._options = options = WyomingOptions.read(address)
        refusals = []
        with of_setting(SETTING):
            for model in replica.models:
                try:
                    replica.check(model, options.request(model))
                    break
                except BadParameter as error:
                    refusals.append(error)
            else:
                raise refusals[0]
        self._live = live_endpoint(replica, self._admit, _render)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one stream; an ASGI application."""
        await self._live(WebSocket(scope, receive, send))

    async def _admit(self, socket: WebSocket, request_id: str) -> Admitted:
        """Raises: Refused."""
        replica, wanted = self.replica, asked_of(socket)
        await replica.guard.enter_without_key(socket)
        model = await replica.models.obtain(wanted.name, wanted.language)
        request = await replica.accept(socket, model, self._options.request(model))
        only = model.languages[0] if len(model.languages) == 1 else None
        adapter = WyomingAdapter(
            model.config.sample_rate,
            language=wanted.language or only,
            terms=self._terms(wanted),
            settled_words=request.options.tell_stable,
        )
        stream = AdapterConnection(
            socket,
            model.session(request, replica.limits),
            adapter,
            replica.connection_context(keep_alive=False),
            protocol=PROTOCOL,
            encoding=request.form.encoding,
            request_id=request_id,
        )
        return Admitted(model, stream)

    def _terms(self, request: TranscribeRequest) -> tuple[str, ...]:
        """Return the key terms of an utterance, the client's names first, as many as fit; others are counted."""
        own = self._options.file.terms if self._options.file is not None else ()
        phrases = tuple(dict.fromkeys([*(request.transcript_names or ()), *(request.transcript_terms or ()), *own]))
        usable = usable_hints(phrases)
        if len(usable) < len(phrases):
            self.skip(
                f"{len(phrases) - len(usable)} of {len(phrases)} key terms cannot be spelled or exceed the limits"
            )
        return usable

    def skip(self, why: str) -> None:
        """Count something that a client asked for and does not get."""
        self.replica.metrics.skipped[PROTOCOL].inc()
        _log.debug("left out", reason=why)


def _render(refusal: CountedRefusal, request_id: str) -> Response:
    headers = {"dg-request-id": request_id}  # of the log line
    return Response(error_event(refusal.message, refusal.err_code), refusal.status, headers)


def error_event(text: str, code: str) -> bytes:
    """Return the event of an error, after which the connection closes."""
    return encode_event("error", {"text": text, "code": code})


class WyomingSocket(StreamSocket[Event]):
    """One connection of a client."""

    path = "/wyoming"

    def __init__(self, app: ASGIApp, connections: set[Any], port: WyomingPort) -> None:
        super().__init__(app, connections)
        self._port = port
        self._asked = TranscribeRequest()  # for the next stream
        self._served = TranscribeRequest()  # of the open stream
        self._format: AudioFormat | None = None  # of the open stream's last audio

    def parse(self, received: bytearray) -> tuple[Event, int] | int:
        """Return the next event. Raises: BadFrame."""
        return parse_event(received)

    def failure(self, code: int, why: str) -> bytes:
        """Return an `error`: a client that is not sent a transcript does not take a part of a command for all of it."""
        return error_event(why, f"{code}")

    def handle(self, message: Event) -> bool:
        """Handle an event; those that are not known are counted, as the protocol wants it. Raises: BadFrame."""
        match message.type:
            case "describe":
                self.write(info(self._port.replica.models.entries))
            case "ping":
                self.write(encode_event("pong", {"text": message.data.get("text")}))
            case "select-program":
                if message.data.get("name") != PROGRAM:
                    raise BadFrame(f"select-program: there is only {PROGRAM!r} here")
            case "transcribe":
                self._transcribe(message)
            case "audio-start":
                _checked_format(message)
                if self.is_open:  # the last audio was given up without an `audio-stop`
                    self._port.skip("audio without audio-stop")
                    self.drop()
                    return False
            case "audio-chunk":
                return self._chunk(message)
            case "audio-stop":
                self._stop()
            case _:
                self._port.skip("unknown event")
        return True

    def _transcribe(self, message: Event) -> None:
        """Raises: BadFrame."""
        self._asked = data_of(message, TranscribeRequest)
        for name, usual in (("context", None), ("vad_sensitivity", "default")):
            if message.data.get(name, usual) not in (None, usual):
                self._port.skip(f"{name}: the client ends the audio, and no utterance depends on the last one")

    def _chunk(self, message: Event) -> bool:
        """Raises: BadFrame."""
        form = _checked_format(message)
        if not self.is_open:
            self._format, self._served = None, self._asked
            self.open(self._asked)
            return False
        self._check_asked()
        if form != self._format:
            self._format = form
            self.deliver(msgspec.json.encode(form).decode())
        self.deliver(message.payload)
        return True

    def _check_asked(self) -> None:
        """Refuse a `transcribe` that came after the audio, unless it changes nothing. Raises: BadFrame."""
        if self._asked not in (self._served, TranscribeRequest()):
            raise BadFrame("transcribe: send it before the audio, whose model and language are chosen by then")

    def _stop(self) -> None:
        """Raises: BadFrame."""
        if self.is_open:
            self._check_asked()
            self.finish(STOP)
        else:
            self.write(encode_event("transcript-start") + transcript("", self._asked.language))
        self._asked = TranscribeRequest()


def _checked_format(event: Event) -> AudioFormat:
    """Return the form of the audio of an event. Raises: BadFrame."""
    form = data_of(event, AudioFormat)
    if form.rate not in SAMPLE_RATES:
        raise BadFrame(f"{event.type}: rate: {form.rate} must be from {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}")
    if form.width not in CODECS:
        raise BadFrame(f"{event.type}: width: {form.width} must be from 1 to 4, the bytes of an integer sample")
    if not 1 <= form.channels <= MAX_CHANNELS:
        raise BadFrame(f"{event.type}: channels: {form.channels} must be from 1 to {MAX_CHANNELS}")
    return form


def info(entries: Sequence[RegistryEntry]) -> bytes:
    """Return the `info` of a server with these models, the default first."""
    artifact = {"attribution": {"name": PROGRAM, "url": ""}, "installed": True}
    models = [
        artifact
        | {"name": entry.card.name, "description": None, "version": entry.card.version, "languages": entry.languages}
        for entry in entries
    ]
    program: Mapping[str, object] = artifact | {
        "name": PROGRAM,
        "description": "streaming speech recognition",
        "version": version("tutti-asr"),
        "models": models,
        "supports_transcript_streaming": True,
        "requires_external_vad": True,
    }
    return encode_event("info", {"asr": [program]})


def wyoming_protocols(replica: Replica, address: ListenAddress) -> tuple[ASGIApp, Callable[..., WyomingSocket]]:
    """Return the application of the port's streams, and what makes its connections. Raises: SettingsError."""
    port = WyomingPort(replica, address)
    return port, partial(WyomingSocket, port=port)
