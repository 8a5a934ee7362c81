"""Who spoke, in the answers of `/v1/audio/transcriptions`: names of channels and speakers, and known voices.

Source: `TranscriptionDiarized` and `TranscriptionCreateParams` of the `openai` package 3.51.0.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from string import ascii_uppercase

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from model.ctc.words import joined
from server.errors import BadParameter
from server.protocols.openai.messages import Usage
from server.text.formatting import FormattedWord
from server.text.speaker_turns import parts, speaker_of
from server.text.subtitles import Cue, cues, passages, speaker_name

MOST_KNOWN = 4
REFERENCE_S = (2.0, 10.0)
SHOWN = 32  # longest excerpt of a name in an error

Vector = NDArray[np.float32]  # (256,), norm 1
Words = Sequence[FormattedWord]


class DiarizedSegment(msgspec.Struct, tag_field="type", tag="transcript.text.segment"):
    """Words of one speaker without a longer pause."""

    id: str
    start: float
    end: float
    text: str
    speaker: str


class DiarizedAnswer(msgspec.Struct):
    """Answer for `response_format=diarized_json`."""

    task: str
    duration: float
    text: str
    segments: list[DiarizedSegment]
    usage: Usage
    warnings: list[str] | UnsetType = UNSET


class SpeakerNames:
    """Names of the speakers of a recording: those of known voices, else A, B and so on in the order of speech."""

    def __init__(self, known: Mapping[int, str] | None = None) -> None:
        self._known = known or {}

    def __call__(self, speaker: int) -> str:
        """Return the name of a speaker."""
        if speaker in self._known:
            return self._known[speaker]
        letter = speaker - sum(known < speaker for known in self._known)
        return ascii_uppercase[letter % len(ascii_uppercase)]

    def spoken(self, speaker: int) -> str:
        """Return the name of a speaker in subtitles: that of a known voice, else "Speaker 1" and so on."""
        return self._known.get(speaker, speaker_name(speaker))


def diarized(
    words: Sequence[FormattedWord], duration_s: float, name: SpeakerNames, warnings: Sequence[str]
) -> DiarizedAnswer:
    """Return the answer with the segments of a recording."""
    return DiarizedAnswer(
        task="transcribe",
        duration=round(duration_s, 3),
        text=joined(word.text for word in words),
        segments=[
            DiarizedSegment(
                f"seg_{number}",
                round(part[0].word.start_s, 3),
                round(part[-1].word.end_s, 3),
                joined(word.text for word in part),
                name(speaker_of(part) or 0),
            )
            for number, part in enumerate(parts(words))
        ],
        usage=Usage(round(duration_s, 3)),
        warnings=list(warnings) or UNSET,
    )


def check_known(names: Sequence[str], references: Sequence[str]) -> None:
    """Check the fields of known voices. Raises: BadParameter."""
    if len(names) != len(references):
        raise BadParameter(
            f"known_speaker_references: {len(references)} given for {len(names)} known_speaker_names; send one for each"
        )
    if len(names) > MOST_KNOWN:
        raise BadParameter(f"known_speaker_names: {len(names)} given; at most {MOST_KNOWN}")
    if len(set(names)) < len(names) or not all(name.strip() and name.isprintable() for name in names):
        raise BadParameter("known_speaker_names: names must be different, printable and not empty")


def reference_body(url: str, name: str) -> bytes:
    """Return the recording in a data URL. Raises: BadParameter."""
    head, comma, data = url.partition(",")
    why = f"known_speaker_references: that of {name[:SHOWN]!r}"
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise BadParameter(f"{why} is not a data URL; send data:audio/wav;base64,… with a recording of the voice")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadParameter(
            f"{why} is not base64; send data:audio/wav;base64,… with a recording of the voice"
        ) from error


def check_reference(name: str, duration_s: float, voices: Mapping[int, Vector]) -> Vector:
    """Return the vector of a reference's voice, that of most of it. Raises: BadParameter."""
    least_s, most_s = REFERENCE_S
    if not least_s <= duration_s <= most_s:
        raise BadParameter(
            f"known_speaker_references: that of {name[:SHOWN]!r} has {duration_s:.1f} s; must be {least_s:g} to "
            f"{most_s:g} s"
        )
    if not voices:
        raise BadParameter(f"known_speaker_references: that of {name[:SHOWN]!r} has too little voice; send another one")
    return voices[0]


def known_speakers(voices: Mapping[int, Vector], references: Mapping[str, Vector]) -> dict[int, str]:
    """Return the names of the speakers that are known voices, each once, the most similar pairs first."""
    from model.speakers.known_voice import SAME_VOICE
    from model.speakers.vectors import similarity

    pairs = [
        (similarity(voice, reference), speaker, name)
        for speaker, voice in voices.items()
        for name, reference in references.items()
    ]
    names: dict[int, str] = {}
    for score, speaker, name in sorted(pairs, key=lambda pair: (-pair[0], pair[1])):
        if score >= SAME_VOICE and speaker not in names and name not in names.values():
            names[speaker] = name
    return names


def name_of(channel: int, channels: int) -> str:
    """Return the name of a channel, from 0; an empty text if there is only one."""
    return f"Channel {channel + 1}" if channels > 1 else ""


def label_of(name: str) -> str:
    """Return what stands before the words of a channel, as "Channel 1: "."""
    return f"{name}: " if name else ""


def named_passages(channels: Sequence[Words]) -> list[tuple[str, Words]]:
    """Return the passages between pauses with their channels' names, in the order of time."""
    named = [
        (name, part)
        for number, words in enumerate(channels)
        for name in (name_of(number, len(channels)),)
        for part in passages(words, label_of(name))
    ]
    return sorted(named, key=lambda passage: passage[1][0].word.start_s)


def text_of(channels: Sequence[Words]) -> str:
    """Return the text: of several channels a line for all words until another channel speaks, after its name."""
    if len(channels) == 1:
        return joined(word.text for word in channels[0])
    lines: list[tuple[str, list[FormattedWord]]] = []
    for name, words in named_passages(channels):
        if not lines or lines[-1][0] != name:
            lines.append((name, []))
        lines[-1][1].extend(words)
    return "\n".join(label_of(name) + joined(word.text for word in words) for name, words in lines)


def named_cues(channels: Sequence[Words]) -> list[Cue]:
    """Return the cues of all channels; each begins with the name of its channel if there are several."""
    labels = [label_of(name_of(number, len(channels))) for number in range(len(channels))]
    return [cue for words, label in zip(channels, labels, strict=True) for cue in cues(words, label)]
