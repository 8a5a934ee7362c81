"""The recordings that are played, cut into the messages in which they are sent, and their reference texts.

Owns their choice from a manifest and, per stream, from those that fit into the time left. Knows no socket.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

import loadtest
from loadtest.errors import BadManifest, NoReference
from loadtest.generator.frames import BINARY, masked
from loadtest.generator.settings import SAMPLE_RATE, STEP_SAMPLES
from tutti_asr_client.errors import AudioError, Refused, Unreachable
from tutti_asr_client.files.audio import read_pcm
from tutti_asr_client.files.display import SilentDisplay
from tutti_asr_client.files.file_result import Failed
from tutti_asr_client.files.transcribe import transcribe_file
from tutti_asr_client.files.transcriber import Transcriber

LONGEST_SHARE = 1 / 3
"""Recordings up to a third of a level are preferred: then each stream completes several, which can be compared."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One file as messages: whole steps, then perhaps a shorter rest."""

    path: Path
    messages: tuple[bytes, ...]
    ends_s: tuple[float, ...]  # when each message's last sample is spoken, from the start
    steps: int  # number of messages that are whole steps
    frames: tuple[bytes, ...] = ()  # the messages as they go over the wire, masked once
    language: str = ""  # asked for with it; empty: the server's first one

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return self.ends_s[-1]


class Line(msgspec.Struct):
    """One line of a manifest; `audio` is a path relative to it until it has been read."""

    audio: str
    duration: float | None = None
    text: str = ""
    language: str = ""  # lines of several make a load of several


def shipped_manifest() -> Path:
    """The manifest of the recordings that come with the model."""
    return Path(loadtest.__file__).parent.parent / "model" / "samples" / "samples.jsonl"


def read_manifest(manifest: Path | None) -> list[Line]:
    """The lines of a manifest, or of the shipped one. Raises: BadManifest: there is none, or it cannot be read."""
    source = shipped_manifest() if manifest is None else manifest
    try:
        lines = [msgspec.json.decode(line, type=Line) for line in source.read_bytes().splitlines() if line.strip()]
    except (OSError, msgspec.DecodeError) as error:
        raise BadManifest(f"{source}: {error}") from error
    if not lines:
        raise BadManifest(f"{source}: no recordings in it")
    return [msgspec.structs.replace(line, audio=str(source.parent / line.audio)) for line in lines]


def load(manifest: Path | None, *, level_s: float, at_most: int, seed: int) -> tuple[Recording, ...]:
    """Up to `at_most` recordings, shortest first; those that fit a level several times are preferred.

    Raises:
        BadManifest: no such manifest, a line that cannot be read, or a file that is not audio.
    """
    lines = read_manifest(manifest)
    short = [line for line in lines if line.duration is None or line.duration <= level_s * LONGEST_SHARE]
    chosen = short or sorted(lines, key=lambda line: line.duration or 0.0)[:at_most]
    if len(chosen) > at_most:
        chosen = random.Random(seed).sample(chosen, at_most)
    try:
        read = [replace(cut(Path(line.audio)), language=line.language) for line in chosen]
    except AudioError as error:
        raise BadManifest(str(error)) from error
    return tuple(sorted(read, key=lambda recording: recording.duration_s))


def cut(path: Path) -> Recording:
    """Read one file and cut it into messages.

    Raises:
        AudioError: it cannot be read.
    """
    pcm = read_pcm(path, SAMPLE_RATE).astype("<i2", copy=False)
    firsts = range(0, len(pcm), STEP_SAMPLES)
    messages = tuple(pcm[first : first + STEP_SAMPLES].tobytes() for first in firsts)
    return Recording(
        path=path,
        messages=messages,
        ends_s=tuple(min(first + STEP_SAMPLES, len(pcm)) / SAMPLE_RATE for first in firsts),
        steps=len(pcm) // STEP_SAMPLES,
        frames=tuple(masked(BINARY, message) for message in messages),
    )


def choose(recordings: Sequence[Recording], left_s: float, rng: random.Random) -> Recording:
    """Any of the recordings, given shortest first, that ends within `left_s`; if none does, the shortest."""
    fitting = bisect.bisect_right(recordings, left_s, key=lambda recording: recording.duration_s)
    return recordings[rng.randrange(fitting)] if fitting else recordings[0]


async def reference_texts(recordings: Sequence[Recording], speaking: Callable[[str], Transcriber]) -> dict[str, str]:
    """The text of each recording by its path when it is the only stream: what load must not change.

    The recordings go through the same server, as fast as it answers; `speaking` gives what hears a language.

    Raises:
        Unreachable, Refused: the server takes no stream.
        NoReference: a recording fails although it is alone.
    """
    texts: dict[str, str] = {}
    for recording in recordings:
        outcome = await transcribe_file(recording.path, speaking(recording.language), SilentDisplay(), realtime=False)
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, Unreachable | Refused):
                raise outcome.error
            raise NoReference(f"{outcome.path}: {outcome.problem} (alone, before any load)") from outcome.error
        texts[str(outcome.path)] = outcome.text
    return texts
