"""Result of one file, its transcript with timings or its error, and the JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tutti_asr_client.errors import ClientError
from tutti_asr_client.messages import Results, Word


@dataclass(frozen=True, slots=True)
class Transcribed:
    """A completely transcribed file; `channels` has the words of each channel if several were transcribed."""

    path: Path
    text: str
    words: tuple[Word, ...]
    duration_s: float
    elapsed_s: float
    final_latency_s: float
    channels: tuple[tuple[Word, ...], ...] = ()

    @property
    def real_time_factor(self) -> float:
        """Seconds of processing per second of audio; 1 if the file was sent in real time."""
        return self.elapsed_s / self.duration_s


@dataclass(frozen=True, slots=True)
class Failed:
    """A file that could not be transcribed."""

    path: Path
    error: ClientError

    @property
    def problem(self) -> str:
        """The error's message, without the file's name."""
        return str(self.error).removeprefix(f"{self.path}: ")


FileResult = Transcribed | Failed


def of_channels(results: Sequence[FileResult]) -> FileResult:
    """Return the result of a file from those of its channels: the first failure, else all words in order of time."""
    done = [result for result in results if isinstance(result, Transcribed)]
    if len(results) == 1 or len(done) < len(results):
        return next((result for result in results if isinstance(result, Failed)), results[0])
    channels = tuple(result.words for result in done)
    return Transcribed(
        path=done[0].path,
        text="\n".join(result.text for result in done),
        words=tuple(sorted((word for words in channels for word in words), key=lambda word: word.start)),
        duration_s=done[0].duration_s,
        elapsed_s=max(result.elapsed_s for result in done),
        final_latency_s=max(result.final_latency_s for result in done),
        channels=channels,
    )


def final_line(path: Path, results: Results) -> str:
    """Return one final as a line of JSON."""
    return _line(
        type="final",
        file=_shown(path),
        **({"channel": results.channel_index[0]} if results.channel_index[1] > 1 else {}),
        start=results.start,
        duration=results.duration,
        text=results.text,
        words=results.words,
    )


def file_result_line(result: FileResult, **further: object) -> str:
    """Return the last line of a file as JSON, with `further` fields if it was transcribed."""
    if isinstance(result, Failed):
        return _line(type="error", file=_shown(result.path), error=result.problem)
    return _line(
        type="file",
        file=_shown(result.path),
        text=result.text,
        words=result.words,
        **({"channels": [{"words": words} for words in result.channels]} if result.channels else {}),
        **further,
        duration_s=round(result.duration_s, 3),
        real_time_factor=round(result.real_time_factor, 4),
        final_latency_ms=round(result.final_latency_s * 1e3, 2),
    )


def _shown(path: Path) -> str:
    """Return a path as text; bytes that are not UTF-8 are escaped."""
    return str(path).encode(errors="backslashreplace").decode()


def _line(**fields: object) -> str:
    return msgspec.json.encode(fields).decode()
