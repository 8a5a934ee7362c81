"""The Whisper model of the setting `second_pass`: loaded once a process, for all models whose language it has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from model.ctc.interface import Decoder
from model.description import ModelDescription
from model.whisper import PREFIX, Whisper, check_folder
from server.configuration.variables import spelled
from server.recognition.decoding.segment_threads import threads_of
from server.recognition.whisper.whisper_decoder import WhisperDecoder
from server.settings import Settings

UNSPACED = frozenset({"zh", "yue", "ja", "th", "lo", "my", "km"})
"""Languages written without spaces, whose texts by Whisper are not divided into our words; some have two scripts."""


def check_whisper(settings: Settings) -> None:
    """Check that what `second_pass` needs is installed, before models are loaded. Raises: ModelError."""
    if settings.whisper is not None:
        check_folder(settings.whisper, spelled("second_pass"))


def whisper_decoder(
    decoder: Decoder, config: ModelDescription, languages: Sequence[str], settings: Settings
) -> WhisperDecoder | None:
    """Return the decoder of accurate finals by Whisper; None without the setting, and for languages it does not read.

    Raises: ModelError.
    """
    folder = settings.whisper
    if folder is None:
        return None
    whisper = _loaded(folder, threads_of(settings.processes))
    spoken = {tag.partition("-")[0].lower() for tag in languages}
    if len(spoken) != 1 or spoken & UNSPACED or not whisper.has_language(languages[0]):
        return None
    return WhisperDecoder(decoder, whisper, languages[0], config, f"{PREFIX}{folder.name}")


@lru_cache(maxsize=1)
def _loaded(folder: Path, threads: int) -> Whisper:
    return Whisper.load(folder, spelled("second_pass"), in_words=True, threads=threads)
