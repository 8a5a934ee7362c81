"""Tracks the results and events delivered to the caller, and finds the new part of later ones. Pure.

All times are stream times in seconds. After a lost connection a server sends the results of replayed audio again.
"""

from __future__ import annotations

from collections import deque

from tutti_asr_client.audio_shape import AudioShape
from tutti_asr_client.messages import Message, Results, SpeechStarted, UtteranceEnd, without_words_before

TOLERANCE_S = 0.002
"""Times closer than this count as equal because servers round them."""


class Delivery:
    """The delivered messages of one stream, by channel."""

    def __init__(self, shape: AudioShape, rewind_s: float) -> None:
        """`rewind_s`: seconds of finals that a Rewind can decode again."""
        self._shape = shape
        self._rewind_bytes = shape.size(rewind_s)
        self._ended_s = [0.0] * shape.transcripts  # end of each channel's last final
        self._ends: deque[int] = deque([0])  # positions at which finals ended; a replay starts at the first
        self._reached_s = [0.0] * shape.transcripts  # latest end of each channel's messages
        self._known_interim_s = [0.0] * shape.transcripts  # interims up to here were delivered
        self.reached_before_s = 0.0  # latest of all channels at the start of the current connection
        self._event_s: dict[tuple[object, ...], float] = {}  # time of the last event, by kind and channel
        self._closed = [False] * shape.transcripts  # whether a final covers all audio, after CloseStream
        self._closed_before = list(self._closed)  # `_closed` at the start of the current connection

    @property
    def ended(self) -> int:
        """Position up to which finals of every channel cover the audio."""
        return self._shape.size(min(self._ended_s))

    @property
    def needed_from(self) -> int:
        """Position from which a replay without a ticket starts: the end of a final, not after `ended`."""
        return self._ends[0]

    @property
    def closed(self) -> bool:
        """Whether finals cover all audio of a stream that was closed."""
        return all(self._closed)

    def connected(self) -> None:
        """Start a new connection."""
        self._known_interim_s = list(self._reached_s)
        self.reached_before_s = max(self._reached_s)
        self._closed_before = list(self._closed)

    def interim(self, results: Results) -> list[Message]:
        """Return the new part of an interim."""
        channel = results.channel_index[0]
        if results.cursor_s <= self._known_interim_s[channel] + TOLERANCE_S:
            return []
        self._known_interim_s[channel] = 0.0  # from now on every interim is new
        self._reached_s[channel] = max(self._reached_s[channel], results.cursor_s)
        return self._undelivered(results, closing=True)

    def final(self, results: Results, *, closing: bool, whole_s: float | None) -> list[Message]:
        """Return the new part of a final. `closing`: CloseStream was requested; `whole_s`: and all audio was sent."""
        channel = results.channel_index[0]
        fresh = self._undelivered(results, closing=closing)
        self._ended_s[channel] = max(self._ended_s[channel], results.cursor_s)
        self._reached_s[channel] = max(self._reached_s[channel], results.cursor_s)
        if whole_s is not None:
            self._closed[channel] |= not results.from_finalize and results.cursor_s >= whole_s - TOLERANCE_S
        if self.ended > self._ends[-1]:
            self._ends.append(self.ended)
        while len(self._ends) > 1 and self._ends[1] <= self.ended - self._rewind_bytes:
            self._ends.popleft()
        return fresh

    def _undelivered(self, results: Results, *, closing: bool) -> list[Message]:
        """Return the part of a result after the channel's last final."""
        channel = results.channel_index[0]
        ended_s = self._ended_s[channel]
        empty = results.is_final and not (results.duration or results.from_finalize)
        if empty and (not closing or self._closed_before[channel]):
            return []  # the empty final of a drain, or of a repeated CloseStream
        if results.start >= ended_s - TOLERANCE_S:
            return [results]
        if results.cursor_s <= ended_s + TOLERANCE_S:
            return []
        return [without_words_before(results, ended_s)]

    def event(self, event: SpeechStarted | UtteranceEnd, *, replay: bool) -> list[Message]:
        """Return an event unless it was already delivered: in a replay the server sends it again."""
        begins = isinstance(event, SpeechStarted)
        at_s = event.timestamp if isinstance(event, SpeechStarted) else event.last_word_end
        delivered_s = self._event_s.get((begins, event.channel), -1.0)
        if begins and replay:
            delivered_s = max(delivered_s, self.reached_before_s)
        if at_s <= delivered_s + TOLERANCE_S:
            return []
        self._event_s[begins, event.channel] = at_s
        return [event]
