"""Text for grammars: spoken strings of digits, and spelled codes of English letters and digits.

Usage: `python -m tutti_asr_lab.training.synthesis.digits LANGUAGE|codes OUT`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random

from model.text.notations import DIGITS

STRINGS = 20_000
LENGTHS = (3, 12)
NAMES = {"en": DIGITS, "zh": tuple("零一二三四五六七八九")}
ALSO = {"en": ("zero", "oh"), "zh": ("一", "幺")}  # a digit and its other name, used in half of the strings

RADIO = (
    "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec romeo "
    "sierra tango uniform victor whiskey x_ray yankee zulu"
)
OTHERS = (
    "apple boy cat dog edward frank george henry ida john king larry mary nancy ocean peter queen robert sam tom uncle "
    "van william yellow zebra adam bob david easy fox good house ice jack kite love mother nora paul rose sugar tiger "
    "up water young zoo"
)
WORDS = tuple(word.replace("_", " ") for word in f"{RADIO} {OTHERS}".split())
"""Words that stand for their first letter."""


def digit_strings(language: str) -> Iterator[str]:
    """Strings of spoken digits, separated by spaces."""
    rng, digits, (name, other) = Random(1), NAMES[language], ALSO[language]
    for _ in range(STRINGS):
        said = [rng.choice(digits) for _ in range(rng.randint(*LENGTHS))]
        renamed = rng.random() < 0.5
        yield " ".join(other if renamed and digit == name else digit for digit in said)


def codes() -> Iterator[str]:
    """Spelled codes: digits, letters, letters with a word for them ("b as in bravo"), such words alone, dashes."""
    rng = Random(1)
    for _ in range(STRINGS):
        yield " ".join(_spelled(rng) for _ in range(rng.randint(1, LENGTHS[1])))


def _spelled(rng: Random) -> str:
    kind, word = rng.random(), rng.choice(WORDS)
    if kind < 0.5:
        return rng.choice(("double ", "triple ", *[""] * 30)) + rng.choice((*DIGITS, "oh"))
    if kind < 0.52:
        return "dash"
    if kind < 0.76:
        return word[0]
    return word if kind < 0.82 and word in WORDS[:26] else f"{word[0]} {rng.choice(('as in', 'as in', 'for'))} {word}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("language", choices=[*sorted(NAMES), "codes"])
    parser.add_argument("out", type=Path, help="text file to write")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = codes() if options.language == "codes" else digit_strings(options.language)
    options.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
