"""Text of the synthetic corpus: an endless, reproducible stream of sentences to be spoken.

Owns the mix of kinds and the held-out texts (shipped samples, dev split); knows nothing about audio.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from model.errors import LanguageModelError
from model.text import notations
from model.text.files import read_lines
from tutti_asr_lab.training.synthesis import spoken_numbers as numbers
from tutti_asr_lab.training.synthesis.grammar import load_grammar
from tutti_asr_lab.training.synthesis.wordlists import COMMANDS_FILE, VOCABULARY_FILE, read_sections

Kind = Literal["word", "number", "command", "grammar", "mandarin", "text"]
Split = Literal["train", "dev"]

# Shares by count. Callers mostly say numbers and requests; single words are short, so they take few hours of audio.
MIX: dict[Kind, float] = {"word": 0.12, "number": 0.18, "command": 0.40, "grammar": 0.30}
MIN_WORDS, MAX_WORDS = 3, 14
MAX_SYLLABLES = 22  # of a Mandarin sentence
DIGITS_SHARE = 0.15  # fraction of digit strings among the Mandarin sentences
# One sentence in 50 belongs to the dev split, chosen by its text, so that it is in the same split with every seed.
_DEV_ONE_IN = 50
_SLOT = re.compile(r"\{(\w+)\}")

SAMPLE_SENTENCES: tuple[str, ...] = (
    "please hold the line for twenty seconds",
    "what is twenty five percent of ninety one",
    "my card number ends in four six three",
    "show me the camera at the garden gate",
    "you can call me back on zero six two",
    "turn on the porch fan",
    "my name is patrick",
    "please turn on the kitchen lights",
    "what is the weather in london tomorrow morning",
    "my account number is four seven one nine two",
    "set a timer for twenty minutes",
    "i would like to speak to the manager",
    "where is my order",
    "book a table for four at half past seven",
    "can you call me back on monday afternoon",
    "play some jazz music in the living room",
    "i want to book a flight from paris to new york",
    "good morning my name is john",
    "thank you very much for your help",
)
SAMPLE_WORDS: tuple[str, ...] = ("yes", "no", "stop", "seven", "hello", "cancel")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Text to be spoken: lower-case a-z, apostrophe and single spaces; in Mandarin, syllables."""

    text: str
    kind: Kind


def sample_texts() -> frozenset[str]:
    """Texts reserved for the shipped recordings; those of more than one word are never generated."""
    return frozenset(SAMPLE_SENTENCES + SAMPLE_WORDS)


def sentences(seed: int, split: Split = "train") -> Iterator[Sentence]:
    """Yield endless sentences; the same seed and split give the same sentences on every machine."""
    rng = Random(seed)
    generators = _generators()
    kinds, weights = list(MIX), list(MIX.values())
    while True:
        kind = rng.choices(kinds, weights)[0]
        text = generators[kind](rng)
        while not _allowed(text, kind, split):
            text = generators[kind](rng)
        yield Sentence(text, kind)


def _allowed(text: str, kind: Kind, split: Split) -> bool:
    """Whether a text has the right length, is not a shipped sample and belongs to the split."""
    words = text.count(" ") + 1
    if words == 1:  # in every split, because there are too few to divide
        return True
    too_short = words < MIN_WORDS and kind in {"command", "grammar"}
    if too_short or words > MAX_WORDS or text in sample_texts():
        return False
    return (zlib.crc32(text.encode()) % _DEV_ONE_IN == 0) == (split == "dev")


def _generators() -> dict[Kind, Callable[[Random], str]]:
    grammar = load_grammar()
    vocabulary = read_sections(VOCABULARY_FILE, r"\s+")
    everyday = (*vocabulary["single"], *(notations.cardinal(value) for value in range(101)))
    rare = tuple(
        entry.split(":")[0] for name in ("noun", "adjective", "transitive", "name") for entry in vocabulary[name]
    )

    def word(rng: Random) -> str:
        return rng.choice(everyday if rng.random() < 0.7 else rare)

    return {
        "word": word,
        "number": number_phrase,
        "command": _command_generator(vocabulary["name"]),
        "grammar": grammar.sentence,
    }


def number_phrase(rng: Random) -> str:  # noqa: PLR0911 - a table of cases
    """Draw digits, a number, a time, a date or an amount, mostly without context, like an answer to a prompt."""
    kind = rng.random()
    if kind < 0.12:
        return rng.choice((*notations.DIGITS, "oh"))
    if kind < 0.52:
        return numbers.digit_string(rng, rng.randint(2, 11))
    if kind < 0.58:
        return f"{rng.choice(('my pin is', 'the code is', 'pin code', 'it is'))} {numbers.digit_string(rng, 4)}"
    if kind < 0.64:
        return f"{rng.choice(('plus', 'my number is', 'call'))} {numbers.digit_string(rng, rng.randint(7, 11))}"
    if kind < 0.74:
        return numbers.number(rng)
    if kind < 0.84:
        return f"{rng.choice(('', 'at ', 'it is '))}{numbers.clock_time(rng)}"
    if kind < 0.92:
        return f"{rng.choice(('', 'on '))}{numbers.calendar_date(rng)}"
    return rng.choice((numbers.amount, numbers.duration, numbers.percentage))(rng)


def _command_generator(names: tuple[str, ...]) -> Callable[[Random], str]:
    """Generator that fills the templates of ``commands.txt``."""
    sections = read_sections(COMMANDS_FILE, r"\s*,\s*")
    templates = sections.pop("templates")
    computed: dict[str, Callable[[Random], str]] = {
        "n": numbers.small_number,
        "digits": lambda rng: numbers.digit_string(rng, rng.randint(3, 8)),
        "time": numbers.clock_time,
        "date": numbers.calendar_date,
        "duration": numbers.duration,
        "amount": numbers.amount,
        "percent": numbers.percentage,
        "ordinal": lambda rng: notations.ordinal(rng.randint(1, 9)),
        "person": lambda rng: rng.choice(names),
    }

    def command(rng: Random) -> str:
        def fill(slot: re.Match[str]) -> str:
            name = slot[1]
            return computed[name](rng) if name in computed else rng.choice(sections[name])

        return _SLOT.sub(fill, rng.choice(templates))

    return command


def mandarin_sentences(seed: int, texts: Path, commands_share: float = 0.0) -> Iterator[Sentence]:
    """Yield endless sentences from the files written by `tutti_asr_lab.training.mandarin.texts`; a share are commands.

    Raises: LanguageModelError.
    """
    from tutti_asr_lab.training.lexicon.pinyin import are_syllables, syllables_of

    digits, others = _lines(texts / "digits.txt"), _lines(texts / "prompts.txt") + _lines(texts / "speech.txt")
    commands = _lines(texts / "commands.txt") if commands_share else []
    rng = Random(f"{seed}/mandarin")
    while True:
        drawn = rng.random()
        kind = digits if drawn < DIGITS_SHARE else commands if drawn < DIGITS_SHARE + commands_share else others
        said = syllables_of(rng.choice(kind))
        if said and len(said) <= MAX_SYLLABLES and are_syllables(said):
            yield Sentence(" ".join(said), "mandarin")


def _lines(path: Path) -> list[str]:
    def refused(problem: str) -> LanguageModelError:
        return LanguageModelError(f"{problem}; run python -m tutti_asr_lab.training.mandarin.texts first")

    return [line.replace(" ", "") for line in read_lines(path, refused) if line]
