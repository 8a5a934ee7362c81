"""Enrolled voices: a folder with a file for each, and which API key may use which.

A file has the vector of a voice, never audio. It is read when a stream asks for it, so that a running server sees
changes at once. A name of a voice may be that of a person, so it is neither logged nor repeated in a refusal.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import structlog

from model.speakers.vectors import SIZE
from server.access.keys import NAME, Key, write_private
from server.errors import BadParameter, SettingsError

SUFFIX = ".voice.json"
FOLDER_MODE = 0o700
NEAR_1 = 0.01  # of the norm of a vector that was rounded
UNKNOWN = (
    "speaker: this key may use no enrolled voice of this name; set first, the voice of the first words, or a name that "
    "`tutti voice list` shows"
)
OTHER_WEIGHTS = (
    "speaker: this voice was enrolled with other weights of the speaker model; delete it, and enroll it again with "
    "`tutti voice`"
)
UNREADABLE = "speaker: this server cannot read the file of this voice; its log says why"

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.voices")


class EnrolledVoice(msgspec.Struct, frozen=True):
    """One voice. Its vector is comparable only with those of the same weights."""

    name: str
    key: str  # name or id of the API key that may use it; "": every key
    weights: str  # SHA-256 of the network's file
    created: str  # date
    seconds: float  # of the voice that it was made from
    vector: bytes  # (SIZE,) float32, little-endian

    def __repr__(self) -> str:
        """Return a text without name and vector, for tracebacks and logs."""
        return f"EnrolledVoice(key={self.key!r}, created={self.created})"


_decode = msgspec.json.Decoder(EnrolledVoice).decode


class VoiceFolder:
    """The voices of a folder. Blocking."""

    def __init__(self, path: Path, weights: str) -> None:
        """`weights`: digest of those that this server has. Raises: SettingsError if the folder cannot be read."""
        self._path = path
        self._weights = weights
        if not path.is_dir():
            raise SettingsError(f"{path} is not a folder; `tutti voice enroll` makes it")
        if not os.access(path, os.R_OK | os.X_OK):
            raise SettingsError(f"cannot read the folder {path}; check its permissions")

    @classmethod
    def made(cls, path: Path, weights: str) -> VoiceFolder:
        """Return a folder, made if needed, for its owner alone. Raises: OSError."""
        path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        return cls(path, weights)

    def find(self, name: str, key: Key | None) -> bytes:
        """Return the vector of a voice that a key may use; None: a caller without a key. Raises: BadParameter.

        A voice of the key's own comes before one for every key. Those of other keys are not looked for, so nothing in
        the answer depends on them.
        """
        own = () if key is None or not key.digest else (key.name, key.id)
        for owner in (*filter(None, own), ""):
            try:
                voice = self.read(name, owner)
            except (OSError, ValueError) as error:
                _log.error("enrolled voice cannot be read", reason=getattr(error, "strerror", "not a voice"))
                raise BadParameter(UNREADABLE) from None
            if voice is not None:
                if not self.fits(voice):
                    raise BadParameter(OTHER_WEIGHTS)
                return voice.vector
        raise BadParameter(UNKNOWN)

    def fits(self, voice: EnrolledVoice) -> bool:
        """Whether a voice was enrolled with the weights that this server has."""
        return voice.weights == self._weights

    def read(self, name: str, key: str) -> EnrolledVoice | None:
        """Return the voice of this name and key, None if there is none. Raises: OSError, ValueError."""
        if not NAME.fullmatch(name):
            return None
        try:
            content = self._file(name, key).read_bytes()
        except FileNotFoundError:
            return None
        voice = _decode(content)
        if (voice.name, voice.key) != (name, key) or (self.fits(voice) and not _is_vector(voice.vector)):
            raise ValueError("not the file of this voice")
        return voice

    def every(self) -> list[EnrolledVoice]:
        """Return all voices, by name and key. Raises: OSError; ValueError for a file of another kind."""
        voices = [_decode(file.read_bytes()) for file in self._path.glob(f"*{SUFFIX}")]
        return sorted(voices, key=lambda voice: (voice.name, voice.key))

    def add(self, name: str, key: str, vector: bytes, seconds: float) -> EnrolledVoice:
        """Store a voice of names that match `NAME`. Raises: FileExistsError if there is one of this name; OSError."""
        file = self._file(name, key)
        if file.exists():
            raise FileExistsError
        today = datetime.now(UTC).date().isoformat()
        voice = EnrolledVoice(name, key, self._weights, today, round(seconds, 1), vector)
        write_private(file, msgspec.json.encode(voice))
        return voice

    def delete(self, name: str, key: str) -> None:
        """Remove a voice of names that match `NAME`. Raises: FileNotFoundError if there is none; OSError."""
        self._file(name, key).unlink()

    def _file(self, name: str, key: str) -> Path:
        return self._path / f"{name}{f'+{key}' if key else ''}{SUFFIX}"


def _is_vector(content: bytes) -> bool:
    """Whether bytes are a vector of norm 1: others, or numbers that are not finite, would be like no voice."""
    return len(content) == 4 * SIZE and bool(abs(np.linalg.norm(np.frombuffer(content, np.float32)) - 1) < NEAR_1)
