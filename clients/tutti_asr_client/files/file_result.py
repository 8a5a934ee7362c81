"""Result of one file, its transcript with timings or its error, and the JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from tutti_asr_client.errors import ClientError
from tutti_asr_client.messages import Results, Word


@dataclass(frozen=True, slots=True)
class Transcribed:
    """A completely transcribed file."""

    path: Path
    text: str
    words: tuple[Word, ...]
    duration_s: float
    elapsed_s: float
    final_latency_s: float

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


def final_line(path: Path, results: Results) -> str:
    """Return one final as a line of JSON."""
    return _line(
        type="final",
        file=_shown(path),
        start=results.start,
        duration=results.duration,
        text=results.text,
        words=results.words,
    )


def file_result_line(result: FileResult) -> str:
    """Return the last line of a file as JSON."""
    if isinstance(result, Failed):
        return _line(type="error", file=_shown(result.path), error=result.problem)
    return _line(
        type="file",
        file=_shown(result.path),
        text=result.text,
        words=result.words,
        duration_s=round(result.duration_s, 3),
        real_time_factor=round(result.real_time_factor, 4),
        final_latency_ms=round(result.final_latency_s * 1e3, 2),
    )


def _shown(path: Path) -> str:
    """Return a path as text; bytes that are not UTF-8 are escaped."""
    return str(path).encode(errors="backslashreplace").decode()


def _line(**fields: object) -> str:
    return msgspec.json.encode(fields).decode()
