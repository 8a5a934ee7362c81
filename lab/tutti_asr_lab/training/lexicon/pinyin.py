"""Mandarin syllables as phones: an initial, and a final with its tone.

Characters would be 2,700 symbols, most of which occur only a few times in the training speech; all 180 phones occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from pypinyin import Style, lazy_pinyin, pinyin
from pypinyin.contrib.tone_convert import to_finals_tone3, to_initials

from model.errors import TrainingError

Phones = tuple[str, ...]


@cache
def phones_of(syllable: str) -> Phones:
    """Phones of a syllable with its tone number: "zhong1" is zh, ong1; "yi1" is i1; () if it is not a syllable.

    Finals are written in full, "iu" as "iou" and "ü" as "v"; a syllable without a tone has the fifth, neutral one.
    Source: ISO 7098.
    """
    initial = to_initials(syllable, strict=True)
    final = to_finals_tone3(syllable, strict=True, v_to_u=False, neutral_tone_with_five=True)
    if not final[:-1].isalpha() or not final[-1].isdigit():
        return ()
    return (initial, final) if initial else (final,)


def pronounce(syllables: Sequence[str]) -> dict[str, Phones]:
    """Phones of each syllable. Raises: TrainingError for a word that is not a syllable."""
    found = {syllable: phones_of(syllable) for syllable in syllables}
    if wrong := [syllable for syllable, phones in found.items() if not phones]:
        raise TrainingError(
            f"{wrong[0]!r} is not a syllable with a tone, such as zhong1; "
            "python -m tutti_asr_lab.training.mandarin.speech writes such manifests"
        )
    return found


def readings(character: str) -> tuple[str, ...]:
    """Readings of a Chinese character as syllables, the most common first; () for other characters."""
    (found,) = pinyin(character, style=Style.TONE3, heteronym=True, neutral_tone_with_five=True, errors="ignore") or [
        []
    ]
    return tuple(dict.fromkeys(syllable for syllable in found if phones_of(syllable)))


def syllables_of(text: str) -> tuple[str, ...]:
    """Syllables of a text of Chinese characters, read in their context."""
    return tuple(lazy_pinyin(text, style=Style.TONE3, neutral_tone_with_five=True, errors="ignore"))


def are_syllables(texts: Iterable[str]) -> bool:
    """Whether every text is a syllable."""
    return all(phones_of(text) for text in texts)
