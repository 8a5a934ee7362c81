"""Pronunciation of words by espeak-ng, with its symbols reduced to those that can be learned from few hours of speech.

espeak-ng is a Debian package, needed for training and for building a lexicon, but not for serving.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from model.errors import TrainingError

STRESS = str.maketrans("", "", "ˈˌ")
_SWITCH = re.compile(r"\([^)]*\)")  # espeak-ng marks a change of language with its name in brackets
SPEAK = ("espeak-ng", "-q", "--ipa", "--sep=_")
ENGLISH = "en-us"
WEAK = {"a": ("ə",)}  # words that espeak-ng pronounces as letters if they stand alone
SIMPLER = {  # espeak-ng's symbols to about forty that are frequent enough to be learned
    "əl": "ə l",
    "n̩": "ə n",
    "oːɹ": "ɔ ɹ",
    "ɔːɹ": "ɔ ɹ",
    "ɑːɹ": "ɑ ɹ",
    "ɛɹ": "ɛ ɹ",
    "ɪɹ": "ɪ ɹ",
    "ʊɹ": "ʊ ɹ",
    "aɪɚ": "aɪ ɚ",
    "aɪə": "aɪ ə",
    "iə": "i ə",
    "ɜː": "ɚ",
    "ᵻ": "ɪ",
    "ɐ": "ə",
    "ɔː": "ɔ",
    "oː": "ɔ",
    "ɑː": "ɑ",
    "iː": "i",
    "uː": "u",
    "ʔ": "t",
    "r": "ɹ",
    "x": "k",
    "ç": "h",
}
PHONES = frozenset(  # the remaining English phones; those in fewer than one word of 8,000 are left out
    "aɪ aʊ b d dʒ eɪ f h i j k l m n oʊ p s t tʃ u v w z æ ð ŋ ɑ ɔ ɔɪ ə ɚ ɛ ɡ ɪ ɹ ɾ ʃ ʊ ʌ ʒ θ".split()  # noqa: SIM905  (41 quotes hide them)
)


def pronounce(words: Sequence[str], voice: str = ENGLISH) -> dict[str, tuple[str, ...]]:
    """Phones of each word by a voice of espeak-ng, such as "es", without stress; English phones are reduced.

    Raises: TrainingError if espeak-ng is missing, fails or lacks the voice.
    """
    if not words:
        return {}
    try:
        done = subprocess.run(  # noqa: S603  (the program is ours)
            (*SPEAK, "-v", voice),
            input="\n".join(words) + "\n",
            capture_output=True,
            text=True,
            check=True,
            encoding="utf-8",
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise TrainingError(f"phones need espeak-ng (a Debian package), with the voice {voice}: {error}") from error
    lines = done.stdout.splitlines()
    if len(lines) != len(words):
        raise TrainingError(f"espeak-ng returned {len(lines)} lines for {len(words)} words")
    weak, simpler = (WEAK, SIMPLER) if voice == ENGLISH else ({}, {})
    return {word: weak.get(word) or _phones(line, simpler) for word, line in zip(words, lines, strict=True)}


def _phones(line: str, simpler: Mapping[str, str]) -> tuple[str, ...]:
    found = _SWITCH.sub("", line).translate(STRESS).strip().split("_")
    return tuple(phone for symbol in found for phone in simpler.get(symbol, symbol).split())
