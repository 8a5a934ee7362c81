"""Events of recognition, independent of any wire protocol; adapters turn them into frames.

Times are seconds of stream time, which counts the audio that the client sent on this connection. Types that are created
for every step are `msgspec.Struct`: creating a frozen dataclass takes eight times as long (0.43 µs instead of 0.05).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from model.ctc.words import Word
from server.errors import CloseReason
from server.recognition.audio_digest import AudioMark
from server.recognition.steps import Work


class FinalReason(StrEnum):
    """Cause of a final."""

    ENDPOINT = "endpoint"
    FINALIZE = "finalize"
    CLOSE = "close"
    MAX_LEN = "max_len"


class Fallback(StrEnum):
    """Why a final has the text of the first pass where a second pass with a deadline was to read it."""

    FULL = "full"  # too many segments waited
    LATE = "late"  # the deadline passed
    FAILED = "failed"
    REPEATED = "repeated"  # its text repeats itself
    EMPTY = "empty"  # it recognized nothing


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech began after silence."""

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
class VoiceVector:
    """Mean of the vectors of a final's voice, norm 1, and the seconds of audio that they describe."""

    numbers: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Final:
    """A closed segment: its text is frozen, and the next one starts where it ends.

    `overlap`: words of another channel were said at the same time; known only if finals are in the order of speech.
    `audio`: the audio received up to the step that closed it; None in a stream without receipts.
    `fallback`: why a second pass with a deadline gave no text; None with its text, and without one. `voice`: of its
    audio, for streams that ask for it.
    """

    channel: int
    start_s: float
    duration_s: float
    words: tuple[Word, ...]
    reason: FinalReason
    overlap: bool = False
    audio: AudioMark | None = None
    fallback: Fallback | None = None
    voice: VoiceVector | None = None

    @property
    def endpoint_delay_s(self) -> float | None:
        """Audio from the end of the last word to the end of the segment; None unless an endpoint closed words."""
        if self.reason is not FinalReason.ENDPOINT or not self.words:
            return None
        return self.start_s + self.duration_s - self.words[-1].end_s


@dataclass(frozen=True, slots=True)
class Correction:
    """Words of finals, with key terms that were found later; they replace all words from `start_s` on.

    `before` are the words before them in the same sentence, if there are any.
    """

    channel: int
    start_s: float
    duration_s: float
    words: tuple[Word, ...]
    before: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class UtteranceGap:
    """No word followed the last one, whose text is frozen, for the time that the client asked for."""

    channel: int
    last_word_end_s: float


class Silence(msgspec.Struct, frozen=True):
    """Silence at the end of a step, by the level of its audio; 0 during speech. Before the step's other events."""

    channel: int
    end_s: float
    silence_s: float


@dataclass(frozen=True, slots=True)
class ForkWords:
    """Words of the open segment as a flush would give them.

    `running`: the words as a partial would show them, once the stream is decoded up to `known_s`. The words of a
    segment that ends may differ, because its text is known to end there. `first`: those of the first pass, the same as
    `words` without a second one.
    """

    words: tuple[Word, ...]
    running: tuple[Word, ...]
    known_s: float
    first: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Forked:
    """Result of a fork at `end_s`, after the other events of the step that ends there; the stream itself continues.

    None: the fork was refused, or failed.
    """

    channel: int
    end_s: float
    found: ForkWords | None


@dataclass(frozen=True, slots=True)
class TurnAnswered:
    """The turn model's answer for the current pause; None: the pause is over, and the last answer is void."""

    channel: int
    probability: float | None


@dataclass(frozen=True, slots=True)
class Closed:
    """Every channel is flushed; nothing follows."""

    reason: CloseReason
    audio_s: float
    audio: AudioMark | None = None  # all of it, in a stream with receipts
    other_words: int = 0  # of finals, by other voices than the one that is listened to


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """Recognition of this connection failed; nothing follows."""

    error: Exception


Event = (
    SpeechStarted
    | Partial
    | Final
    | Correction
    | UtteranceGap
    | Silence
    | Forked
    | TurnAnswered
    | Closed
    | StreamBroken
)


def separated(events: Iterable[Work | Event]) -> tuple[list[Work], list[Event]]:
    """Return the work for the engines, and the events."""
    work: list[Work] = []
    others: list[Event] = []
    for event in events:
        if isinstance(event, Work):
            work.append(event)
        else:
            others.append(event)
    return work, others


class StepTiming(msgspec.Struct, frozen=True, gc=False):
    """Latency of one step, from its audio to its text, in consecutive parts.

    `arrived_s` and `decoded_s` are clock times: arrival of the step's last audio sample, and of its text.
    """

    arrived_s: float
    queue_wait_s: float  # from the step being ready to the start of its batch
    step_s: float  # the model's step for the batch
    handover_s: float  # transfer from the model thread to the decoder, and wait for the voice-activity model
    decode_s: float  # search and text, of all rows that are decoded together
    decoded_s: float
    rows: int  # of its batch
