"""Phones of the words of training texts, as a second training target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from model.errors import TrainingError
from model.lexicon.lexicon import Lexicon
from tutti_asr_lab.training.lexicon import espeak


@dataclass(frozen=True, slots=True)
class Pronunciations:
    """Phones by word, as indices from 1 into `phones`; 0 is the blank."""

    phones: tuple[str, ...]
    words: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(
        cls, texts: Iterable[str], language: str = "en", lexicon: Lexicon | None = None, known: Sequence[str] = ()
    ) -> Pronunciations:
        """Pronounce every word of the texts, by a lexicon if given.

        `known` are the phones of a network to start from, which are kept if they cover those of the texts.

        Without one, English words are pronounced by espeak-ng, and texts of `zh` must be syllables with tone numbers;
        other languages need one. Raises: TrainingError if a word has no pronunciation or espeak-ng fails.
        """
        words = sorted({word for text in texts for word in text.split()})
        if lexicon is not None:
            spoken = {word: found[0] for word in words if (found := lexicon.pronounce(word))}
        elif language == "zh":
            from tutti_asr_lab.training.lexicon import pinyin  # needs a library that only Mandarin uses

            spoken = pinyin.pronounce(words)
        elif language == "en":
            spoken = espeak.pronounce(words)
        else:
            raise TrainingError(
                f"pronunciations of {language!r} are not built in: give --lexicon (docs/new-language.md)"
            )
        if missing := [word for word in words if word not in spoken]:
            raise TrainingError(f"the lexicon cannot pronounce {len(missing):,} words: {', '.join(missing[:20])}")
        needed = {phone for each in spoken.values() for phone in each} if lexicon is None else set(lexicon.phones)
        phones = tuple(known) if needed <= set(known) else tuple(sorted(needed))
        index = {phone: number for number, phone in enumerate(phones, 1)}
        return cls(phones, {word: tuple(index[phone] for phone in each) for word, each in spoken.items()})

    def target(self, text: str) -> list[int]:
        """Phones of a text, without word boundaries."""
        return [phone for word in text.split() for phone in self.words[word]]
