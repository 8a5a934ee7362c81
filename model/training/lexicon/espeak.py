"""Phones of words by espeak-ng, with its symbols reduced to those that a network can learn from few hours of speech.

espeak-ng is a Debian package, needed where a network is trained or a lexicon is made, not where one is served.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from model.errors import TrainingError

STRESS = str.maketrans("", "", "ˈˌ")
_SWITCH = re.compile(r"\([^)]*\)")  # espeak-ng names a language in brackets where it changes to another
SPEAK = ("espeak-ng", "-q", "--ipa", "--sep=_")
ENGLISH = "en-us"
WEAK = {"a": ("ə",)}  # words that espeak-ng alone names as letters
SIMPLER = {  # espeak-ng's symbols by those of about forty that occur often enough to be learned
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
PHONES = frozenset(  # what is left for English; sounds that fewer than one word in 8,000 has are not among them
    "aɪ aʊ b d dʒ eɪ f h i j k l m n oʊ p s t tʃ u v w z æ ð ŋ ɑ ɔ ɔɪ ə ɚ ɛ ɡ ɪ ɹ ɾ ʃ ʊ ʌ ʒ θ".split()  # noqa: SIM905  (41 quotes hide them)
)


def pronounce(words: Sequence[str], voice: str = ENGLISH) -> dict[str, tuple[str, ...]]:
    """Phones of each word, by one of espeak-ng's voices, such as "es"; without stress, and English ones reduced.

    Raises: TrainingError if it is missing or fails, or has no such voice.
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
        raise TrainingError(f"espeak-ng pronounced {len(lines)} of {len(words)} words")
    weak, simpler = (WEAK, SIMPLER) if voice == ENGLISH else ({}, {})
    return {word: weak.get(word) or _phones(line, simpler) for word, line in zip(words, lines, strict=True)}


def _phones(line: str, simpler: Mapping[str, str]) -> tuple[str, ...]:
    found = _SWITCH.sub("", line).translate(STRESS).strip().split("_")
    return tuple(phone for symbol in found for phone in simpler.get(symbol, symbol).split())
