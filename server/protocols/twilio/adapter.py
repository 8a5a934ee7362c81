"""Adapter of Twilio Media Streams: one track of a call in, or both, results in Deepgram's protocol out.

Each frame carries the ids of its stream and call, so that one receiver can serve many calls. `start`, `dtmf`, `mark`
and `stop` are forwarded between the results.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from server.errors import BadFrame
from server.protocols.deepgram.projector import Projector
from server.protocols.twilio.messages import (
    CallEvent,
    Media,
    Message,
    encode,
    event_of,
    form_of,
    ids_of,
    media_of,
    parse_message,
    text_of,
)
from server.recognition.events import Closed, Event, StepTiming
from server.streaming.adapter import Action, Actions, Finish, PlainInput, Reject, SendFrame, Skip
from server.streaming.outbox import kind_of

TRACKS = ("inbound", "outbound")
BOTH = "both"
LAG_S = 2.0
"""How far a track may lag the other one before silence replaces what was not sent."""
GAP_S = 0.1  # between two messages of a track: less is jitter of its times
MAX_GAP_S = 600.0
SILENCE_S = 1.0  # pushed at once


class TwilioAdapter:
    """Adapter of one stream of a call."""

    def __init__(self, projector: Projector, *, model_rate: int, track: str) -> None:
        """Media of other tracks than `track` is ignored; `BOTH` tracks are channels, in the order of `TRACKS`."""
        self._projector = projector
        self._model_rate = model_rate
        self._track = track
        self._tracks = TRACKS if track == BOTH else (track,)
        self._inputs: tuple[PlainInput, ...] = ()  # by track; none before `start`
        self._times_count: bool | None = None  # from the start of the stream, as the first one shows; None: none yet
        self._stream_sid = self._call_sid = ""

    def opened(self) -> Actions:
        """Send nothing: the client sends first."""
        return ()

    def binary(self, chunk: bytes) -> Actions:  # noqa: ARG002 - an adapter's
        """Refuse a binary frame: in this protocol audio is base64 in text frames."""
        return (Reject("binary frames are not supported; send media messages"),)

    def text(self, text: str) -> Actions:
        """Handle a message of Twilio; an invalid one is skipped in a call that has started, else it ends the call.

        The protocol has no error message, and one damaged message of 20 ms is no reason to lose a call.
        """
        try:
            return tuple(self._handle(parse_message(text)))
        except BadFrame as error:
            return (Skip(str(error)) if self._inputs else Reject(str(error)),)

    def event(self, event: Event, timing: StepTiming | None) -> Actions:
        """Convert a recognition event into frames."""
        frame = self._projector.frame(event, timing)
        actions: list[Action] = []
        if frame is not None:
            kind, flushed = kind_of(event)
            channel = getattr(event, "channel", None)
            track = self._track if channel is None else self._tracks[channel]
            actions.append(SendFrame(self._frame("transcript", result=msgspec.Raw(frame), track=track), kind, flushed))
        if isinstance(event, Closed):
            actions.append(SendFrame(self._frame("stop")))
        return actions

    def bias_refused(self, why: str) -> Actions:  # noqa: ARG002 - an adapter's
        """Do nothing: key terms come with the query and never change."""
        return ()

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
                for each in self._inputs:
                    yield from each.tail()
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

    def _frame(
        self,
        event: str,
        *,
        result: msgspec.Raw | None = None,
        digit: str | None = None,
        name: str | None = None,
        track: str | None = None,
    ) -> bytes:
        return encode(CallEvent(event, self._stream_sid, self._call_sid, track or self._track, result, digit, name))
