"""Twilio Media Streams as an adapter: one track of a call in, results of Deepgram's protocol out.

Each frame carries the ids of its stream and call, so that one receiver can take many calls. `start`, `dtmf`, `mark` and
`stop` are forwarded among the results.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from server.errors import BadFrame
from server.protocols.deepgram.live import Projector
from server.protocols.twilio.messages import (
    CODECS,
    CallEvent,
    Message,
    check_start,
    decode_payload,
    encode,
    parse_message,
)
from server.recognition.events import Closed, Event, StepTiming
from server.streaming.adapter import Action, Actions, Finish, HangUp, PlainInput, Say
from server.streaming.outbox import kind_of

TRACKS = ("inbound", "outbound")


class TwilioAdapter:
    """One stream of a call."""

    def __init__(self, projector: Projector, *, model_rate: int, track: str) -> None:
        """Media of tracks other than `track` is ignored."""
        self._projector = projector
        self._model_rate = model_rate
        self._track = track
        self._input: PlainInput | None = None  # None: before `start`
        self._stream_sid = self._call_sid = ""

    def opened(self) -> Actions:
        """Send nothing: the client begins."""
        return ()

    def binary(self, chunk: bytes) -> Actions:  # noqa: ARG002 - an adapter's
        """Refuse binary frames: audio comes as text in this protocol."""
        return (HangUp("binary frames are not Twilio's"),)

    def text(self, text: str) -> Actions:
        """Take a message of Twilio."""
        try:
            return tuple(self._take(parse_message(text)))
        except BadFrame as error:
            return (HangUp(str(error)),)

    def event(self, event: Event, timing: StepTiming | None) -> Actions:
        """Render an event of recognition."""
        frame = self._projector.frame(event, timing)
        actions: list[Action] = []
        if frame is not None:
            kind, flushed = kind_of(event)
            actions.append(Say(self._frame("transcript", result=msgspec.Raw(frame)), kind, flushed))
        if isinstance(event, Closed):
            actions.append(Say(self._frame("stop")))
        return actions

    def not_biased(self, why: str) -> Actions:  # noqa: ARG002 - an adapter's
        """Do nothing: key terms come with the query, and never change."""
        return ()

    def _take(self, message: Message) -> Iterator[Action]:
        match message.event:
            case "start":
                yield from self._start(message)
            case "media":
                yield from self._media(message)
            case "dtmf" if message.dtmf is not None:
                yield Say(self._frame("dtmf", digit=message.dtmf.digit))
            case "mark" if message.mark is not None:
                yield Say(self._frame("mark", name=message.mark.name))
            case "stop":
                yield from self._input.tail() if self._input is not None else ()
                yield Finish()
            case _:
                pass  # `connected`, and events that Twilio may add

    def _start(self, message: Message) -> Iterator[Action]:
        if self._input is not None:
            raise BadFrame("start: a stream begins once")
        start = check_start(message)
        form = start.media_format
        self._input = PlainInput(CODECS[form.encoding], form.sample_rate, self._model_rate)
        self._stream_sid, self._call_sid = message.stream_sid, start.call_sid
        yield Say(self._frame("start"))

    def _media(self, message: Message) -> Iterator[Action]:
        if self._input is None:
            raise BadFrame("media: before start")
        audio = decode_payload(message.media)
        assert message.media is not None
        if message.media.track == self._track:
            yield self._input.read(audio)

    def _frame(
        self, event: str, *, result: msgspec.Raw | None = None, digit: str | None = None, name: str | None = None
    ) -> bytes:
        return encode(CallEvent(event, self._stream_sid, self._call_sid, self._track, result, digit, name))
