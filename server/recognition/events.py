"""What recognition says, before any wire protocol: adapters project these events and never look behind them.

Times are seconds of stream time, which counts the audio that the client sent on this connection. What is made for each
step is a `msgspec.Struct`: a frozen dataclass takes eight times as long to make (0.43 µs against 0.05).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from model.ctc.words import Word
from server.errors import CloseReason


class FinalReason(StrEnum):
    """Why a segment's text was frozen."""

    ENDPOINT = "endpoint"
    FINALIZE = "finalize"
    CLOSE = "close"
    MAX_LEN = "max_len"


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Somebody began to speak after silence."""

    channel: int
    time_s: float


class Partial(msgspec.Struct, frozen=True):
    """The text of the open segment so far; its first `stable_words` words can no longer change."""

    channel: int
    start_s: float
    duration_s: float
    words: tuple[Word, ...]
    stable_words: int


@dataclass(frozen=True, slots=True)
class Final:
    """A closed segment: its text is frozen, and the next one starts where it ends."""

    channel: int
    start_s: float
    duration_s: float
    words: tuple[Word, ...]
    reason: FinalReason

    @property
    def endpoint_delay_s(self) -> float | None:
        """Audio from the end of the last word to the end of the segment; None unless an endpoint closed words."""
        if self.reason is not FinalReason.ENDPOINT or not self.words:
            return None
        return self.start_s + self.duration_s - self.words[-1].end_s


@dataclass(frozen=True, slots=True)
class UtteranceGap:
    """Nothing was said for the asked time since the last word, whose text is frozen."""

    channel: int
    last_word_end_s: float


@dataclass(frozen=True, slots=True)
class Closed:
    """Every channel is flushed; nothing follows."""

    reason: CloseReason
    audio_s: float


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """Recognition of this connection failed; nothing follows."""

    error: Exception


Event = SpeechStarted | Partial | Final | UtteranceGap | Closed | StreamBroken


class StepTiming(msgspec.Struct, frozen=True, gc=False):
    """Where the time of one step went, from its audio to its text; the parts follow one another.

    `arrived_s` and `decoded_s` are clock times: when the step's last audio sample arrived, and when its text was known.
    """

    arrived_s: float
    queue_wait_s: float  # ready to its batch starting
    step_s: float  # the model's step for the batch
    handover_s: float  # from the model's thread to the decoder, and waiting for the voice-activity model
    decode_s: float  # search and text, of all rows that are decoded together
    decoded_s: float
    rows: int  # of its batch
