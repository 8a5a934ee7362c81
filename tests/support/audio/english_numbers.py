"""Card, social security and telephone numbers, read out as words in several ways.

Also recognizes words that say a digit, independently of the server's own list. All choices are drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from stdnum import luhn

Kind = Literal["card", "social security", "telephone"]

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
DIGIT_WORDS = frozenset((*NAMES, *TEENS, *TENS[2:], "oh", "o", "nought", "hundred", "thousand"))


def number(kind: Kind, rng: Random) -> str:
    """Return the digits of a valid number."""
    if kind == "card":
        body = rng.choice(("4", "51", "37", "6011")) + "".join(rng.choices("0123456789", k=15))
        body = body[: 14 if body.startswith("37") else 15]
        return body + luhn.calc_check_digit(body)
    if kind == "social security":
        return f"{rng.randint(1, 665):03}{rng.randint(1, 99):02}{rng.randint(1, 9999):04}"
    return f"{rng.randint(2, 9)}{rng.randint(0, 99):02}{rng.randint(2, 9)}{rng.randint(0, 999999):06}"


def read_out(digits: str, rng: Random) -> list[str]:
    """Return words that say the digits: one by one, in pairs, doubled, with "oh", with fillers."""
    words: list[str] = []
    at = 0
    while at < len(digits):
        pair = digits[at : at + 2]
        style = rng.random()
        if style < 0.2 and len(pair) == 2 and pair[0] not in "01":
            words += [TENS[int(pair[0])], *([NAMES[int(pair[1])]] if pair[1] != "0" else [])]
            at += 2
        elif style < 0.25 and pair[0] == "1" and len(pair) == 2:
            words.append(TEENS[int(pair[1])])
            at += 2
        elif style < 0.35 and len(pair) == 2 and pair[0] == pair[1]:
            words += ["double", NAMES[int(pair[0])]]
            at += 2
        else:
            words.append("oh" if pair[0] == "0" and words and rng.random() < 0.5 else NAMES[int(pair[0])])
            at += 1
        if rng.random() < 0.1:
            words.append(rng.choice(("uh", "dash", "and then", "okay")))
    return words


def digit_words(words: Sequence[str]) -> int:
    """Return how many words say digits or contain some; labels such as [NUMBER_1] are none."""
    plain = [word.strip(".,?!").casefold() for word in words if not word.startswith("[")]
    return sum(not DIGIT_WORDS.isdisjoint(word.split("-")) or any(map(str.isdigit, word)) for word in plain)
