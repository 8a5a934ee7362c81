"""A Whisper model in CTranslate2's form, by the optional package faster-whisper: audio in, text out.

The text is the most probable one (beam 1) of each window of 30 s, without timestamps, without the text before it, and
without other temperatures where it is improbable, in 8-bit integers on one thread a call. So it depends on the audio,
the model and the machine alone. Source: Radford et al. 2022 (arXiv:2212.04356).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError, require

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

PREFIX = "whisper:"
SAMPLE_RATE = 16_000  # of the audio, Hz
FILES = ("model.bin", "config.json", "tokenizer.json")
VOCABULARIES = ("vocabulary.json", "vocabulary.txt")  # one of them
ENGLISH = "en"
SHOWN = 8  # languages that a message lists
_OWN_LIST = -1  # stands for the symbols that the model's own list suppresses
_NUMERIC_SIGNS = frozenset("%$£€¥&°")


@dataclass(frozen=True, slots=True)
class WhisperReading:
    """Text of a recording as Whisper writes it, and how sure it is.

    `confidence`: 0 to 1, the geometric mean over the symbols. `repetition`: size of the text over that of its
    compressed form, the largest of all windows; texts that repeat themselves have more than 2.4.
    """

    text: str
    confidence: float
    repetition: float


def folder_of(text: str) -> Path:
    """Return the folder of `whisper:DIR`. Raises: ValueError with what is wrong."""
    folder = text.removeprefix(PREFIX)
    if folder == text or not folder:
        raise ValueError(f"must be {PREFIX}DIR, the folder of a Whisper model in CTranslate2's form")
    return Path(folder)


def check_folder(folder: Path, purpose: str) -> None:
    """Check, without loading anything, that the package and the files are there.

    `purpose` begins the messages. Raises: MissingPackage, CheckpointError.
    """
    require("faster_whisper", "whisper", purpose)
    if not folder.is_dir():
        raise CheckpointError(f"{purpose}: {folder}: no such folder")
    lacking = [name for name in FILES if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in VOCABULARIES):
        lacking.append(" or ".join(VOCABULARIES))
    if lacking:
        raise CheckpointError(
            f"{purpose}: {folder} has no {', '.join(lacking)}; it must be a Whisper model in CTranslate2's form"
        )


class Whisper:
    """A loaded model. As many threads as it was loaded for may read at a time; further ones wait."""

    def __init__(self, model: WhisperModel, *, in_words: bool = False) -> None:
        """`in_words`: write numbers as they are said ("twenty five"), without digits and signs such as %."""
        self._model = model
        self._suppressed = [_OWN_LIST, *(_numeric(model) if in_words else ())]
        self.languages: Sequence[str] = model.supported_languages

    @classmethod
    def load(cls, folder: Path, purpose: str, *, in_words: bool = False, threads: int = 1) -> Whisper:
        """Load a folder, and read a second of silence. `purpose` begins the messages of errors.

        Raises: MissingPackage; CheckpointError for a folder that cannot be used.
        """
        check_folder(folder, purpose)
        from faster_whisper import WhisperModel

        try:
            model = WhisperModel(
                str(folder),
                device="cpu",
                compute_type="int8",
                cpu_threads=1,
                num_workers=threads,
                local_files_only=True,
            )
            loaded = cls(model, in_words=in_words)
            loaded.read(np.zeros(SAMPLE_RATE, np.int16), loaded.languages[0])
        except Exception as error:  # its packages raise bare `Exception`, too
            raise CheckpointError(f"{purpose}: {folder} cannot be used: {error}") from error
        return loaded

    def has_language(self, tag: str) -> bool:
        """Whether it reads the language of a tag such as `en-US`."""
        return _language(tag) in self.languages

    def read(self, pcm: NDArray[np.int16], language: str, terms: str = "") -> WhisperReading:
        """Return the text of samples (S,) at `SAMPLE_RATE` in the language of a tag, which it has.

        `terms`, with commas, are written before the text as a prompt, so that they are recognized more often.
        """
        segments, _ = self._model.transcribe(
            pcm.astype(np.float32) / 32_768,
            language=_language(language),
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
            suppress_tokens=self._suppressed,
            hotwords=terms or None,
        )
        windows = list(segments)
        mean = sum(window.avg_logprob for window in windows) / max(1, len(windows))
        return WhisperReading(
            " ".join(window.text.strip() for window in windows),
            math.exp(min(0.0, mean)) if windows else 0.0,
            max((window.compression_ratio for window in windows), default=0.0),
        )


def _language(tag: str) -> str:
    """Return the first part of a tag, as Whisper names languages."""
    return tag.partition("-")[0].lower()


def _numeric(model: WhisperModel) -> list[int]:
    """Return the symbols that write numbers, percentages and amounts other than in words."""
    tokenizer = model.hf_tokenizer
    texts = ((symbol, tokenizer.decode([symbol])) for symbol in range(tokenizer.get_vocab_size()))
    return [symbol for symbol, text in texts if any(c.isnumeric() or c in _NUMERIC_SIGNS for c in text)]
