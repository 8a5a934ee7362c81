"""One stream of audio and results over as many connections as it takes. Pure: no socket, no clock.

Owns the stream's time line: where a connection's time begins in it, what has been settled, what must be said again
after a loss, and which of the server's messages the caller has had already. A server that gives tickets goes on exactly
where the newest one was made; any other begins anew at the end of the last final, and its times are shifted.

    stream.add_audio(pcm)                      the caller speaks
    stream.connected()                         a connection is there
    while (frame := stream.next_frame()): …    send these
    for message in stream.receive(heard): …    tell the caller these
    stream.lost()                              it is gone; begin again with `connected`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from tutti_asr_client.audio_shape import AudioShape
from tutti_asr_client.errors import BadMessage
from tutti_asr_client.messages import (
    ConfigureFailure,
    ConfigureSuccess,
    Error,
    Message,
    Metadata,
    Results,
    Resumed,
    ResumeRefused,
    SpeechStarted,
    Ticket,
    UtteranceEnd,
)
from tutti_asr_client.send_log import PIECE_BYTES, Control, SendLog
from tutti_asr_client.time_shift import later, without_words_before

TOLERANCE_S = 0.002
"""Times within it are the same: servers round theirs."""


class Beginning(Enum):
    """How a connection takes the stream up."""

    NEW = auto()  # there was nothing before it
    TICKET = auto()  # the server restored the stream
    REPLAY = auto()  # from the end of the last final


class Continuity:
    """The stream as its caller sees it, and what each connection is to be told of it."""

    def __init__(self, shape: AudioShape, held_bytes: int) -> None:
        self.shape = shape
        self.journal = SendLog(held_bytes)
        self.beginning: Beginning | None = None  # of the present connection; None until it is known
        self.refusals: list[str] = []  # codes of the tickets that were refused, in order
        self.lost_s = 0.0  # audio that had to be left out, because it was no longer held
        self.replayed_s = 0.0  # audio that was to be sent a second time
        self._urgent: deque[str] = deque()  # frames that go before all others
        self._ticket: Ticket | None = None  # the newest, in the time of the server that gave it
        self._origin_s = 0.0  # where that server's time begins in ours
        self._origin_finals = 0
        self._finals = 0  # that have come on the wire, since the stream began
        self._ended_s = [0.0] * shape.transcripts  # the end of each channel's last final
        self._reached_s = [0.0] * shape.transcripts  # the furthest that a message of it went
        self._quiet_s = [0.0] * shape.transcripts  # interims up to here have been told
        self._heard_s = 0.0  # the furthest of all, when the present connection began
        self._told_s: dict[tuple[object, ...], float] = {}  # the last event of each kind and channel
        self._configures: list[Control] = []  # from the newest that everything settled was heard with
        self._lost_until = 0  # audio before it has been counted as lost
        self._awaiting: deque[Control] = deque()  # each Configure that this connection was sent
        self._position = 0  # at which this connection began
        self._high = 0  # position up to which audio has been sent on any connection
        self._replay_until = 0
        self._closing: Control | None = None
        self._closed = [False] * shape.transcripts  # a final came for everything, after CloseStream
        self._closed_before = list(self._closed)  # on an earlier connection
        self._metadata: Metadata | None = None

    # The caller speaks

    def add_audio(self, pcm: bytes) -> None:
        """Append audio, in any quantity."""
        for first in range(0, len(pcm), PIECE_BYTES):
            self.journal.add_audio(pcm[first : first + PIECE_BYTES])

    def finalize(self, channel: int | None = None) -> None:
        """A final of everything so far is wanted; answered once by each channel."""
        every = set(range(self.shape.transcripts))
        asked = every if channel is None else {channel} & every
        self._control("Finalize", asked, **({} if channel is None else {"channel": channel}))

    def configure(self, keyterms: Sequence[str]) -> None:
        """Other key terms hold for the audio that follows."""
        self._configures.append(self._control("Configure", {0}, keyterms=list(keyterms)))

    def close(self) -> None:
        """No audio follows."""
        if self._closing is None:
            self._closing = self._control("CloseStream", set())

    def _control(self, kind: str, answered_by: set[int], **fields: object) -> Control:
        text = msgspec.json.encode({"type": kind, **fields}).decode()
        control = Control(kind, text, self.journal.end, frozenset(answered_by))
        self.journal.add_control(control)
        return control

    @property
    def closing(self) -> bool:
        """Whether the caller has said that no audio follows."""
        return self._closing is not None

    # A connection comes and goes

    def connected(self) -> None:
        """A connection is open: what it is to be told comes from `next_frame`."""
        self._urgent.clear()
        self._awaiting.clear()
        self._quiet_s = list(self._reached_s)
        self._heard_s = max(self._reached_s)
        self._closed_before = list(self._closed)
        self.beginning = None
        if self._ticket is not None and self._in_bytes(self._ticket.audio_s) < self.journal.first:
            self._drop_ticket()  # what it needs is no longer held
        if self._ticket is None:
            self._begin_anew()
            return
        cursor_s = max(0.0, self._heard_s - self._origin_s)
        self._ask(ticket=self._ticket.ticket, finals=self._finals - self._origin_finals, cursor_s=cursor_s)

    def lost(self) -> None:
        """The connection is gone."""
        self.beginning = None
        self.journal.detach()

    def _ask(self, **fields: object) -> None:
        self._urgent.append(msgspec.json.encode({"type": "Resume", **fields}).decode())

    def _begin_anew(self) -> None:
        """On a server that knows nothing of the stream, and need not learn: times are shifted here."""
        position = self._replay_position()
        self._origin_s, self._origin_finals = self.shape.seconds(position), self._finals
        self._begin(position, Beginning.REPLAY if self._high else Beginning.NEW)

    def _replay_position(self) -> int:
        wanted = min(self.shape.size(min(self._ended_s)), self.journal.end)
        frame = self.shape.frame_bytes
        held = -(-self.journal.first // frame) * frame  # the next whole sample
        return max(wanted, held)

    def _begin(self, position: int, beginning: Beginning) -> None:
        self.beginning = beginning
        if beginning is Beginning.REPLAY:
            settled = max(self._lost_until, self.shape.size(min(self._ended_s)))
            self.lost_s += self.shape.seconds(max(0, position - settled))
            self._lost_until = max(self._lost_until, position)
        if not self._restored:
            self._say_what_holds(position)
        self.journal.seek(position)
        self._position = position
        self._replay_until = self.journal.end
        self.replayed_s += self.shape.seconds(max(0, self._high - position))

    def _say_what_holds(self, position: int) -> None:
        """The key terms at a place, unless they are said there in any case."""
        for control in self._configures_before(position)[-1:]:
            if control.at < position or control not in self.journal.controls():
                self._urgent.append(control.text)
                self._awaiting.append(control)

    def _configures_before(self, position: int) -> list[Control]:
        return [control for control in self._configures if control.at <= position]

    @property
    def replaying(self) -> bool:
        """Whether the next audio was there before the connection was: it may have to be held back."""
        return self.journal.sent < self._replay_until

    @property
    def covered(self) -> int:
        """Position before which nothing is at risk: it grows with every ticket and every final."""
        ticketed = 0 if self._ticket is None else self._in_bytes(self._ticket.audio_s)
        return max(ticketed, self.shape.size(min(self._ended_s)))

    def _in_bytes(self, server_s: float) -> int:
        return self.shape.size(self._origin_s + server_s)

    def next_frame(self) -> bytes | str | None:
        """What this connection is to be sent next; None when there is nothing yet."""
        if self._urgent:
            return self._urgent.popleft()
        if self.beginning is None:
            return None
        while (entry := self.journal.take()) is not None:
            if isinstance(entry, bytes):
                self._high = max(self._high, self.journal.sent)
                return entry
            if self._is_done(entry):
                continue
            if entry.kind == "Configure":
                self._awaiting.append(entry)
            else:  # a server that knows the stream does not repeat its answers
                entry.awaited = set(entry.channels - entry.told if self._restored else entry.channels)
            return entry.text
        return None

    @property
    def _restored(self) -> bool:
        return self.beginning is Beginning.TICKET

    def _is_done(self, control: Control) -> bool:
        """Whether this connection's server knows of it without being told."""
        if self._restored:
            return control.ticketed
        return control.kind == "Finalize" and control.answered and self._whole(control.at) <= self._position

    def _whole(self, position: int) -> int:
        return position - position % self.shape.frame_bytes

    # The server speaks

    def receive(self, message: Message) -> list[Message]:
        """What the caller is to hear of one message.

        Raises:
            BadMessage: the server resumes at a place that cannot be.
        """
        if self.beginning is None:
            self._answer(message)
            return []  # whatever else it says is of another stream, which has not heard us
        match message:
            case Results():
                return self._results(later(message, self._origin_s))
            case Ticket():
                self._take_ticket(message)
            case Metadata():
                duration_s = message.duration + self._origin_s
                self._metadata = msgspec.structs.replace(message, duration=duration_s)
            case ConfigureSuccess() | ConfigureFailure():
                return self._configure_answered(message)
            case SpeechStarted() | UtteranceEnd():
                return self._event(later(message, self._origin_s))
            case Error():
                return [message]
        return []

    def _answer(self, message: Message) -> None:
        """To the question how this connection takes the stream up."""
        match message:
            case Resumed():
                self._resumed(message)
            case ResumeRefused():
                self._refused(message.code)
            case Error():  # the server knows no tickets
                self._drop_ticket()
                self._begin_anew()

    def _resumed(self, resumed: Resumed) -> None:
        position = self._in_bytes(resumed.audio_s)
        if not self.journal.first <= position <= self.journal.end:
            raise BadMessage(f"audio is wanted from {resumed.audio_s} s on, which is not held")
        self._begin(position, Beginning.REPLAY if self._ticket is None else Beginning.TICKET)

    def _refused(self, code: str) -> None:
        self.refusals.append(code)
        if self._ticket is None:  # without a ticket there is nothing to refuse, but the stream is open
            self._begin_anew()
            return
        self._drop_ticket()
        self._origin_s, self._origin_finals = 0.0, 0
        self._ask(from_s=self.shape.seconds(self._replay_position()), finals=self._finals)

    def _drop_ticket(self) -> None:
        self._ticket = None
        for control in self.journal.controls():
            control.ticketed = False

    def _take_ticket(self, ticket: Ticket) -> None:
        position = self._in_bytes(ticket.audio_s)
        if position < self.journal.first:
            return  # what it needs is no longer held
        if position <= self._position and not self._restored:
            return  # it knows nothing, perhaps not even the key terms
        self._ticket = ticket
        finals = self._origin_finals + ticket.finals
        for control in self.journal.controls():
            at = self._whole(control.at)
            known = control.here if control.kind == "Configure" else control.answered and control.number <= finals
            control.ticketed |= at < position or (at == position and known)
        self._settle()

    def _results(self, results: Results) -> list[Message]:
        channel = results.channel_index[0]
        self._finals += results.is_final
        if channel >= self.shape.transcripts:
            return [results]
        if not results.is_final:
            return self._interim(results, channel)
        repeated = results.from_finalize and self._finalize_answered(channel)
        fresh = [] if repeated else self._not_yet_told(results, channel)
        self._ended_s[channel] = max(self._ended_s[channel], results.cursor_s)
        self._reached_s[channel] = max(self._reached_s[channel], results.cursor_s)
        if self._closing is not None and not self.journal.unsent:
            all_s = self.shape.seconds(self._whole(self.journal.end))
            self._closed[channel] |= not results.from_finalize and results.cursor_s >= all_s - TOLERANCE_S
        self._settle()
        return fresh

    def _interim(self, results: Results, channel: int) -> list[Message]:
        if results.cursor_s <= self._quiet_s[channel] + TOLERANCE_S:
            return []
        self._quiet_s[channel] = 0.0  # the rest is new
        self._reached_s[channel] = max(self._reached_s[channel], results.cursor_s)
        return self._not_yet_told(results, channel)

    def _not_yet_told(self, results: Results, channel: int) -> list[Message]:
        """The part of it that lies behind the channel's last final."""
        ended_s = self._ended_s[channel]
        says_nothing = results.is_final and not (results.duration or results.from_finalize)
        if says_nothing and (not self.closing or self._closed_before[channel]):
            return []  # from a server that drains in a silence, or that was told of the end again
        if results.start >= ended_s - TOLERANCE_S:
            return [results]
        if results.cursor_s <= ended_s + TOLERANCE_S:
            return []
        return [without_words_before(results, ended_s)]

    def _finalize_answered(self, channel: int) -> bool:
        """Take the answer for the oldest Finalize that waits for it; return whether the caller has had it."""
        for control in self.journal.controls():
            if channel in control.awaited:
                repeated = channel in control.told
                control.awaited.discard(channel)
                control.told.add(channel)
                control.number = control.number if repeated else self._finals
                return repeated
        return False

    def _configure_answered(self, message: Message) -> list[Message]:
        if not self._awaiting:
            return [message]
        control = self._awaiting.popleft()
        told = control.answered
        control.told.add(0)
        control.here = True
        return [] if told else [message]

    def _event(self, event: SpeechStarted | UtteranceEnd) -> list[Message]:
        """News only: a server that hears audio again notices again what is in it."""
        begins = isinstance(event, SpeechStarted)
        at_s = event.timestamp if isinstance(event, SpeechStarted) else event.last_word_end
        told_s = self._told_s.get((begins, event.channel), -1.0)
        if begins and self.beginning is Beginning.REPLAY:
            told_s = max(told_s, self._heard_s)
        if at_s <= told_s + TOLERANCE_S:
            return []
        self._told_s[begins, event.channel] = at_s
        return [event]

    def _settle(self) -> None:
        """Let go of what can never be wanted again: what finals cover, and the newest ticket too."""
        position = self.shape.size(min(self._ended_s))
        ticket = self._ticket
        if ticket is not None:
            position = min(position, self._in_bytes(ticket.audio_s))

        def settled(control: Control) -> bool:
            return control.answered and (ticket is None or control.ticketed)

        del self._configures[: max(0, len(self._configures_before(position)) - 1)]
        self.journal.forget_before(position, settled)

    # The end

    @property
    def complete(self) -> bool:
        """Whether the caller has had every final and answer: only the end of the stream can have been lost."""
        owed = any(not control.answered for control in self.journal.controls() if control is not self._closing)
        return all(self._closed) and not owed

    def farewell(self, request_id: str) -> Metadata:
        """The stream's closing message: the server's, or what it would have been."""
        if self._metadata is not None:
            return self._metadata
        return Metadata(request_id, self.shape.seconds(self.journal.end), self.shape.channels)
