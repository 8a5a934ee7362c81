"""Texts that only acknowledge what another speaker says: "uh-huh", "yeah", "okay". Pure; English and Mandarin.

Words that also answer a question, "yes", "no", "right", "sure", 是, 对, 好, are none: an agent must hear them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_WORDS = 8
_ENGLISH = ("uh huh", "mm hmm", "mm hm", "mhm", "m hm", "mm", "hm", "hmm", "yeah", "yep", "yup", "okay", "ok", "o k",
            "alright", "all right", "i see", "gotcha", "oh", "ah", "aha")  # fmt: skip
_MANDARIN = ("嗯", "哦", "噢", "唔", "好的", "知道了", "明白")
_ACKNOWLEDGEMENTS = re.compile(rf"(?:(?:{'|'.join((*_ENGLISH,))})(?: |$)|(?:{'|'.join(_MANDARIN)}) ?)+")
_BETWEEN = re.compile(r"[\s.,!?;:…。，！？、-]+")


def only_acknowledges(texts: Sequence[str]) -> bool:
    """Whether these words, at least one, are nothing but acknowledgements, in any spelling with capitals and marks."""
    if not 0 < len(texts) <= MAX_WORDS:
        return False
    said = _BETWEEN.sub(" ", " ".join(texts)).strip().casefold()
    return _ACKNOWLEDGEMENTS.fullmatch(said) is not None
