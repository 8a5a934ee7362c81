"""Recordings of a load test: read from a manifest, cut into messages, with reference texts.

Also chooses the recordings for a level and, for each stream, one that fits into the remaining time.
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
from tutti_asr_client.files.display import Display
from tutti_asr_client.files.file_result import Failed
from tutti_asr_client.files.transcribe import transcribe_file
from tutti_asr_client.files.transcriber import Transcriber

LONGEST_SHARE = 1 / 3
"""Recordings up to a third of a level are preferred, so that each stream completes several for comparison."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One file as messages: whole steps, then possibly a shorter one."""

    path: Path
    messages: tuple[bytes, ...]
    ends_s: tuple[float, ...]  # end of each message's audio, from the start
    steps: int  # number of messages that are whole steps
    frames: tuple[bytes, ...] = ()  # the messages as masked frames
    language: str = ""  # requested language; empty: the server's default
    whole: bool = True  # false: its beginning is missing, so its text cannot be compared

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return self.ends_s[-1]

    def after(self, first: int) -> Recording:
        """Return the audio from message number `first` on."""
        if not first:
            return self
        begin_s = self.ends_s[first - 1]
        return replace(
            self,
            messages=self.messages[first:],
            ends_s=tuple(end_s - begin_s for end_s in self.ends_s[first:]),
            steps=max(0, self.steps - first),
            frames=self.frames[first:],
            whole=False,
        )


class Line(msgspec.Struct):
    """One line of a manifest; `audio` in the file is relative to it."""

    audio: str
    duration: float | None = None
    text: str = ""
    language: str = ""  # a manifest may have several languages


def shipped_manifest() -> Path:
    """Return the manifest of the shipped recordings."""
    return Path(loadtest.__file__).parent.parent / "model" / "samples" / "samples.jsonl"


def read_manifest(manifest: Path | None) -> list[Line]:
    """Return the lines of a manifest, or of the shipped one. Raises: BadManifest if it is missing or invalid."""
    source = shipped_manifest() if manifest is None else manifest
    try:
        lines = [msgspec.json.decode(line, type=Line) for line in source.read_bytes().splitlines() if line.strip()]
    except (OSError, msgspec.DecodeError) as error:
        raise BadManifest(f"{source}: {error}") from error
    if not lines:
        raise BadManifest(f"{source}: contains no recordings")
    return [msgspec.structs.replace(line, audio=str(source.parent / line.audio)) for line in lines]


def load(manifest: Path | None, *, level_s: float, at_most: int, seed: int) -> tuple[Recording, ...]:
    """Return up to `at_most` recordings, shortest first; those that fit into a level several times are preferred.

    Raises:
        BadManifest: the manifest is missing or invalid, or a file is not audio.
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
    """Return a random recording, from a list sorted by length, that fits into `left_s`; else the shortest."""
    fitting = bisect.bisect_right(recordings, left_s, key=lambda recording: recording.duration_s)
    return recordings[rng.randrange(fitting)] if fitting else recordings[0]


async def reference_texts(recordings: Sequence[Recording], speaking: Callable[[str], Transcriber]) -> dict[str, str]:
    """Return the text of each recording without load, by path; load must not change it.

    The recordings are sent to the same server as fast as possible; `speaking` returns the transcriber of a language.

    Raises:
        Unreachable, Refused: the server accepts no stream.
        NoReference: a recording fails without load.
    """
    texts: dict[str, str] = {}
    for recording in recordings:
        outcome = await transcribe_file(recording.path, speaking(recording.language), Display(), realtime=False)
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, Unreachable | Refused):
                raise outcome.error
            raise NoReference(f"{outcome.path}: {outcome.problem} (without load)") from outcome.error
        texts[str(outcome.path)] = outcome.text
    return texts
