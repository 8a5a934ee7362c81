"""One normalizer for texts of every kind: of manifests, for language models, and what transcripts are compared by.

It knows no language: numbers and abbreviations as words are `model.text.spelled`, characters of Chinese
`model.text.chinese`.
"""

from __future__ import annotations

import re
import unicodedata

# Marks of other toolkits, no words: <s> </s> <unk> <eps> <sil> <noise> <blank> <pad> <bos> <eos>, [UNK] [NOISE] {SIL}.
_MARK = re.compile(
    r"<(?:/?s|/?unk|oov|eps|epsilon|blk|blank|pad|bos|eos|sos|sos/eos|mask|sil|silence|noise|spoken_noise|v?nsn|spn)>"
    r"|\[(?:unk|oov|cls|sep|pad|mask|bos|eos|blank|sil|silence|noise|laughter|music|cough|breath|inaudible)\]"
    r"|\{(?:unk|sil|noise)\}|<\|[a-z_]+\|>",
    re.IGNORECASE,
)
_INVISIBLE = re.compile("[\u200b\u2060\ufeff\u00ad]")  # zero-width space, joiner of words, byte order mark, soft hyphen
_APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ´`＇", "'"))
_POINT = re.compile(r"(?<=\d)[.,](?=\d)")


def plain(text: str) -> str:
    """Return a text in composed form (NFC) without marks of toolkits and invisible characters, single spaces."""
    text = _MARK.sub(" ", _INVISIBLE.sub("", unicodedata.normalize("NFC", text)))
    return " ".join(text.split())


def comparable(text: str) -> str:
    """Return a text as transcripts are compared: `plain`, in small letters, without punctuation and symbols.

    Apostrophes within words and points within numbers stay; other marks are spaces, as in "well-known".
    """
    text = plain(text).translate(_APOSTROPHES)
    letters = text if text.islower() and text.isascii() else unicodedata.normalize("NFC", text.lower())
    points = {found.start() for found in _POINT.finditer(letters)}
    kept = (c if c == "'" or at in points or _is_word(c) else " " for at, c in enumerate(letters))
    return " ".join(found for word in "".join(kept).split() if (found := _unquoted(word)))


def _unquoted(word: str) -> str:
    """A word without quotes around it; 'tis and dogs' keep theirs."""
    return word.strip("'") if word[0] == word[-1] == "'" else word


def _is_word(character: str) -> bool:
    """Whether a character is a letter, a mark of one such as an accent or a vowel sign, or a digit."""
    return unicodedata.category(character)[0] in "LMN"
