"""Sentences for Mandarin voices: from texts and digit strings, as syllables with tone numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from model.errors import LanguageModelError
from model.text.files import read_lines
from model.training.synthesis.sentences import Sentence

LONGEST = 22  # syllables
DIGITS_SHARE = 0.15  # fraction of digit strings among the sentences


def mandarin_sentences(seed: int, texts: Path, commands_share: float = 0.0) -> Iterator[Sentence]:
    """Yield endless sentences from the files written by `model.training.mandarin.texts`; a share are commands.

    Raises: LanguageModelError.
    """
    from model.training.lexicon.pinyin import are_syllables, syllables_of

    digits, others = _lines(texts / "digits.txt"), _lines(texts / "prompts.txt") + _lines(texts / "speech.txt")
    commands = _lines(texts / "commands.txt") if commands_share else []
    rng = Random(f"{seed}/mandarin")
    while True:
        drawn = rng.random()
        kind = digits if drawn < DIGITS_SHARE else commands if drawn < DIGITS_SHARE + commands_share else others
        said = syllables_of(rng.choice(kind))
        if said and len(said) <= LONGEST and are_syllables(said):
            yield Sentence(" ".join(said), "mandarin")


def _lines(path: Path) -> list[str]:
    def refused(problem: str) -> LanguageModelError:
        return LanguageModelError(f"{problem}; run python -m model.training.mandarin.texts first")

    return [line.replace(" ", "") for line in read_lines(path, refused) if line]
