"""Language-independent normalization of text: for manifests, language models and the comparison of transcripts.

`model.text.spelled` turns English numbers and abbreviations into words; `model.text.chinese` handles Chinese.
"""

from __future__ import annotations

import re
import unicodedata

# Tags of other toolkits, which are not words: <s> </s> <unk> <eps> <sil> <noise> <blank> <pad>, [UNK] [NOISE] {SIL}.
_MARK = re.compile(
    r"<(?:/?s|/?unk|oov|eps|epsilon|blk|blank|pad|bos|eos|sos|sos/eos|mask|sil|silence|noise|spoken_noise|v?nsn|spn)>"
    r"|\[(?:unk|oov|cls|sep|pad|mask|bos|eos|blank|sil|silence|noise|laughter|music|cough|breath|inaudible)\]"
    r"|\{(?:unk|sil|noise)\}|<\|[a-z_]+\|>",
    re.IGNORECASE,
)
_INVISIBLE = re.compile("[\u200b\u2060\ufeff\u00ad]")  # zero-width space, word joiner, byte order mark, soft hyphen
_APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ´`＇", "'"))
_POINT = re.compile(r"(?<=\d)[.,](?=\d)")


def plain(text: str) -> str:
    """Normalize a text: NFC, single spaces, no tags of toolkits, no invisible characters."""
    text = _MARK.sub(" ", _INVISIBLE.sub("", unicodedata.normalize("NFC", text)))
    return " ".join(text.split())


def comparable(text: str) -> str:
    """Normalize a text for comparison of transcripts: `plain`, lower case, no punctuation or symbols.

    Apostrophes in words and decimal points in numbers stay; other marks become spaces, as in "well-known".
    """
    text = straight_apostrophes(plain(text))
    letters = text if text.islower() and text.isascii() else unicodedata.normalize("NFC", text.lower())
    points = {point.start() for point in _POINT.finditer(letters)}
    spaced = (c if c == "'" or at in points or _is_word(c) else " " for at, c in enumerate(letters))
    return " ".join(unquoted for word in "".join(spaced).split() if (unquoted := _unquoted(word)))


def straight_apostrophes(text: str) -> str:
    """Replace typographic apostrophes and the like by the ASCII one."""
    return text.translate(_APOSTROPHES)


def _unquoted(word: str) -> str:
    """Remove quotes on both sides of a word; 'tis and dogs' keep theirs."""
    return word.strip("'") if word[0] == word[-1] == "'" else word


def _is_word(character: str) -> bool:
    """Whether a character is a letter, a combining mark such as an accent or a vowel sign, or a digit."""
    return unicodedata.category(character)[0] in "LMN"
