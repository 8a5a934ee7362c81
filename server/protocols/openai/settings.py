"""Settings of a Realtime transcription session: the client's updates, the values in force, their description. Pure.

Settings that this server lacks (noise reduction, log probabilities, prompts) are accepted, and left out of the
description. Source: the types of the `openai` package 3.51.0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from server.audio.raw import PlainCodec
from server.errors import BadFrame, BadParameter
from server.model_names import ModelNames

RATE = 24_000  # of audio/pcm, unless the client says another one
TELEPHONE_RATE = 8_000
RATES = range(8_000, 48_001)
SILENCE_MS = 500  # Source: the documented default of silence_duration_ms
SILENCES_MS = range(20, 60_001)
_CODECS = {"audio/pcm": PlainCodec.S16, "audio/pcmu": PlainCodec.MULAW, "audio/pcma": PlainCodec.ALAW}


class FormatIn(msgspec.Struct, frozen=True):
    """Audio format; `rate` is for audio/pcm only."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int | None = None


class TranscriptionIn(msgspec.Struct, frozen=True):
    """Model, language, and key terms as `keywords`."""

    model: str | None = None
    language: str | None = None
    keywords: list[str] | None = None


class TurnDetection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rule by which a turn of speech ends: silence, for both types."""

    type: Literal["server_vad", "semantic_vad"]
    silence_duration_ms: int | None = None


DEFAULT_TURNS = TurnDetection("server_vad", SILENCE_MS)


class InputIn(msgspec.Struct, frozen=True):
    """Settings of incoming audio; those left out stay."""

    format: FormatIn | UnsetType = UNSET
    transcription: TranscriptionIn | UnsetType | None = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET


class AudioIn(msgspec.Struct, frozen=True):
    """Settings of audio, of which there is input only."""

    input: InputIn = InputIn()


class SessionIn(msgspec.Struct, frozen=True):
    """The `session` of a `session.update`."""

    type: Literal["transcription"] = "transcription"
    audio: AudioIn = AudioIn()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings in force. `served` is the session's model, `model` what the client calls it; None: nothing yet.

    `turns` is None while only the client ends turns.
    """

    served: str
    model: str | None = None
    format: str = "audio/pcm"
    rate: int = RATE
    language: str | None = None
    keywords: tuple[str, ...] = ()
    turns: TurnDetection | None = DEFAULT_TURNS

    @property
    def codec(self) -> PlainCodec:
        """Sample encoding."""
        return _CODECS[self.format]

    def updated(self, raw: msgspec.Raw, names: ModelNames) -> SessionSettings:
        """Return the settings after an update. Raises: BadFrame, whose message is meant for the client."""
        try:
            asked = msgspec.json.decode(raw, type=SessionIn)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadFrame(f"session: {error}") from error
        given = asked.audio.input
        settings = self if given.format is UNSET else replace(self, format=given.format.type, rate=_rate(given.format))
        if given.transcription:
            settings = _with_transcription(settings, given.transcription, names)
        if given.turn_detection is not UNSET:
            settings = replace(settings, turns=_turns(given.turn_detection))
        return settings

    @property
    def silence_ms(self) -> float:
        """Silence that ends an utterance, whether or not it ends a turn."""
        asked_ms = None if self.turns is None else self.turns.silence_duration_ms
        return float(SILENCE_MS if asked_ms is None else asked_ms)

    def described(self, session_id: str, min_silence_ms: float) -> dict[str, object]:
        """Return the wire form of the session; `min_silence_ms` is the least silence that ends a turn."""
        turns: dict[str, object] | None = None
        if self.turns is not None:
            turns = {"type": self.turns.type}
            if self.turns.type == "server_vad":
                silence_ms = round(max(self.silence_ms, min_silence_ms))
                turns |= {"threshold": 0.5, "prefix_padding_ms": 0, "silence_duration_ms": silence_ms}
        pcm = {"type": self.format, "rate": self.rate} if self.format == "audio/pcm" else {"type": self.format}
        transcription: dict[str, object] = {"model": self.model or self.served, "language": self.language}
        if self.keywords:
            transcription["keywords"] = self.keywords
        audio = {"format": pcm, "noise_reduction": None, "transcription": transcription, "turn_detection": turns}
        return {
            "id": session_id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": {"input": audio},
            "include": None,
        }


def _rate(given: FormatIn) -> int:
    if given.type != "audio/pcm":
        return TELEPHONE_RATE
    rate = RATE if given.rate is None else given.rate
    if rate not in RATES:
        raise BadFrame(f"session.audio.input.format.rate: must be from {RATES[0]} to {RATES[-1]}")
    return rate


def _with_transcription(settings: SessionSettings, given: TranscriptionIn, names: ModelNames) -> SessionSettings:
    keywords = settings.keywords if given.keywords is None else tuple(given.keywords)
    model, language = given.model or settings.model, given.language or settings.language
    try:
        served = names.choose(model, language)
    except BadParameter as error:
        raise BadFrame(f"session.audio.input.transcription.{error}") from error
    return replace(settings, served=served, model=model, language=language, keywords=keywords)


def _turns(given: TurnDetection | None) -> TurnDetection | None:
    if given is not None and given.silence_duration_ms is not None and given.silence_duration_ms not in SILENCES_MS:
        raise BadFrame(
            "session.audio.input.turn_detection.silence_duration_ms: "
            f"must be from {SILENCES_MS[0]} to {SILENCES_MS[-1]}"
        )
    return given
