"""A second CTC target beside the letters: the phones of the text.

English spelling is irregular, and a few hours of speech do not suffice to learn it together with the sounds; phones
represent the sounds alone. Source of the idea: Fernández et al. 2007 (hierarchical CTC), Sanabria and Metze 2018,
arXiv:1807.06234.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from model.lexicon.espeak import pronounce


@dataclass(frozen=True, slots=True)
class Pronunciations:
    """Phones by word, as indices from 1 into `phones`; 0 is the blank."""

    phones: tuple[str, ...]
    words: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Pronunciations:
        """Pronounce every word of the texts with espeak-ng. Raises: TrainingError if it is missing or fails."""
        spoken = pronounce(sorted({word for text in texts for word in text.split()}))
        phones = tuple(sorted({phone for sounds in spoken.values() for phone in sounds}))
        index = {phone: number for number, phone in enumerate(phones, 1)}
        return cls(phones, {word: tuple(index[phone] for phone in sounds) for word, sounds in spoken.items()})

    def target(self, text: str) -> list[int]:
        """Phones of a text, without word boundaries."""
        return [phone for word in text.split() for phone in self.words[word]]
