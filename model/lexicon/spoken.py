"""Phones of the words of training texts, as targets beside their letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from model.lexicon import espeak


@dataclass(frozen=True, slots=True)
class Pronunciations:
    """Phones by word, as indices from 1 into `phones`; 0 is the blank."""

    phones: tuple[str, ...]
    words: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, texts: Iterable[str], language: str = "en") -> Pronunciations:
        """Pronounce every word of the texts: English ones with espeak-ng, of `zh` syllables with the numbers of tones.

        Raises: TrainingError if espeak-ng is missing or fails, or where a word is no syllable.
        """
        words = sorted({word for text in texts for word in text.split()})
        if language == "zh":
            from model.lexicon import pinyin  # needs a library that English does not

            spoken = pinyin.pronounce(words)
        else:
            spoken = espeak.pronounce(words)
        phones = tuple(sorted({phone for sounds in spoken.values() for phone in sounds}))
        index = {phone: number for number, phone in enumerate(phones, 1)}
        return cls(phones, {word: tuple(index[phone] for phone in sounds) for word, sounds in spoken.items()})

    def target(self, text: str) -> list[int]:
        """Phones of a text, without word boundaries."""
        return [phone for word in text.split() for phone in self.words[word]]
