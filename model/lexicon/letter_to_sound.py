"""Letter-to-sound rules: the phones of each letter, found by the longest known context of letters around it.

A context is the letter, then its neighbors in the order of `NEIGHBOURS` (`_` past the edge of the word), as many as are
needed to distinguish it: "c" alone is k, "ci" is s, "ciaou" is ʃ as in "gracious". A context is left out if the longest
shorter one has the same phones. Source: IGTree, in Daelemans and van den Bosch 1996, "Language-independent
data-oriented grapheme-to-phoneme conversion"; all letters share one order of neighbors, which was measured in
model/weights/PRONUNCIATIONS.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

Phones = tuple[str, ...]

NEIGHBOURS = (1, -1, 2, -2, 3, -3, 4, -4, 5, -5)  # offsets; more than five letters on a side improved nothing
_EDGE = "_"
_MARGIN = _EDGE * max(NEIGHBOURS)
_WIDTH = 2 * len(_MARGIN) + 1
_START = 3  # characters of a context that say how long known ones are
_around = itemgetter(*(len(_MARGIN) + offset for offset in (0, *NEIGHBOURS)))


@dataclass(frozen=True)
class LetterToSound:
    """Table of phones by context. A letter without an entry of its own is silent outside the listed contexts."""

    table: Mapping[str, Phones]

    @cached_property
    def _longest(self) -> Mapping[str, int]:
        """Length of the longest context that starts with each three characters."""
        longest: dict[str, int] = {}
        for context in self.table:
            start = context[:_START]
            longest[start] = max(len(context), longest.get(start, 0))
        return longest

    @classmethod
    def learn(cls, alignments: Mapping[str, Sequence[Phones]]) -> LetterToSound:
        """Learn rules from words, each with the phones of each of its letters. Deterministic."""
        text = _MARGIN
        places: list[int] = []
        pronounced: list[Phones] = []
        for word in sorted(alignments):
            places.extend(range(len(text), len(text) + len(word)))
            pronounced.extend(alignments[word])
            text += word + _MARGIN
        offsets = (0, *NEIGHBOURS)
        table: dict[str, Phones] = {}
        groups: list[tuple[str, Phones | None, Sequence[int]]] = [("", None, range(len(places)))]
        while groups:  # a context, the phones of the longest shorter context, and the letters in this context
            context, inherited, cases = groups.pop()
            counts = Counter(pronounced[case] for case in cases)
            said = min(counts, key=lambda phones: (-counts[phones], phones)) if context else None
            if said is not None and said != inherited:
                table[context] = said
            if context and (len(counts) == 1 or len(context) == len(offsets)):
                continue
            longer: defaultdict[str, list[int]] = defaultdict(list)
            for case in cases:
                longer[text[places[case] + offsets[len(context)]]].append(case)
            groups += [(context + letter, said, some) for letter, some in longer.items()]
        return cls(table)

    @classmethod
    def parse(cls, lines: Sequence[str], phones: Phones) -> LetterToSound:
        """Parse the output of `lines`. Raises: RuleError."""
        known, previous = frozenset(phones), ""
        split: dict[str, Phones] = {"": ()}
        table: dict[str, Phones] = {}
        for number, line in enumerate(lines):
            context, tab, listed = line.partition("\t")
            if not tab or context <= previous:
                raise RuleError(number, "expected a context, a tab and its phones, sorted by context")
            if listed not in split:
                split[listed] = tuple(listed.split(" "))
                if not known.issuperset(split[listed]):
                    raise RuleError(number, f"{listed!r} has a phone that the file does not list")
            table[context] = split[listed]
            previous = context
        return cls(table)

    def lines(self) -> list[str]:
        """Lines of the rules, sorted by context: the context, a tab and its phones (none for a silent letter)."""
        return [f"{context}\t{' '.join(self.table[context])}" for context in sorted(self.table)]

    def pronounce(self, word: str) -> Phones:
        """Phones of a word: for each letter, those of its longest context; empty if all letters are silent."""
        phones: list[str] = []
        for context in _contexts(word):
            for length in range(self._longest.get(context[:_START], _START - 1), 0, -1):
                spoken = self.table.get(context[:length])
                if spoken is not None:
                    phones += spoken
                    break
        return tuple(phones)


class RuleError(ValueError):
    """A line of rules cannot be parsed. `line` counts from 0."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def _contexts(word: str) -> Iterator[str]:
    """The longest context of each letter."""
    text = f"{_MARGIN}{word}{_MARGIN}"
    return ("".join(_around(text[at : at + _WIDTH])) for at in range(len(word)))
