"""Whisper as a recognizer of whole recordings, for `tutti evaluate --against whisper:DIR`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.errors import CheckpointError
from model.whisper import ENGLISH, PREFIX, SAMPLE_RATE, Whisper
from server.audio.pcm import PCM, Resampler
from server.tools.evaluate import LINE_RATE, TABLES, CodedTranscriber
from tutti_asr_client.files.transcribe import OpenTranscriber
from tutti_asr_client.messages import Alternative, Channel, Message, Results

OPTION = "--against"


@dataclass(frozen=True, slots=True)
class Against:
    """A Whisper model that reads the same recordings, in the language of ours."""

    folder: Path
    whisper: Whisper
    language: str

    @classmethod
    def load(cls, folder: Path, languages: Sequence[str]) -> Against:
        """Load it for the first of our model's languages; none are known of some published models.

        Raises: MissingPackage, CheckpointError.
        """
        whisper = Whisper.load(folder, f"{OPTION} {PREFIX}{folder}")
        if not languages and whisper.languages != [ENGLISH]:
            raise CheckpointError(f"{OPTION}: the language of our model is not known; set --language")
        language = languages[0] if languages else ENGLISH
        if not whisper.has_language(language):
            raise CheckpointError(f"{OPTION}: the Whisper model {folder} does not have the language {language!r}")
        return cls(folder, whisper, language)

    @property
    def name(self) -> str:
        """Heading of its column."""
        return f"{PREFIX}{self.folder.name}"

    def opener(self, codec: str | None) -> OpenTranscriber:
        """Return a function that opens it, for recordings that went through a telephone codec or none."""
        if codec is None:
            return lambda: nullcontext(WhisperTranscriber(self.whisper, self.language))
        by_telephone = WhisperTranscriber(self.whisper, self.language, LINE_RATE)
        return lambda: nullcontext(CodedTranscriber(by_telephone, TABLES[codec]()))


class WhisperTranscriber:
    """Reads whole recordings, one at a time; implements the client's `Transcriber`."""

    def __init__(self, whisper: Whisper, language: str, sample_rate: int = SAMPLE_RATE) -> None:
        """`sample_rate` in Hz is that of the audio."""
        self._whisper, self._language = whisper, language
        self.sample_rate = sample_rate

    async def stream(self, pcm: AsyncIterable[bytes]) -> AsyncGenerator[Message, None]:
        """Yield one final with the text of little-endian int16 mono PCM, without words."""
        samples = np.frombuffer(b"".join([chunk async for chunk in pcm]), "<i2").astype(np.int16)
        channel = Channel((Alternative(await asyncio.to_thread(self._read, samples)),))
        yield Results(channel, duration=len(samples) / self.sample_rate, is_final=True)

    def _read(self, samples: PCM) -> str:
        if self.sample_rate != SAMPLE_RATE:
            resampler = Resampler(self.sample_rate, SAMPLE_RATE)
            samples = np.concatenate([resampler.resample(samples), resampler.flush()])
        return self._whisper.read(samples, self._language).text
