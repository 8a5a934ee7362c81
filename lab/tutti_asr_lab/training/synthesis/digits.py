"""Text for language models of digits: spoken digit strings.

Usage: `python -m tutti_asr_lab.training.synthesis.digits LANGUAGE OUT`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random

from model.text.spoken_numbers import DIGITS

STRINGS = 20_000
LENGTHS = (3, 12)
NAMES = {"en": DIGITS, "zh": tuple("零一二三四五六七八九")}
ALSO = {"en": ("zero", "oh"), "zh": ("一", "幺")}  # a digit and its other name, used in half of the strings


def digit_strings(language: str, seed: int = 1) -> Iterator[str]:
    """Strings of spoken digits, separated by spaces."""
    rng, digits, (name, other) = Random(seed), NAMES[language], ALSO[language]
    for _ in range(STRINGS):
        said = [rng.choice(digits) for _ in range(rng.randint(*LENGTHS))]
        renamed = rng.random() < 0.5
        yield " ".join(other if renamed and digit == name else digit for digit in said)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("language", choices=sorted(NAMES))
    parser.add_argument("out", type=Path, help="text file to write")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(f"{line}\n" for line in digit_strings(options.language)), encoding="utf-8")


if __name__ == "__main__":
    main()
