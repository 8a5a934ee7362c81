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
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.layout import SPACE_COLUMN, TERM_FLOATS, TERM_INTS
from model.errors import ModelError
from model.lm.characters import LETTERS
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


@dataclass(frozen=True, slots=True)
class Bias:
    """Key terms as an automaton; immutable, shared by all streams with the same key terms, created by `of`.

    ints (states + 1, TERM_INTS), floats (states, TERM_FLOATS).
    """

    phrases: tuple[tuple[str, float], ...]
    spelled: Mapping[Letters, str] = field(compare=False, repr=False)  # words by their letters
    ints: IntArray = field(compare=False, repr=False)
    floats: DoubleArray = field(compare=False, repr=False)
    table: tuple[int, int, int] = field(
        compare=False, repr=False
    )  # number of states and addresses of both arrays, for compiled code
    unspeakable: tuple[str, ...] = field(default=(), compare=False)  # phrases that no symbols of the model express

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
        return _built(tuple(boosts.items()))

    def pronounced(self, pronounce: Pronounce) -> Bias:
        """Return the same phrases in phones. `pronounce`: columns of a word's phones, for each pronunciation."""
        spoken: dict[PhraseLetters, float] = {}
        words: dict[Letters, str] = {}
        silent: list[str] = []
        for phrase, boost in self.phrases:
            each = [(word, tuple(pronounce(word))) for word in phrase.split()]
            if not all(variants for _, variants in each):
                silent.append(phrase)
            words |= {phones: word for word, variants in each for phones in variants}
            variants = itertools.product(*(variants for _, variants in each))
            spoken |= dict.fromkeys(itertools.islice(variants, MAX_PRONUNCIATIONS), boost)
        return _automaton(self.phrases, words, spoken, silent)

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


@dataclass(slots=True)
class _State:
    """State of the automaton, a prefix of phrases: whole words, and the letters of an open one (if any)."""

    words: PhraseLetters
    letters: Letters
    column: int
    children: dict[int, _State] = field(default_factory=dict)
    number: int = 0
    reach: float = 0.0  # highest score so far of the phrases through this state
    earned: float = 0.0  # score of the phrases that are complete within `words`
    earned_words: int = 0  # words up to the end of the last of those phrases
    complete: bool = False
    value: float = 0.0
    fail: int = at.TERM_START


_States = dict[tuple[PhraseLetters, Letters], _State]


@lru_cache(maxsize=256)
def _built(phrases: tuple[tuple[Phrase, float], ...]) -> Bias:
    written = [(phrase, boost) for phrase, boost in phrases if all(map(LETTERS_ALONE.issuperset, phrase))]
    words = {_columns(word): word for phrase, _ in written for word in phrase}
    spelled = {tuple(map(_columns, phrase)): boost for phrase, boost in written}
    joined = tuple((" ".join(phrase), boost) for phrase, boost in phrases)
    known = {" ".join(phrase) for phrase, _ in written}
    return _automaton(joined, words, spelled, [phrase for phrase, _ in joined if phrase not in known])


def _columns(word: str) -> Letters:
    return tuple(map(LETTERS.index, word))


def _automaton(
    phrases: tuple[tuple[str, float], ...],
    words: Mapping[Letters, str],
    boosts: Mapping[PhraseLetters, float],
    unspeakable: Sequence[str],
) -> Bias:
    root = _State((), (), -1)
    states: _States = {((), ()): root}
    for phrase, boost in boosts.items():
        _add_phrase(root, phrase, boost, states)
    ordered = _breadth_first(root)
    for state in ordered:
        _score_state(state, boosts, states)
    ints = np.zeros((len(ordered) + 2, TERM_INTS), np.int32)
    floats = np.zeros((len(ordered) + 1, TERM_FLOATS), np.float64)
    child = 2
    for row, state in ((s.number, s) for s in ordered):
        ints[row] = child, state.column, state.fail, state.reach > 0, state.complete
        floats[row] = state.value, state.earned, 0.0
        child += len(state.children)
        if row == at.TERM_START:
            ints[at.TERM_ELSEWHERE, at.TERM_FIRST] = child
    ints[-1, at.TERM_FIRST] = child
    floats[at.TERM_START, at.TERM_GAIN] = max(0.0, *boosts.values()) if boosts else 0.0
    table = len(floats), ints.ctypes.data, floats.ctypes.data
    return Bias(phrases, words, ints, floats, table, tuple(unspeakable))


def _add_phrase(root: _State, phrase: PhraseLetters, boost: float, states: _States) -> None:
    state, letters, reach = root, Letters(), 0.0
    for column in itertools.chain.from_iterable((*word, SPACE_COLUMN) for word in phrase):  # the last one completes it
        if column == SPACE_COLUMN:
            closed, letters = (*state.words, letters), ()
        else:
            closed, letters, reach = state.words, (*letters, column), reach + max(0.0, boost)
        if column not in state.children:
            state.children[column] = states[closed, letters] = _State(closed, letters, column)
        state = state.children[column]
        state.reach = max(state.reach, reach)


def _breadth_first(root: _State) -> list[_State]:
    ordered = [root]
    for state in ordered:
        ordered += state.children.values()
    for number, state in enumerate(ordered[1:], at.TERM_ELSEWHERE + 1):
        state.number = number
    return ordered


def _score_state(state: _State, boosts: Mapping[PhraseLetters, float], states: _States) -> None:
    """Compute a state's earned score, fail state and value; shorter states must be computed before."""
    if not state.words and not state.letters:
        return
    if state.letters:
        before = states[state.words, ()]
        state.earned, state.earned_words = before.earned, before.earned_words
        state.fail = at.TERM_ELSEWHERE
    else:
        _score_boundary(state, boosts, states)
    count = len(state.words)
    last = count if state.letters else count - 1
    ahead = 0.0
    for begin in range(max(1, state.earned_words), last + 1):
        shorter = states.get((state.words[begin:], state.letters))
        if shorter is not None:
            state.fail, ahead = shorter.number, shorter.value
            break
    state.value = max(state.earned, state.earned + ahead)
    if state.reach > 0 and state.children:
        state.value = max(state.value, state.reach)


def _score_boundary(state: _State, boosts: Mapping[PhraseLetters, float], states: _States) -> None:
    """Compute the best sum of scores of complete phrases that do not overlap, at a word boundary."""
    words = state.words
    before = states[words[:-1], ()]
    state.earned, state.earned_words = before.earned, before.earned_words
    penalty = 0.0
    for begin in range(len(words)):
        boost = boosts.get(words[begin:])
        if boost is None:
            continue
        state.complete = True
        total = boost * sum(map(len, words[begin:]))
        penalty = min(penalty, total)
        earned = states[words[:begin], ()].earned + total
        if total > 0 and earned > state.earned:
            state.earned, state.earned_words = earned, len(words)
    if penalty < 0 and state.earned_words < len(words):
        state.earned, state.earned_words = before.earned + penalty, len(words)


NO_BIAS = Bias.of(())
