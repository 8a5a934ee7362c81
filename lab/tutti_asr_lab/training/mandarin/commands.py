"""Generated Mandarin commands to a car or a phone: music, places, films, climate and telephone.

Templates and kinds of places are in `commands.txt`; titles come from the commands of the training recordings; towns,
other names and nouns from jieba's dictionary (MIT), frequent ones more often. No held-out text is read, and no template
has a phrase that occurs only in held-out commands, except ordinary kinds of places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import accumulate
from pathlib import Path
from random import Random

from model.errors import ModelError, install_hint
from model.text.chinese import simplified
from model.text.letters import IDEOGRAPHS
from tutti_asr_lab.training.synthesis.wordlists import read_sections

COMMANDS = 60_000
KINDS = {"going": 0.40, "music": 0.24, "film": 0.16, "climate": 0.12, "phone": 0.08}  # about as in training commands
_FILE = Path(__file__).parent / "commands.txt"
_CHARACTERS = re.compile(f"[{IDEOGRAPHS}]+")
_SLOT = re.compile(r"\{(\w+)\}")
_ASKED = re.compile("^(想听歌曲|来一首歌曲)")
# Tags of jieba's dictionary: places; other names; nouns; idioms and phrases, for titles.
_TAGS = {"town": ("ns",), "proper": ("nz", "nr", "nrt", "nt"), "noun": ("n",), "title": ("i", "l", "n", "vn")}
_LONGEST = {"town": 3, "proper": 4, "noun": 2, "title": 5}  # characters


@dataclass(frozen=True, slots=True)
class Words:
    """Words to draw from, with the cumulative sums of their weights."""

    words: Sequence[str]
    sums: Sequence[float]

    def draw(self, rng: Random) -> str:
        """Draw a word."""
        return rng.choices(self.words, cum_weights=self.sums)[0]


def titles_of(transcripts: Sequence[str]) -> tuple[str, ...]:
    """Titles in commands that ask for a song, without the request; other commands are ignored."""
    return tuple(dict.fromkeys(title for text in transcripts if (title := _ASKED.sub("", text)) not in {"", text}))


def commands(titles: Sequence[str], seed: int = 1) -> Iterator[str]:
    """Yield commands; half of the titles are the given ones. Raises: ModelError if jieba's dictionary is missing."""
    rng, sections, drawn = Random(seed), read_sections(_FILE, r"\s*,\s*"), _dictionary()

    def fill(slot: re.Match[str]) -> str:
        name = slot[1]
        if name == "n":
            return _number(rng.choice((rng.randint(1, 10), rng.randint(16, 32))))
        if name == "song":
            return rng.choice(titles) if titles and rng.random() < 0.5 else drawn["title"].draw(rng)
        return drawn[name].draw(rng) if name in drawn else of(name)

    def of(section: str) -> str:
        return _SLOT.sub(fill, rng.choice(sections[section]))

    kinds, shares = tuple(KINDS), tuple(KINDS.values())
    for _ in range(COMMANDS):
        yield simplified(of(rng.choices(kinds, shares)[0]))


@cache
def _dictionary() -> dict[str, Words]:
    """Words of jieba's dictionary by slot, weighted by frequency; counts below three count as three."""
    try:
        text = (resources.files("jieba") / "dict.txt").read_text(encoding="utf-8")
    except ImportError as error:
        raise ModelError(f"Mandarin commands need jieba's dictionary: {install_hint('mandarin')}") from error
    rows = [line.split() for line in text.splitlines()]
    found: dict[str, Words] = {}
    for slot, tags in _TAGS.items():
        chosen = [
            (word, max(3.0, float(count)) ** 0.75)  # less than proportional, so that rare names occur too
            for word, count, tag in rows
            if tag in tags and 2 <= len(word) <= _LONGEST[slot] and _CHARACTERS.fullmatch(word)
        ]
        words, weights = zip(*chosen, strict=True)
        found[slot] = Words(words, tuple(accumulate(weights)))
    return found


def _number(value: int) -> str:
    """Spoken form of a number below 100, before a counted noun: two is 两."""
    digits = "零一二三四五六七八九"
    tens, ones = divmod(value, 10)
    if not tens:
        return "两" if value == 2 else digits[value]
    return ("" if tens == 1 else digits[tens]) + "十" + (digits[ones] if ones else "")
