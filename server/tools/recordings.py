"""Read recordings given on the command line: files, folders and standard input, with the decoder for uploads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from server.audio.formats import SUFFIXES, AudioForm, audio_form
from server.audio.pcm import downmix
from server.audio.recordings.recording import Recording
from server.errors import Refused
from tutti_asr_client.errors import AudioError

STDIN = Path("-")
CONTAINER = audio_form(None, None)


class BadInput(Exception):
    """A path is not a recording, or an output path is invalid."""


def recordings_of(paths: Sequence[Path]) -> list[Path]:
    """Return the recordings under the given paths; folders are searched recursively. Raises: BadInput."""
    if list(paths).count(STDIN) > 1:
        raise BadInput("-: standard input can be given only once")
    return [recording for path in paths for recording in _recordings(path)]


def _recordings(path: Path) -> Iterator[Path]:
    if path == STDIN or path.is_file() or path.is_fifo():
        yield path
    elif path.is_dir():
        named = (file for file in path.rglob("*") if file.suffix.lower().removeprefix(".") in SUFFIXES)
        recordings = sorted(file for file in named if not file.is_dir())  # reading a broken link says what is wrong
        if not recordings:
            raise BadInput(f"{path}: no recording in this folder; expected {', '.join(SUFFIXES)}")
        yield from recordings
    else:
        raise BadInput(f"{path}: no such file or folder")


def piped_bodies(paths: Sequence[Path]) -> dict[Path, bytes]:
    """Read standard input and pipes, such as a shell's `<(…)`: an interruption would not end a read in a thread."""
    return {
        path: sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        for path in paths
        if path == STDIN or path.is_fifo()
    }


class RecordingReader:
    """Reads a file as int16 samples, (S,) mono or (S, C) with all channels. Thread-safe."""

    def __init__(
        self,
        warn: Callable[[str], None],
        piped: Mapping[Path, bytes] = MappingProxyType({}),
        *,
        form: AudioForm = CONTAINER,
        multichannel: bool = False,
        names: Sequence[str] = (),
    ) -> None:
        """`warn` is called with each warning about damaged or incomplete audio.

        `piped`: what `piped_bodies` has read, for callers in a thread. `form`: of files without a header. `names`: of
        the channels; a file with another number of them is refused.
        """
        self._warn = warn
        self._piped = piped
        self._form = form
        self._multichannel = multichannel
        self._names = names

    def __call__(self, path: Path, sample_rate: int) -> NDArray[np.int16]:
        """Return the samples of a file, resampled to `sample_rate` in Hz. Raises: AudioError."""
        try:
            body = self._body(path)
            recording = Recording(body, self._form, rate=sample_rate, max_s=float("inf"))
            if self._names and recording.channels != len(self._names):
                raise AudioError(path, f"{recording.channels} channels, but {len(self._names)} names for them")
            blocks = []
            while (block := recording.next_block()) is not None:
                blocks.append(block if self._multichannel else downmix(block))
        except OSError as error:
            raise AudioError(path, error.strerror or str(error)) from error
        except Refused as error:
            raise AudioError(path, str(error)) from error
        for warning in recording.warnings:
            self._warn(f"{path}: {warning}")
        return np.concatenate(blocks)

    def _body(self, path: Path) -> bytes:
        piped = self._piped if path in self._piped else piped_bodies([path])
        return piped[path] if path in piped else path.read_bytes()
