"""Conversion of our language model for pocketsphinx: plain ARPA, and a dictionary of its words.

Words missing from its own dictionary are pronounced by espeak-ng, whose phones are mapped to the 39 of CMUdict. Words
with a phone without an equivalent are omitted, and so are symbols that are not words.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.training.lexicon.spoken import Pronunciations

# Phones of espeak-ng's American English mapped to those of CMUdict:
# `ᵻ` is the vowel of "roses", `ɐ` that of "about", `ɾ` the t of "water".
ARPABET: Mapping[str, str] = {
    "ɪ": "IH", "ᵻ": "IH", "iː": "IY", "i": "IY", "ɛ": "EH", "æ": "AE", "ə": "AH", "ʌ": "AH", "ɐ": "AH", "ɑː": "AA",
    "ɑ": "AA", "ɑ̃": "AA N", "ɔ": "AO", "ɔː": "AO", "oː": "AO", "ʊ": "UH", "uː": "UW", "u": "UW", "ɚ": "ER", "ɜː": "ER",
    "eɪ": "EY", "oʊ": "OW", "aɪ": "AY", "aʊ": "AW", "ɔɪ": "OY", "ɑːɹ": "AA R", "oːɹ": "AO R", "ɔːɹ": "AO R",
    "ʊɹ": "UH R", "ɪɹ": "IH R", "ɛɹ": "EH R", "iə": "IY AH", "aɪə": "AY AH", "aɪɚ": "AY ER", "əl": "AH L", "n̩": "AH N",
    "ææ": "AE", "ɐɐ": "AH",
    "p": "P", "b": "B", "t": "T", "d": "D", "ɾ": "T", "k": "K", "ɡ": "G", "x": "K", "m": "M", "n": "N", "ŋ": "NG",
    "f": "F", "v": "V", "θ": "TH", "ð": "DH", "s": "S", "z": "Z", "ʃ": "SH", "ʒ": "ZH", "ç": "HH", "h": "HH",
    "tʃ": "CH", "dʒ": "JH", "l": "L", "ɹ": "R", "r": "R", "w": "W", "j": "Y", "ʔ": "T",
}  # fmt: skip
_MODEL, _DICTIONARY = "words.arpa", "words.dict"
_VARIANT = re.compile(r"\(\d+\)$")  # suffix of a word's second and later pronunciations
_WORD = re.compile(r"[a-z][a-z']*|'[a-z']+")


@dataclass(frozen=True, slots=True)
class Words:
    """Number of words of a language model by source of their pronunciation."""

    dictionary: int
    pronounced: int
    left_out: int


def write(arpa: Path, dictionary: Path, folder: Path) -> Words:
    """Write `words.arpa` and `words.dict` to the folder. Raises: OSError; TrainingError without espeak-ng."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(arpa, "rb") as zipped, (folder / _MODEL).open("wb") as plain:
        shutil.copyfileobj(zipped, plain)
    with (folder / _MODEL).open(encoding="utf-8") as file:
        words = list(unigrams(file))
    with dictionary.open(encoding="utf-8") as file:
        lines, known = selected(file, set(words))
    missing = [word for word in words if word not in known]
    spoken = pronounced(missing)
    lines += [f"{word} {phones}\n" for word, phones in spoken.items()]
    (folder / _DICTIONARY).write_text("".join(sorted(lines)), encoding="utf-8")
    return Words(len(known), len(spoken), len(missing) - len(spoken))


def options(folder: Path) -> dict[str, str]:
    """Return the options with which pocketsphinx reads the files in the folder."""
    return {"lm": str(folder / _MODEL), "dict": str(folder / _DICTIONARY)}


def unigrams(arpa: Iterable[str]) -> Iterable[str]:
    r"""Yield the words of an ARPA file in order, without symbols that are not words."""
    lines = iter(arpa)
    for line in lines:
        if line.strip() == "\\1-grams:":
            break
    for line in lines:
        if line.startswith("\\"):
            return
        fields = line.split()
        if len(fields) > 1 and _WORD.fullmatch(fields[1]):
            yield fields[1]


def selected(dictionary: Iterable[str], words: set[str]) -> tuple[list[str], set[str]]:
    """Return the dictionary's lines for these words, including alternative pronunciations, and the words found."""
    lines, found = [], set()
    for line in dictionary:
        word = _VARIANT.sub("", line.split(maxsplit=1)[0])
        if word in words:
            lines.append(line)
            found.add(word)
    return lines, found


def pronounced(words: Sequence[str]) -> dict[str, str]:
    """Return the CMUdict phones of each word that they can express. Raises: TrainingError without espeak-ng."""
    spoken = Pronunciations.of(words)
    found = {}
    for word in words:
        phones = [phone for index in spoken.words[word] for phone in spoken.phones[index - 1].split()]
        if phones and all(phone in ARPABET for phone in phones):
            found[word] = " ".join(ARPABET[phone] for phone in phones)
    return found
