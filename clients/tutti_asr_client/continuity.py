"""One stream of audio and results over any number of connections. Pure: no socket, no clock.

Owns the stream's time line: the time offset of each connection, the audio to send again after a loss, and the record of
delivered messages. With a ticket, a server continues exactly where the ticket was created. Without a ticket, it starts
at the end of the last final, and its times are shifted. A stream with `rewind_s` starts earlier, so that later Rewinds
reach as far back as without the loss; repeated results are not delivered again.

    stream.add_audio(pcm)                       from the caller
    stream.connected()                          a connection is open
    while (frame := stream.next_frame()): …     send each
    for message in stream.receive(decoded): …   deliver each to the caller
    stream.lost()                               the connection is lost; start again with `connected`
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

import msgspec

from tutti_asr_client.audio_shape import AudioShape
from tutti_asr_client.delivery import Delivery
from tutti_asr_client.errors import BadMessage
from tutti_asr_client.keyterm_changes import KINDS, Answer, KeytermChanges
from tutti_asr_client.messages import (
    ConfigureFailure,
    ConfigureSuccess,
    ContextFailure,
    ContextSuccess,
    Error,
    Message,
    Metadata,
    Results,
    Resumed,
    ResumeRefused,
    RewindFailure,
    SpeechStarted,
    Ticket,
    UtteranceEnd,
    shifted,
)
from tutti_asr_client.send_log import PIECE_BYTES, Control, SendLog


class Beginning(Enum):
    """How a connection starts."""

    NEW = auto()  # nothing was sent before
    TICKET = auto()  # the server restored the stream from a ticket
    REPLAY = auto()  # audio is sent again from the end of the last final, or of an earlier one that a Rewind can reach


class Continuity:
    """The caller's view of the stream, and the frames to send on each connection."""

    def __init__(self, shape: AudioShape, held_bytes: int, rewind_s: float = 0.0) -> None:
        """`rewind_s`: seconds of finals that a Rewind can decode again; not in a stream with tickets."""
        self.shape = shape
        self.send_log = SendLog(held_bytes)
        self.beginning: Beginning | None = None  # of the current connection; None until the server has answered
        self.refusals: list[str] = []  # codes of refused tickets, in order
        self.lost_s = 0.0  # seconds skipped in a replay because they were no longer in memory
        self.replayed_s = 0.0  # seconds to be sent again
        self._urgent: deque[str] = deque()  # frames to send before any others
        self._ticket: Ticket | None = None  # the latest ticket, in its server's time
        self._origin_s = 0.0  # start of the ticket's server time, in stream time
        self._origin_finals = 0
        self._finals = 0  # finals received since the start of the stream
        self._delivery = Delivery(shape, rewind_s)
        self._keyterms = KeytermChanges(shape)
        self._lost_until = 0  # audio before this position is counted in `lost_s`
        self._position = 0  # where this connection's audio started
        self._highest_sent = 0  # position up to which audio was sent on any connection
        self._replay_until = 0
        self._closing: Control | None = None
        self._metadata: Metadata | None = None

    # Called by the user

    def add_audio(self, pcm: bytes) -> None:
        """Append audio of any size."""
        for first in range(0, len(pcm), PIECE_BYTES):
            self.send_log.add_audio(pcm[first : first + PIECE_BYTES])

    def control(self, kind: str, channel: int | None = None, **fields: object) -> None:
        """Send a message of `Controls`; Finalize and Rewind are answered once by each channel, or by this one alone."""
        every = set(range(self.shape.transcripts))
        if kind in KINDS:
            self._keyterms.add(self._append(kind, {0}, **fields))
        elif channel is None:
            self._append(kind, every, **fields)
        else:
            self._append(kind, {channel} & every, **fields, channel=channel)

    def close(self) -> None:
        """End the audio."""
        if self._closing is None:
            self._closing = self._append("CloseStream", set())

    def _append(self, kind: str, answered_by: set[int], **fields: object) -> Control:
        text = msgspec.json.encode({"type": kind, **fields}).decode()
        control = Control(kind, text, self.send_log.end, frozenset(answered_by))
        self.send_log.add_control(control)
        return control

    @property
    def closing(self) -> bool:
        """True once the caller has ended the audio."""
        return self._closing is not None

    # The connection

    def connected(self) -> None:
        """Start a new connection; get its frames from `next_frame`."""
        self._urgent.clear()
        self._keyterms.connected()
        self._delivery.connected()
        self.beginning = None
        if self._ticket is not None and self._in_bytes(self._ticket.audio_s) < self.send_log.first:
            self._drop_ticket()  # the audio after it is no longer in memory
        if self._ticket is None:
            self._begin_anew()
            return
        cursor_s = max(0.0, self._delivery.reached_before_s - self._origin_s)
        self._send_resume(ticket=self._ticket.ticket, finals=self._finals - self._origin_finals, cursor_s=cursor_s)

    def lost(self) -> None:
        """Record that the connection is lost."""
        self.beginning = None
        self.send_log.detach()

    def _send_resume(self, **fields: object) -> None:
        self._urgent.append(msgspec.json.encode({"type": "Resume", **fields}).decode())

    def _begin_anew(self) -> None:
        """Replay to a server without a ticket. To the server the stream is new, so its times are shifted here."""
        position = self._replay_position()
        self._origin_s, self._origin_finals = self.shape.seconds(position), self._finals
        self._begin(position, Beginning.REPLAY if self._highest_sent else Beginning.NEW)

    def _replay_position(self) -> int:
        frame = self.shape.frame_bytes
        held = -(-self.send_log.first // frame) * frame  # the next whole sample
        return max(min(self._delivery.needed_from, self.send_log.end), held)

    def _begin(self, position: int, beginning: Beginning) -> None:
        self.beginning = beginning
        if beginning is Beginning.REPLAY:
            settled = max(self._lost_until, self._delivery.ended)
            self.lost_s += self.shape.seconds(max(0, position - settled))
            self._lost_until = max(self._lost_until, position)
        if not self._restored:
            self._repeat_keyterms(position)
        self.send_log.seek(position)
        self._position = position
        self._replay_until = self.send_log.end
        self.replayed_s += self.shape.seconds(max(0, self._highest_sent - position))

    def _repeat_keyterms(self, position: int) -> None:
        """Send the key-term changes in force at `position`, unless the replay contains their messages."""
        for control in self._keyterms.to_repeat(position, self.send_log.controls()):
            self._urgent.append(control.text)
            self._keyterms.sent(control)

    @property
    def replaying(self) -> bool:
        """True while audio from before this connection has to be sent; sending it is rate-limited."""
        return self.send_log.sent < self._replay_until

    @property
    def safe_position(self) -> int:
        """Position up to which finals or the latest ticket cover the audio."""
        ticketed = 0 if self._ticket is None else self._in_bytes(self._ticket.audio_s)
        return max(ticketed, self._delivery.ended)

    def _in_bytes(self, server_s: float) -> int:
        return self.shape.size(self._origin_s + server_s)

    def next_frame(self) -> bytes | str | None:
        """Return the next frame to send on this connection, or None if nothing is ready."""
        if self._urgent:
            return self._urgent.popleft()
        if self.beginning is None:
            return None
        while (entry := self.send_log.take()) is not None:
            if isinstance(entry, bytes):
                self._highest_sent = max(self._highest_sent, self.send_log.sent)
                return entry
            if self._is_done(entry):
                continue
            if entry.kind in KINDS:
                self._keyterms.sent(entry)
            else:  # a server that restored the stream does not repeat answers
                entry.pending = set(entry.channels - entry.delivered if self._restored else entry.channels)
            return entry.text
        return None

    @property
    def _restored(self) -> bool:
        return self.beginning is Beginning.TICKET

    def _is_done(self, control: Control) -> bool:
        """Return whether the message need not be sent on this connection."""
        if self._restored:
            return control.in_ticket
        if control.kind == "Rewind":
            return control.answered
        return control.kind == "Finalize" and control.answered and self._whole_samples(control.at) <= self._position

    def _whole_samples(self, position: int) -> int:
        return position - position % self.shape.frame_bytes

    # Messages of the server

    def receive(self, message: Message) -> list[Message]:
        """Return the messages to deliver for a server message: none, or one that may be shifted in time or shortened.

        Raises:
            BadMessage: the server resumes at a position that is no longer in memory.
        """
        if self.beginning is None:
            self._resume_answered(message)
            return []  # messages before the answer to Resume belong to an empty stream
        match message:
            case Results():
                return self._results(shifted(message, self._origin_s))
            case Ticket():
                self._take_ticket(message)
            case Metadata():
                duration_s = message.duration + self._origin_s
                self._metadata = msgspec.structs.replace(message, duration=duration_s)
            case ConfigureSuccess() | ConfigureFailure() | ContextSuccess() | ContextFailure() | RewindFailure():
                return self._answer(message)
            case SpeechStarted() | UtteranceEnd():
                event = shifted(message, self._origin_s)
                return self._delivery.event(event, replay=self.beginning is Beginning.REPLAY)
            case Error():
                return [message]
        return []

    def _resume_answered(self, message: Message) -> None:
        """Handle the answer to Resume."""
        match message:
            case Resumed():
                self._resumed(message)
            case ResumeRefused():
                self._refused(message.code)
            case Error():  # the server does not support tickets
                self._drop_ticket()
                self._begin_anew()

    def _resumed(self, resumed: Resumed) -> None:
        position = self._in_bytes(resumed.audio_s)
        if not self.send_log.first <= position <= self.send_log.end:
            raise BadMessage(f"the server resumes at {resumed.audio_s} s, but that audio is no longer in memory")
        self._begin(position, Beginning.REPLAY if self._ticket is None else Beginning.TICKET)

    def _refused(self, code: str) -> None:
        self.refusals.append(code)
        if self._ticket is None:  # a refusal without a ticket violates the protocol, but the stream is open
            self._begin_anew()
            return
        self._drop_ticket()
        self._origin_s, self._origin_finals = 0.0, 0
        self._send_resume(from_s=self.shape.seconds(self._replay_position()), finals=self._finals)

    def _drop_ticket(self) -> None:
        self._ticket = None
        for control in self.send_log.controls():
            control.in_ticket = False

    def _take_ticket(self, ticket: Ticket) -> None:
        position = self._in_bytes(ticket.audio_s)
        if position < self.send_log.first:
            return  # the audio after it is no longer in memory
        if position <= self._position and not self._restored:
            return  # created before any audio of this connection, possibly before its key terms
        self._ticket = ticket
        finals = self._origin_finals + ticket.finals
        replaced = False  # whether a later Configure at the same position replaced it
        for control in reversed(self.send_log.controls()):
            at = self._whole_samples(control.at)
            if at != position:
                control.in_ticket |= at < position
            elif control.kind in KINDS:  # the ticket may precede it even if its answer arrived first
                control.in_ticket |= control.confirmed and replaced and control.kind == "Configure"
                replaced |= control.kind == "Configure"
            else:
                control.in_ticket |= control.answered and control.final_number <= finals
        self._trim()

    def _results(self, results: Results) -> list[Message]:
        channel = results.channel_index[0]
        if results.correction:
            return [] if self._answers("Rewind", channel) else [results]
        self._finals += results.is_final
        if channel >= self.shape.transcripts:
            return [results]
        if not results.is_final:
            return self._delivery.interim(results)
        repeated = results.from_finalize and self._answers("Finalize", channel)
        all_sent = self.closing and not self.send_log.unsent
        whole_s = self.shape.seconds(self._whole_samples(self.send_log.end)) if all_sent else None
        fresh = self._delivery.final(results, closing=self.closing, whole_s=whole_s)
        self._trim()
        return [] if repeated else fresh

    def _answers(self, kind: str, channel: int) -> bool:
        """Match an answer to the oldest unanswered message; return whether the caller already has it."""
        for control in self.send_log.controls():
            if control.kind == kind and channel in control.pending:
                repeated = channel in control.delivered
                control.pending.discard(channel)
                control.delivered.add(channel)
                control.final_number = control.final_number if repeated else self._finals
                return repeated
        return False

    def _answer(self, answer: Answer | RewindFailure) -> list[Message]:
        """Deliver an answer unless the caller has it; a RewindFailure answers for all channels."""
        if not isinstance(answer, RewindFailure):
            return [answer] if self._keyterms.answered(answer) else []
        for control in self.send_log.controls():
            if control.kind == "Rewind" and control.pending:
                control.delivered |= control.pending
                control.pending.clear()
                break
        return [answer]

    def _trim(self) -> None:
        """Drop data that no replay needs: audio covered by both the finals and the latest ticket."""
        position = self._delivery.needed_from
        ticket = self._ticket
        if ticket is not None:
            position = min(position, self._in_bytes(ticket.audio_s))

        def is_done(control: Control) -> bool:
            return control.answered and (ticket is None or control.in_ticket)

        self._keyterms.forget_before(position)
        self.send_log.drop_before(position, is_done)

    # The end

    @property
    def complete(self) -> bool:
        """True once the caller has every final and answer; only the server's close may be missing."""
        owed = any(not control.answered for control in self.send_log.controls() if control is not self._closing)
        return self._delivery.closed and not owed

    def closing_metadata(self, request_id: str) -> Metadata:
        """Return the server's Metadata, or one built from the stream."""
        if self._metadata is not None:
            return self._metadata
        return Metadata(request_id, self.shape.seconds(self.send_log.end), self.shape.channels)
