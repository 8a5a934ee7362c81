"""Mandarin syllables as sounds that a network learns: an initial and a final with its tone.

Characters would be 2,700 symbols, of which most occur a few times in the speech that there is; 180 sounds all occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from pypinyin import Style, lazy_pinyin, pinyin
from pypinyin.contrib.tone_convert import to_finals_tone3, to_initials

from model.errors import TrainingError

Sounds = tuple[str, ...]


@cache
def sounds_of(syllable: str) -> Sounds:
    """Sounds of a syllable with the number of its tone: "zhong1" is zh, ong1; "yi1" is i1. None of what is no syllable.

    Finals are written in full, as the standard has them, "iu" as "iou" and "ü" as "v"; a syllable without a tone has
    the fifth, the neutral one. Source: ISO 7098.
    """
    initial = to_initials(syllable, strict=True)
    final = to_finals_tone3(syllable, strict=True, v_to_u=False, neutral_tone_with_five=True)
    if not final[:-1].isalpha() or not final[-1].isdigit():
        return ()
    return (initial, final) if initial else (final,)


def pronounce(syllables: Sequence[str]) -> dict[str, Sounds]:
    """Sounds of each syllable. Raises: TrainingError for one that is none."""
    found = {syllable: sounds_of(syllable) for syllable in syllables}
    if wrong := [syllable for syllable, sounds in found.items() if not sounds]:
        raise TrainingError(
            f"{wrong[0]!r} is no syllable with a tone, such as zhong1: python -m model.training.mandarin.speech"
        )
    return found


def readings(character: str) -> tuple[str, ...]:
    """Syllables that a character may be read as, the most usual first; none of what is no Chinese character."""
    (found,) = pinyin(character, style=Style.TONE3, heteronym=True, neutral_tone_with_five=True, errors="ignore") or [
        []
    ]
    return tuple(dict.fromkeys(syllable for syllable in found if sounds_of(syllable)))


def syllables_of(text: str) -> tuple[str, ...]:
    """Syllables of a text of Chinese characters, read in their context."""
    return tuple(lazy_pinyin(text, style=Style.TONE3, neutral_tone_with_five=True, errors="ignore"))


def are_syllables(texts: Iterable[str]) -> bool:
    """Whether each text is a syllable."""
    return all(sounds_of(text) for text in texts)
