"""Key terms of one stream, as an automaton of phrases that changes the score of a hypothesis letter by letter.

A search over phones uses an automaton of phones with all pronunciations of a phrase; below, "letter" means either.

A phrase matches whole words and starts at a word boundary. The score of its letters is kept once its last word is
complete, and subtracted if the text leaves the phrase earlier. Phrases of negative weight score only when complete.

Source: Aho and Corasick 1975, with suffixes that start at word boundaries only, and scores as potentials: the value of
a state is the highest score that its text can reach, and a transition adds the difference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.layout import SPACE_COLUMN, TERM_FLOATS, TERM_INTS
from model.errors import ModelError
from model.lm.spelling import LETTERS
from model.machine.compiled import DoubleArray, IntArray
from model.text.letters import unspellable
from model.text.spelled import spoken

LETTERS_ALONE = frozenset(LETTERS)
MAX_PHRASES = 1_000
MAX_CHARACTERS = 20_000  # of all phrases: the automaton has at most this many states plus two
MAX_WORDS = 20  # of one phrase
MAX_WEIGHT = 10.0
MAX_SHOWN = 64  # characters of a rejected phrase in the error

MAX_PRONUNCIATIONS = 4  # of one phrase

Phrase = tuple[str, ...]
Letters = tuple[int, ...]  # columns: of letters or phones
PhraseLetters = tuple[Letters, ...]  # the letters of each word of a phrase
Pronounce = Callable[[str], Sequence[Letters]]


class BiasError(ModelError):
    """The client sent too many key terms, or one with an invalid weight or spelling."""


@dataclass(frozen=True, slots=True, eq=False)
class TermAutomaton:
    """Key terms in the letters or phones of a search; immutable, shared by all streams with the same key terms.

    ints (states + 1, TERM_INTS), floats (states, TERM_FLOATS). Users of `table` keep this object alive.
    """

    spelled: Mapping[Letters, str]  # words by their letters
    ints: IntArray
    floats: DoubleArray
    table: tuple[int, int, int]  # number of states and addresses of both arrays, for compiled code
    unspeakable: tuple[str, ...]  # phrases that no symbols of the model express


@dataclass(frozen=True, slots=True)
class Bias:
    """Key terms in written words with their weights; immutable, created by `of`."""

    phrases: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, phrases: Iterable[tuple[str, float | None]], default_boost: float = 1.0) -> Bias:
        """Build from (phrase, weight) pairs; a letter earns the weight times the decoder's `keyterm_boost`.

        A weight of None means `default_boost`; weights are clipped to ±10. Phrases are normalized like texts, "24/7" to
        "twenty four seven"; the last of equal spellings counts. Raises: BiasError, also for a phrase that cannot be
        spelled.
        """
        boosts: dict[Phrase, float] = {}
        for phrase, weight in phrases:
            factor = default_boost if weight is None else weight
            if not math.isfinite(factor):
                raise BiasError(f"the weight of a key term must be a finite number, not {factor}")
            words = _spelled(phrase)
            boosts.pop(words, None)
            boosts[words] = max(-MAX_WEIGHT, min(MAX_WEIGHT, factor))
        _check(boosts)
        return cls(tuple((" ".join(words), boost) for words, boost in boosts.items()))

    def in_letters(self) -> TermAutomaton:
        """Return the automaton of letters."""
        return _in_letters(self.phrases)

    def in_phones(self, pronounce: Pronounce) -> TermAutomaton:
        """Return the automaton of phones. `pronounce`: columns of a word's phones, for each pronunciation."""
        spoken: dict[PhraseLetters, float] = {}
        words: dict[Letters, str] = {}
        silent: list[str] = []
        for phrase, boost in self.phrases:
            pronounced = [(word, tuple(pronounce(word))) for word in phrase.split()]
            if not all(variants for _, variants in pronounced):
                silent.append(phrase)
            words |= {phones: word for word, variants in pronounced for phones in variants}
            variants = itertools.product(*(variants for _, variants in pronounced))
            spoken |= dict.fromkeys(itertools.islice(variants, MAX_PRONUNCIATIONS), boost)
        return term_automaton(words, spoken, silent)

    def __bool__(self) -> bool:
        """Whether there is a phrase."""
        return bool(self.phrases)


def _spelled(phrase: str) -> Phrase:
    """Return the words of a phrase in the letters a to z. Raises: BiasError for other letters, or none."""
    if letters := unspellable(phrase):
        raise BiasError(
            f"key term {phrase[:MAX_SHOWN]!r} has letters that this model cannot spell: {letters[:MAX_SHOWN]}; "
            "write it in Latin letters as it is pronounced"
        )
    words = tuple(spoken(phrase).split())
    if not words:
        raise BiasError(f"key term {phrase[:MAX_SHOWN]!r} contains no word")
    return words


def _check(boosts: dict[Phrase, float]) -> None:
    if len(boosts) > MAX_PHRASES:
        raise BiasError(f"{len(boosts)} key terms, at most {MAX_PHRASES} are allowed")
    if (characters := sum(len(word) + 1 for words in boosts for word in words)) > MAX_CHARACTERS:
        raise BiasError(f"key terms have {characters} characters in total, at most {MAX_CHARACTERS} are allowed")
    if any(len(words) > MAX_WORDS for words in boosts):
        raise BiasError(f"a key term has more than {MAX_WORDS} words")


@lru_cache(maxsize=64)
def _in_letters(phrases: tuple[tuple[str, float], ...]) -> TermAutomaton:
    split = {phrase: phrase.split() for phrase, _ in phrases}
    written = {phrase: words for phrase, words in split.items() if all(map(LETTERS_ALONE.issuperset, words))}
    words = {_columns(word): word for phrase in written.values() for word in phrase}
    spelled = {tuple(map(_columns, written[phrase])): boost for phrase, boost in phrases if phrase in written}
    return term_automaton(words, spelled, [phrase for phrase in split if phrase not in written])


def _columns(word: str) -> Letters:
    return tuple(map(LETTERS.index, word))


class _Trie:
    """Prefixes of phrases as nodes 0 (empty), 1, …; a node after a space is a boundary. A list has an entry a node."""

    def __init__(self, boosts: Mapping[PhraseLetters, float]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.column = [-1]
        self.parent = [0]
        self.boundary = [0]  # last boundary before the node
        self.words = [0]  # complete words of the prefix
        self.letters = [0]  # without spaces
        self.reach = [0.0]  # highest score so far of the phrases through this node
        self.boost: dict[int, float] = {}  # of the phrases that end at a boundary
        for phrase, boost in boosts.items():
            self._add(phrase, boost)

    def _add(self, phrase: PhraseLetters, boost: float) -> None:
        node, reach, gain = 0, 0.0, max(0.0, boost)
        for word in phrase:
            before = node
            for column in word:
                reach += gain
                node = self._child(node, column, before)
                self.reach[node] = max(self.reach[node], reach)
            node = self._child(node, SPACE_COLUMN, before)  # the last one completes the phrase
            self.reach[node] = max(self.reach[node], reach)
        self.boost[node] = boost

    def _child(self, node: int, column: int, boundary: int) -> int:
        child = self.children[node].get(column)
        if child is None:
            child = self.children[node][column] = len(self.column)
            closes = column == SPACE_COLUMN
            self.children.append({})
            self.column.append(column)
            self.parent.append(node)
            self.boundary.append(boundary)
            self.words.append(self.words[node] + closes)
            self.letters.append(self.letters[node] + (not closes))
            self.reach.append(0.0)
        return child

    def breadth_first(self) -> list[int]:
        ordered = [0]
        for node in ordered:
            ordered += self.children[node].values()
        return ordered


class _Scores:
    """Scores of the nodes of a trie, in time linear in its size: each list has an entry a node."""

    def __init__(self, trie: _Trie, ordered: Sequence[int]) -> None:
        count = len(ordered)
        self._trie = trie
        self._suffix = [-1] * count  # node of the longest proper suffix that starts at a word boundary, -1: none
        self._earned_words = [0] * count  # words up to the end of the last phrase that is counted in `earned`
        self.earned = [0.0] * count  # score of the phrases that are complete within the words
        self.complete = [False] * count
        self.fail = [-1] * count  # node, -1: none
        self.value = [0.0] * count
        for node in ordered[1:]:  # shorter prefixes first
            self._score(node)

    def _score(self, node: int) -> None:
        trie, suffix = self._trie, self._suffix
        column, at_boundary = trie.column[node], trie.column[node] == SPACE_COLUMN
        shorter, longest = suffix[trie.parent[node]], -1
        while shorter >= 0 and longest < 0:
            longest = trie.children[shorter].get(column, -1)
            shorter = suffix[shorter]
        suffix[node] = 0 if longest < 0 and at_boundary else longest
        before = trie.boundary[node]
        self.earned[node], self._earned_words[node] = self.earned[before], self._earned_words[before]
        if at_boundary:
            self._score_boundary(node)
        latest = trie.words[node] - self._earned_words[node]
        shorter, ahead = suffix[node], 0.0
        while shorter > 0 and trie.words[shorter] > latest:
            shorter = suffix[shorter]
        if shorter > 0:
            self.fail[node], ahead = shorter, self.value[shorter]
        value = max(self.earned[node], self.earned[node] + ahead)
        if trie.reach[node] > 0 and trie.children[node]:
            value = max(value, trie.reach[node])
        self.value[node] = value

    def _score_boundary(self, node: int) -> None:
        """Compute the best sum of scores of complete phrases that do not overlap, at a word boundary."""
        trie, words, before = self._trie, self._trie.words[node], self.earned[node]
        penalty, ending = 0.0, node
        while ending > 0:  # the phrases that end here, the longest first
            boost = trie.boost.get(ending)
            if boost is not None:
                self.complete[node] = True
                total = boost * trie.letters[ending]
                penalty = min(penalty, total)
                begin = node
                while trie.words[begin] > words - trie.words[ending]:
                    begin = trie.boundary[begin]
                earned = self.earned[begin] + total
                if total > 0 and earned > self.earned[node]:
                    self.earned[node], self._earned_words[node] = earned, words
            ending = self._suffix[ending]
        if penalty < 0 and self._earned_words[node] < words:
            self.earned[node], self._earned_words[node] = before + penalty, words


def term_automaton(
    words: Mapping[Letters, str], boosts: Mapping[PhraseLetters, float], unspeakable: Sequence[str]
) -> TermAutomaton:
    """Return the automaton of phrases with their weights; `words` by their letters."""
    trie = _Trie(boosts)
    ordered = trie.breadth_first()
    scores = _Scores(trie, ordered)
    rows = np.array(ordered)
    number = np.zeros(len(rows) + 1, np.int32)  # of each node: 0, then after `TERM_ELSEWHERE`
    number[rows[1:]] = np.arange(at.TERM_ELSEWHERE + 1, len(rows) + 1)
    columns, fail = np.array(trie.column), np.array(scores.fail)
    outside = np.where(columns == SPACE_COLUMN, at.TERM_START, at.TERM_ELSEWHERE)
    outside[0] = at.TERM_START
    children = np.array([len(nodes) for nodes in trie.children])[rows]
    ints = np.zeros((len(rows) + 2, TERM_INTS), np.int32)
    floats = np.zeros((len(rows) + 1, TERM_FLOATS), np.float64)
    states = np.delete(np.arange(len(rows) + 1), at.TERM_ELSEWHERE)
    ints[states, at.TERM_FIRST] = 2 + np.cumsum(children) - children
    ints[at.TERM_ELSEWHERE, at.TERM_FIRST] = 2 + children[0]
    ints[-1, at.TERM_FIRST] = 2 + len(rows) - 1
    ints[states, at.TERM_COLUMN] = columns[rows]
    ints[states, at.TERM_FAIL] = np.where(fail < 0, outside, number[fail])[rows]
    ints[states, at.TERM_COVERS] = (np.array(trie.reach) > 0)[rows]
    ints[states, at.TERM_COMPLETE] = np.array(scores.complete)[rows]
    floats[states, at.TERM_VALUE] = np.array(scores.value)[rows]
    floats[states, at.TERM_BANK] = np.array(scores.earned)[rows]
    floats[at.TERM_START, at.TERM_GAIN] = max(0.0, *boosts.values()) if boosts else 0.0
    table = len(floats), ints.ctypes.data, floats.ctypes.data
    return TermAutomaton(words, ints, floats, table, tuple(unspeakable))


NO_BIAS = Bias.of(())
