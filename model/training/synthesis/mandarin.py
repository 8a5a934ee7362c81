"""What Mandarin voices say: sentences of a text and strings of digits, as syllables with the numbers of their tones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from model.errors import LanguageModelError
from model.text.files import read_lines
from model.training.synthesis.sentences import Sentence

LONGEST = 22  # syllables
DIGITS_SHARE = 0.15  # of the sentences are strings of digits


def mandarin_sentences(seed: int, texts: Path, commands_share: float = 0.0) -> Iterator[Sentence]:
    """Yield sentences without end from what `model.training.mandarin.texts` wrote; a share of them are commands.

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
        return LanguageModelError(f"{problem}; python -m model.training.mandarin.texts writes it")

    return [line.replace(" ", "") for line in read_lines(path, refused) if line]
