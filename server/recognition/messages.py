"""Messages to a session: what its client sends, what its engines answer, and what its owner asks of it.

Types that are created for every message of audio or every step are `msgspec.Struct`, as those of `events`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from server.audio.pcm import PCM
from server.errors import CloseReason
from server.recognition.events import Event
from server.recognition.segments.endpointing import ScoredEnd
from server.recognition.segments.pauses import Ask
from server.recognition.steps import StepTag


class Samples(msgspec.Struct, frozen=True, gc=False):
    """Decoded audio, (S, C) int16, or (S, 1) of one channel. Answered by `Work` alone. Raises: BacklogExceeded."""

    pcm: PCM
    arrived_s: float
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class FlushText:
    """Finish the text of the audio so far on one channel, or on all (None); the stream continues."""

    channel: int | None
    arrived_s: float


@dataclass(frozen=True, slots=True)
class EndOfAudio:
    """Finish all text and close. An empty last final is sent only to a client that asked for the end.

    Later audio is ignored; the last event is `Closed`.
    """

    reason: CloseReason
    arrived_s: float


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Set the silence that ends utterances in the audio that follows; at least the operator's minimum.

    With `scored`, the score of an end of turn ends them, but not before that silence. `fork_after_s`: the silence after
    which the stream is forked, if it can be; None: no change. Not of a resumable stream: it is not saved.
    """

    silence_ms: float
    scored: ScoredEnd | None = None
    fork_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ChooseLanguage:
    """Set the language of the steps that follow, one that the model has; None: it finds the language.

    No effect on a model without a choice. Not of a resumable stream: it is not saved.
    """

    language: str | None


@dataclass(frozen=True, slots=True)
class AskInPauses:
    """Ask a turn model about pauses in later audio."""

    ask: Ask


@dataclass(frozen=True, slots=True)
class RewindFinals:
    """Decode the finals of the last seconds again, with further key terms; the corrections that are due answer it.

    Others follow the results of pending steps. Raises: KeytermsTooOften; BiasError for too many phrases.
    """

    seconds: float
    phrases: Sequence[str]
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class StartAt:
    """Let the stream time of an untouched session begin at `stream_s`, to the sample, after `finals` finals."""

    stream_s: float
    finals: int = 0


class StepDecoded(msgspec.Struct, frozen=True, gc=False):
    """A channel's decoder state has been advanced over its oldest step.

    A final with a second pass, and what follows it on its channel, is answered later, by `Waited`.
    """

    channel: int
    tag: StepTag


@dataclass(frozen=True, slots=True)
class Waited:
    """Events of one step that `PendingFinals` gives, now that the second pass or the fork before them has ended."""

    events: list[Event]


@dataclass(frozen=True, slots=True)
class StateSaved:
    """The engines' states of one channel of a resumable stream, decoded up to a mark."""

    channel: int
    state: bytes
    auxiliary: tuple[bytes, ...] = ()  # of auxiliary models


@dataclass(frozen=True, slots=True)
class TicketTaken:
    """`AudioOrder.take_saved` has given a state: the events after its mark are due."""


@dataclass(frozen=True, slots=True)
class ReleaseStates:
    """Release the decoder states. The last message, once nothing is decoded any more."""


Flushing = FlushText | EndOfAudio
"""Answered by the work of a flush, then by the events that belong to no step."""
Command = (
    Endpoint
    | ChooseLanguage
    | AskInPauses
    | RewindFinals
    | StartAt
    | StepDecoded
    | Waited
    | StateSaved
    | TicketTaken
    | ReleaseStates
)
"""Answered by events alone, if by any."""
Message = Samples | Flushing | Command
