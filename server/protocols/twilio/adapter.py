"""Adapter of Twilio Media Streams: one track of a call in, or both, results in Deepgram's protocol out.

Each frame carries the ids of its stream and call, so that one receiver can serve many calls. `start`, `dtmf`, `mark`
and `stop` are forwarded between the results. Services with nearly the same protocol are understood, too: names are
compared without case and underscores; `null` counts as absent. Fields that describe the audio must be valid; anything
else that is not recognized is skipped and counted.

Source: twilio.com/docs/voice/media-streams/websocket-messages; Telnyx's and Plivo's pages on media streaming.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from server.audio.raw import PlainCodec
from server.errors import BadFrame
from server.protocols.call_adapter import CallAdapter, encode
from server.protocols.deepgram.projector import Projector
from server.protocols.features import control_text
from server.streaming.adapter import Action, Actions, Finish, PlainInput, Reject, SendFrame, Skip

CODECS = {
    "audio/x-mulaw": PlainCodec.MULAW, "audio/mulaw": PlainCodec.MULAW, "audio/pcmu": PlainCodec.MULAW,
    "mulaw": PlainCodec.MULAW, "ulaw": PlainCodec.MULAW, "pcmu": PlainCodec.MULAW,
    "audio/x-alaw": PlainCodec.ALAW, "audio/alaw": PlainCodec.ALAW, "audio/pcma": PlainCodec.ALAW,
    "alaw": PlainCodec.ALAW, "pcma": PlainCodec.ALAW,
}  # fmt: skip
RATES = range(8_000, 48_001)
RATE = 8_000
LARGEST = 10**9  # bound of a whole number, such as a time in ms
MAX_ID_CHARACTERS = 128
MAX_TEXT_CHARACTERS = 256  # of a mark's name or a digit, which is forwarded
SHOWN = 24  # longest excerpt of a value in a close reason, which has at most 123 bytes
FORM_NAMES = ("mediaformat", "audioformat")  # names of the object that describes the audio
ENCODING, SAMPLE_RATE, CHANNELS = ("encoding", "codec", "type"), ("samplerate", "rate"), ("channels", "channelcount")
OUTSIDE = ("encoding", "codec", "samplerate", "channels")  # names that describe the audio outside that object, too

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """Audio format of a call."""

    codec: PlainCodec
    rate: int


@dataclass(frozen=True, slots=True)
class Media:
    """Audio of one track; `track` is None if it is not a text. `start_s` is its time in the call, if given."""

    audio: bytes
    track: str | None
    start_s: float | None = None


_decode = msgspec.json.Decoder().decode


def parse_message(text: str) -> Message:
    """Parse a message. Raises: BadFrame."""
    try:
        message = _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadFrame("a message must be a JSON object with an event") from error
    if not isinstance(message, dict) or not any(_plain(name) == "event" for name in message):
        raise BadFrame("a message must be a JSON object with an event")
    return message


def values(fields: object, *names: str) -> list[Any]:
    """Return an object's values under these names in any spelling, without nulls; empty for a non-object."""
    if not isinstance(fields, dict):
        return []
    return [value for name, value in fields.items() if value is not None and _plain(name) in names]


def event_of(message: Message) -> str | None:
    """Return the name of a message's event, None if it is not a text."""
    return next((event.casefold() for event in values(message, "event") if isinstance(event, str)), None)


def form_of(message: Message) -> Form:
    """Return the audio format in `start`; Twilio's where it is not given. Raises: BadFrame."""
    places = [message, *_starts(message)]
    forms = [form for source in places for form in values(source, *FORM_NAMES)]
    if not all(isinstance(form, dict) for form in forms):
        raise BadFrame("mediaFormat: must be an object with encoding, sampleRate and channels")
    if not all(values(form, *ENCODING) for form in forms):
        raise BadFrame("mediaFormat.encoding: missing; send audio/x-mulaw or audio/x-alaw")

    def stated(names: tuple[str, ...], default: object) -> Any:
        candidates = [value for form in forms for value in values(form, *names)]
        candidates += [value for source in places for value in values(source, *(set(names) & set(OUTSIDE)))]
        for value in candidates:
            if _comparable(value) != _comparable(candidates[0]):
                raise BadFrame(f"mediaFormat: {names[0]} is both {_shown(candidates[0])} and {_shown(value)}")
        return candidates[0] if candidates else default

    encoding, sample_rate, channels = stated(ENCODING, "audio/x-mulaw"), stated(SAMPLE_RATE, RATE), stated(CHANNELS, 1)
    codec = CODECS.get(encoding.casefold()) if isinstance(encoding, str) else None
    if codec is None:
        raise BadFrame(f"mediaFormat.encoding: {_shown(encoding)} is not valid; send audio/x-mulaw or audio/x-alaw")
    rate = _whole(sample_rate)
    if rate is None or rate not in RATES:
        raise BadFrame(f"mediaFormat.sampleRate: {_shown(sample_rate)} must be from {RATES[0]} to {RATES[-1]}")
    if _whole(channels) != 1:
        raise BadFrame(f"mediaFormat.channels: {_shown(channels)} must be 1")
    return Form(codec, rate)


def ids_of(message: Message) -> tuple[str, str]:
    """Return the stream id and the call id of a `start`; empty if absent. Raises: BadFrame."""
    places = [message, *_starts(message)]
    stream, call = _id(places, "streamsid", "streamid"), _id(places, "callsid", "callid", "callcontrolid")
    if max(len(stream), len(call)) > MAX_ID_CHARACTERS:
        raise BadFrame(f"streamSid or callSid: at most {MAX_ID_CHARACTERS} characters")
    return stream, call


def media_of(message: Message) -> Media:
    """Return the audio of a `media` message. Raises: BadFrame."""
    media = values(message, "media")
    payloads = [payload for one in media for payload in values(one, "payload")]
    if not payloads:
        raise BadFrame("media.payload: missing")
    tracks = [track for one in media for track in values(one, "track")] or ["inbound"]
    track = tracks[0].casefold().removesuffix("_track") if isinstance(tracks[0], str) else None
    start_ms = next((_whole(time) for one in media for time in values(one, "timestamp")), None)
    start_s = None if start_ms is None else start_ms / 1_000
    try:
        return Media(binascii.a2b_base64(payloads[0], strict_mode=True), track, start_s)
    except (ValueError, TypeError) as error:
        raise BadFrame("media.payload: not valid base64") from error


def text_of(message: Message, event: str, name: str) -> str | None:
    """Return a text field of an event for forwarding, a number as text; None if absent or too long."""
    for value in (value for one in values(message, event) for value in values(one, name)):
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            text = f"{value:.15g}" if isinstance(value, float) else str(value)
            return text if 0 < len(text) <= MAX_TEXT_CHARACTERS else None
    return None


def _starts(message: Message) -> list[Any]:
    """Raises: BadFrame."""
    starts = [start for start in values(message, "start") if isinstance(start, dict)]
    if not starts:
        raise BadFrame("start: missing")
    return starts


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _comparable(value: object) -> object:
    if isinstance(value, str) and value.casefold() in CODECS:
        return CODECS[value.casefold()]
    whole = _whole(value)
    return value if whole is None else whole


def _whole(value: object) -> int | None:
    """Return a field's whole number, given as number or text; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)  # below LARGEST
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value) if abs(value) < LARGEST else None


def _id(places: list[Any], *names: str) -> str:
    ids = (value for source in places for value in values(source, *names))
    return next((str(value) for value in ids if isinstance(value, str | int) and not isinstance(value, bool)), "")


def _shown(value: object) -> str:
    return ascii(value)[:SHOWN]


class CallEvent(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Outgoing frame of a call; `result` is a message of Deepgram's protocol."""

    event: str
    stream_sid: str
    call_sid: str
    track: str
    result: msgspec.Raw | None = None
    digit: str | None = None
    name: str | None = None


TRACKS = ("inbound", "outbound")
BOTH = "both"
LAG_S = 2.0
"""How far a track may lag the other one before silence replaces what was not sent."""
GAP_S = 0.1  # between two messages of a track: less is jitter of its times
MAX_GAP_S = 600.0
SILENCE_S = 1.0  # pushed at once


class TwilioAdapter(CallAdapter):
    """Adapter of one stream of a call."""

    def __init__(self, projector: Projector, *, model_rate: int, track: str) -> None:
        """Media of other tracks than `track` is ignored; `BOTH` tracks are channels, in the order of `TRACKS`."""
        super().__init__(projector)
        self._model_rate = model_rate
        self._track = track
        self._tracks = TRACKS if track == BOTH else (track,)
        self._inputs: tuple[PlainInput, ...] = ()  # by track; none before `start`
        self._times_count: bool | None = None  # from the start of the stream, as the first one shows; None: none yet
        self._stream_sid = self._call_sid = ""

    def binary(self, chunk: bytes) -> Actions:
        """Handle a message in a binary frame; refuse others: in this protocol audio is base64."""
        if (text := control_text(chunk)) is not None:
            return self.text(text)
        return (Reject("binary frames are not supported; send media messages"),)

    def text(self, text: str) -> Actions:
        """Handle a message of Twilio; an invalid one is skipped in a call that has started, else it ends the call.

        The protocol has no error message, and one damaged message of 20 ms is no reason to lose a call.
        """
        try:
            return tuple(self._handle(parse_message(text)))
        except BadFrame as error:
            return (Skip(str(error)) if self._inputs else Reject(str(error)),)

    def _handle(self, message: Message) -> Iterator[Action]:
        match event_of(message):
            case "start":
                yield from self._start(message)
            case "media":
                yield from self._media(message)
            case "dtmf" if self._projector.request.options.redact:
                yield Skip("dtmf withheld: redact is set")
            case "dtmf":
                digit = text_of(message, "dtmf", "digit")
                yield Skip("dtmf without a digit") if digit is None else SendFrame(self._frame("dtmf", digit=digit))
            case "mark":
                name = text_of(message, "mark", "name")
                yield Skip("mark without a name") if name is None else SendFrame(self._frame("mark", name=name))
            case "stop":
                for track in self._inputs:
                    yield from track.tail()
                yield Finish()
            case "connected":
                pass  # the first message of a call; it has no useful content
            case _:
                yield Skip("unknown event")

    def _start(self, message: Message) -> Iterator[Action]:
        if self._inputs:
            raise BadFrame("start: sent more than once")
        form = form_of(message)
        self._stream_sid, self._call_sid = ids_of(message)
        channels = range(len(self._tracks)) if self._track == BOTH else (None,)
        self._inputs = tuple(PlainInput(form.codec, form.rate, self._model_rate, channel) for channel in channels)
        yield SendFrame(self._frame("start"))

    def _media(self, message: Message) -> Iterator[Action]:
        if not self._inputs:
            raise BadFrame("media: received before start")
        media = media_of(message)
        if media.track in self._tracks:
            yield from self._read(self._tracks.index(media.track), media)
        elif media.track not in TRACKS:
            yield Skip("media of an unknown track")

    def _read(self, channel: int, media: Media) -> Iterator[Action]:
        """Read audio of a track; with both, at the stream time that it states, and keep them at the same one."""
        read = self._inputs[channel]
        if self._track == BOTH and media.start_s is not None:
            if self._times_count is None:
                self._times_count = media.start_s <= LAG_S + GAP_S  # else it is a clock of another kind
            if self._times_count and media.start_s - read.received_s <= MAX_GAP_S:
                while (missing_s := media.start_s - read.received_s) > GAP_S:
                    yield read.silence(min(missing_s, SILENCE_S))
                    yield from self._follow(read)
        yield read.read(media.audio)
        yield from self._follow(read)

    def _follow(self, read: PlainInput) -> Iterator[Action]:
        """Push silence on tracks that lag a track."""
        for other in self._inputs:
            missing_s = read.received_s - LAG_S - other.received_s
            if missing_s > 0:
                yield other.silence(missing_s)

    def _frame(self, event: str, *, channel: int | None = None, **fields: Any) -> bytes:
        track = self._track if channel is None else self._tracks[channel]
        return encode(CallEvent(event, self._stream_sid, self._call_sid, track, **fields))
