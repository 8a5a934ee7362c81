"""Words that only acknowledge what another speaker says: "uh-huh", "yeah", "okay". Pure; English and Mandarin.

Words that a decoder marked by their sound count, whatever their text is (`model.ctc.acknowledgements`).

Words that also answer a question, "yes", "no", "right", "sure", 是, 对, 好, are none: an agent must hear them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from model.ctc.words import Word

MAX_WORDS = 8
_ENGLISH = ("uh huh", "mm hmm", "mm hm", "mhm", "m hm", "mm", "hm", "hmm", "yeah", "yep", "yup", "okay", "ok", "o k",
            "alright", "all right", "i see", "gotcha", "oh", "ah", "aha")  # fmt: skip
_MANDARIN = ("嗯", "哦", "噢", "唔", "好的", "知道了", "明白")
_ONE = rf"(?:(?:{'|'.join(_ENGLISH)})(?: |$)|(?:{'|'.join(_MANDARIN)}) ?)"
_ACKNOWLEDGEMENTS = re.compile(rf"{_ONE}+")
_BEGINNINGS = {text[:length] for text in (*_ENGLISH, *_MANDARIN) for length in range(1, len(text))}
_MAY_ACKNOWLEDGE = re.compile(rf"{_ONE}*(?:{'|'.join(sorted(_BEGINNINGS, key=len, reverse=True))})?")
_MARKED = "okay"  # stands for a word that is marked
_BETWEEN = re.compile(r"[\s.,!?;:…。，！？、-]+")


def only_acknowledges(words: Sequence[Word]) -> bool:
    """Whether these words, at least one, are nothing but acknowledgements, in any spelling with capitals and marks."""
    return 0 < len(words) <= MAX_WORDS and _ACKNOWLEDGEMENTS.fullmatch(_said(words)) is not None


def may_acknowledge(words: Sequence[Word]) -> bool:
    """Whether these words, with others that may follow, are nothing but acknowledgements: "uh", "okay i"."""
    return len(words) <= MAX_WORDS and _MAY_ACKNOWLEDGE.fullmatch(_said(words)) is not None


def _said(words: Sequence[Word]) -> str:
    texts = [_MARKED if word.acknowledges else word.text for word in words]
    return _BETWEEN.sub(" ", " ".join(texts)).strip().casefold()
