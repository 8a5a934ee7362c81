"""Options of one connection, the operator's limits, and the endpoint rules derived from both. Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from model.prompts import Prompts
from server.audio.pcm import BLOCK_S
from server.errors import BadParameter
from server.recognition.keyterms.keyterms import NO_KEYTERMS, Keyterms
from server.recognition.segments.endpointing import EndpointRules, ScoredEnd
from server.recognition.segments.speaker_rules import SpeakerRules
from server.text.redaction_kinds import NumberLanguage, Redaction

DEFAULT_ENDPOINTING_MS = 10.0  # Source: Deepgram's page on endpointing
IN_FLIGHT_S = 4.0  # of an upload: enough to fill a row of every batch while the next block is decoded
MAX_BACKLOG_S = IN_FLIGHT_S + 2 * BLOCK_S  # of an upload


Finals = Literal["fast", "context", "accurate"]  # context and accurate: a second pass over ended segments
FINALS: tuple[Finals, ...] = get_args(Finals)
InterimStability = Literal["low", "high"]  # low: partials have all words; high: only those that are settled
INTERIM_STABILITIES: tuple[InterimStability, ...] = get_args(InterimStability)
SHOWN = 64  # characters of an invalid value shown in an error


def finals_of(asked: str) -> Finals | None:
    """Return the requested kind of finals; None if not requested. Raises: BadParameter."""
    for each in FINALS:
        if asked == each:
            return each
    if asked:
        raise BadParameter(f"finals: {asked[:SHOWN]!r} is not one of {', '.join(FINALS)}")
    return None


def interim_stability_of(asked: str) -> InterimStability:
    """Return the requested stability of interims. Raises: BadParameter."""
    for each in INTERIM_STABILITIES:
        if asked == each:
            return each
    raise BadParameter(f"interim_stability: {asked[:SHOWN]!r} is not one of {', '.join(INTERIM_STABILITIES)}")


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of one connection. `multichannel` recognizes each channel by itself; otherwise they are mixed down."""

    sample_rate: int = 0  # of the session's audio, Hz; 0: the model's, which `ModelService.session` sets
    channels: int = 1
    multichannel: bool = False
    partials: bool = False
    every_step: bool = False
    tell_stable: bool = False
    partial_interval_ms: float = 0.0
    interim_stability: InterimStability = "low"
    endpointing_ms: float | None = DEFAULT_ENDPOINTING_MS
    scored_end: ScoredEnd | None = None  # of utterances, but not before `endpointing_ms`
    utterance_end_ms: float | None = None
    keyterms: Keyterms = NO_KEYTERMS
    resumable: bool = False
    speech_events: bool = False  # the client reads `SpeechStarted`
    language: str | None = None  # that the client states
    prompts: Prompts | None = None  # languages that the model lets a stream choose; `ModelService.session` sets it
    grammar: str = ""  # name of one of the model's grammars; "": none
    finals: Finals | None = None  # None: the server's default, which `ModelService.session` sets
    redact: frozenset[Redaction] = frozenset()  # numbers that are masked in all results
    number_language: NumberLanguage | None = None  # of masked and unfinished ones; `ModelService.session` sets it
    wait_in_numbers: bool | None = None  # with `scored_end`; None: if the language's number words are known
    finals_at_end: bool = False  # with `redact`: finals are output when the session closes, masked by what follows them
    rewind_s: float = 0.0  # of finals that can be decoded again
    spoken_order: bool = False  # finals of several channels in the order in which they were said
    receipts: bool = False  # finals have the digest of the audio that they depend on
    fork_after_s: float | None = None  # silence after which the words of a turn are needed; one channel only
    rest: bool | None = None  # whether steps of long silence may be left out; None: as the operator chose
    forks: bool = False  # these words are those of a fork
    marks_acknowledgements: bool = False  # by their sound, if the model can
    speakers: SpeakerRules | None = None  # None: speakers are not distinguished

    @property
    def streams(self) -> int:
        """Number of recognized channels; each uses one slot."""
        return self.channels if self.multichannel else 1

    @property
    def listens(self) -> bool:
        """Whether words of other voices than one are marked, or left out."""
        return self.speakers is not None and self.speakers.listens


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the operator sets for every connection."""

    min_endpoint_ms: float = 400.0
    accurate_endpoint_ms: float = 700.0  # no setting: a second pass is better over whole phrases
    silence_endpoint_ms: float | None = 2_400.0  # no setting: closes a segment without words
    max_utterance_s: float = 30.0
    max_backlog_s: float = 30.0
    rest_s: float | None = None  # silence after which steps are not computed; None: all are

    def with_accurate_finals(self) -> Limits:
        """Return the limits of a stream with accurate finals: its segments end after longer pauses."""
        return replace(self, min_endpoint_ms=max(self.min_endpoint_ms, self.accurate_endpoint_ms))


def endpoint_rules(options: SessionOptions, limits: Limits, lookahead_s: float) -> EndpointRules:
    """Return the endpoint rules of a session's channels. `lookahead_s`: of the model."""
    asked_ms, gap_ms = options.endpointing_ms, options.utterance_end_ms
    quiet_s = max(asked_ms or 0.0, limits.min_endpoint_ms) / 1_000
    silence_ms = limits.silence_endpoint_ms
    return EndpointRules(
        endpoint_s=None if asked_ms is None else quiet_s,
        silence_s=None if asked_ms is None or silence_ms is None else silence_ms / 1_000,
        quiet_s=quiet_s,
        utterance_gap_s=None if gap_ms is None else gap_ms / 1_000,
        max_utterance_s=limits.max_utterance_s,
        partials=options.partials,
        every_step=options.every_step,
        tell_stable=options.tell_stable,
        settled_only=options.interim_stability == "high",
        partial_interval_s=options.partial_interval_ms / 1_000,
        scored=options.scored_end,
        lookahead_s=lookahead_s,
        numbers=None if options.wait_in_numbers is False else options.number_language,
    )
