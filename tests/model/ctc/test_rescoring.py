"""Rescoring of final hypotheses as whole texts: the choice and the returned words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.bias import Bias
from model.ctc.rescoring import Rescorer, best_words, texts_of
from model.ctc.two_pass import TwoPassDecoder
from model.lm.recurrent.model import Counts
from model.machine.compiled import DoubleArray
from tests.support.decoding.beam_toys import decoder, random_log_probs, seen, speech_like
from tests.support.decoding.phone_toys import OUTPUTS, phone_decoder

seeds = st.integers(0, 2**32 - 1)


@dataclass
class Favours:
    """Text model with a log-probability of 0 for texts that end in a given word, -1 for others."""

    word: str
    counts: Counts = field(default_factory=lambda: Counts(1.0))

    def score(self, texts: Sequence[Sequence[str]]) -> DoubleArray:
        return np.array([0.0 if words and words[-1] == self.word else -1.0 for words in texts])


def advanced(made: BeamDecoder, rows: np.ndarray, bias: Bias | None = None):
    state = made.start(0) if bias is None else made.start(0, bias)
    made.advance([state], rows[None])
    return state


def read(words) -> list[str]:
    return [word.text for word in words]


@settings(max_examples=60, deadline=None)
@given(seed=seeds, frames=st.integers(0, 80), merges=st.booleans())
def test_a_model_of_weight_zero_changes_nothing(seed: int, frames: int, merges: bool) -> None:
    """For texts with one spelling each."""
    made = decoder(16, merges=merges)
    state = advanced(made, speech_like(seed, frames))
    before = seen(made, state)
    found = best_words(made, state, Favours("a", Counts()))
    assert seen(made, state) == before, "the state is unchanged"
    assert found == made.take(state)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, most=st.integers(1, 40))
def test_texts_differ_and_are_the_best_ones(seed: int, most: int) -> None:
    made = phone_decoder(32, merges=False)
    state = advanced(made, random_log_probs(seed, 20, OUTPUTS))
    texts = texts_of(made, state, most)
    words = [each for each, _, _ in texts]
    assert len(words) == len(set(words)) <= most
    assert all(read(made.ending(state, whose)) == list(each) for each, _, whose in texts)
    best = max(made.ending_scores(state).tolist())
    assert texts[0][1] >= best


def test_pronunciations_of_one_text_add_up() -> None:
    made = phone_decoder(64, merges=False)
    state = advanced(made, random_log_probs(3, 12, OUTPUTS))
    scores = made.ending_scores(state)
    by_text: dict[tuple[str, ...], list[float]] = {}
    for hypothesis, score in enumerate(scores.tolist()):
        if score > -np.inf:
            by_text.setdefault(made.ending_texts(state, hypothesis), []).append(score)
    found = {words: total for words, total, _ in texts_of(made, state, 1_000)}
    assert found.keys() == by_text.keys()
    assert max(map(len, by_text.values())) > 1
    for words, parts in by_text.items():
        assert found[words] == pytest.approx(np.logaddexp.reduce(parts))


def test_the_model_chooses_among_texts_that_are_left() -> None:
    made = phone_decoder(32, merges=False)
    state = advanced(made, random_log_probs(5, 16, OUTPUTS))
    plain = read(best_words(made, state, Favours("", Counts())))
    endings = {words[-1] for words, _, _ in texts_of(made, state, 100) if words}
    assert len(endings) > 1
    for word in endings:
        assert read(best_words(made, state, Favours(word, Counts(1_000.0))))[-1] == word
    assert read(best_words(made, state, Favours("never spoken", Counts(1_000.0)))) == plain


def test_a_word_bonus_favors_long_texts() -> None:
    made = phone_decoder(32, merges=False)
    state = advanced(made, random_log_probs(6, 24, OUTPUTS))
    lengths = [len(words) for words, _, _ in texts_of(made, state, 100)]
    for bonus, expected in ((100.0, max(lengths)), (-100.0, min(lengths))):
        assert len(best_words(made, state, Favours("", Counts(word_bonus=bonus)))) == expected


def test_words_of_key_terms_alone_are_spelled() -> None:
    made = phone_decoder(32, merges=False)
    state = advanced(made, random_log_probs(8, 24, OUTPUTS), Bias.of([("kay", 9.0)]))
    assert any("kay" in words for words, _, _ in texts_of(made, state, 100))


def test_words_of_key_terms_alone_are_not_scored_by_the_model() -> None:
    seen_texts: list[list[str]] = []

    class Reads(Favours):
        def score(self, texts: Sequence[Sequence[str]]) -> DoubleArray:
            seen_texts.extend(list(text) for text in texts)
            return super().score(texts)

    made = phone_decoder(32, merges=False)
    state = advanced(made, random_log_probs(8, 24, OUTPUTS), Bias.of([("kay", 9.0)]))
    best_words(made, state, Reads("a"), before=("kay", "ab"))
    assert seen_texts
    assert all(text[:1] == ["ab"] and "kay" not in text for text in seen_texts)


def test_a_second_search_chooses_the_text_that_the_model_favors_and_includes_it_in_its_digest() -> None:
    rows = random_log_probs(11, 24, OUTPUTS)
    first, second = phone_decoder(4), phone_decoder(32, merges=False)
    plain = TwoPassDecoder(first, second)
    digests, endings = {plain.digest}, set()
    for word in ("a", "ab", "cab"):
        rescorer = Rescorer(lambda word=word: Favours(word, Counts(1_000.0)), word)
        made = TwoPassDecoder(first, second, rescorer=rescorer)
        state = made.start(0)
        made.advance([state], rows[None])
        again = made.second_pass(state, None)
        assert again is not None
        endings.add(read(again())[-1])
        digests.add(made.digest)
    assert len(digests) == 4
    assert len(endings) > 1
