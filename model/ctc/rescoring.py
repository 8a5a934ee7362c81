"""The best texts of a segment with exact scores of its sound: what a second pass needs to score them anew.

A second pass replaces the log-probabilities by its own (`text_log_prob` of another network's), adds scores, and takes
the text with the highest sum. Characters alone: a text in pieces of words has many spellings.

Source: Graves et al. 2006, "Connectionist temporal classification", section 4.1, the forward variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.config import BLANK
from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.search.text_score import text_score
from model.ctc.words import LogProbs
from model.errors import VocabularyError


@dataclass(frozen=True, slots=True)
class TextHypothesis:
    """A text of a segment and its scores, natural logarithms."""

    words: tuple[str, ...]
    sound: float  # log-probability, summed over all alignments
    language: float  # weighted: language model with the end of the sentence, unknown words, word bonus, key terms

    @property
    def score(self) -> float:
        """By which the texts are in order."""
        return self.sound + self.language


def best_texts(decoder: BeamDecoder, log_probs: LogProbs, count: int, bias: Bias = NO_BIAS) -> list[TextHypothesis]:
    """Return up to `count` texts of one segment, (T, V) log-probs, the best first.

    A decoder made with `merges=False` finds texts that differ anywhere, any other mostly such that differ in their last
    words. Raises: VocabularyError for a vocabulary of pieces.
    """
    state = decoder.start(0, bias)
    decoder.advance([state], log_probs[None])
    found = [
        TextHypothesis(words, text_log_prob(log_probs, " ".join(words), decoder.vocabulary), language)
        for words, (_, language) in decoder.hypotheses(state).items()
    ]
    decoder.release(state)
    return sorted(found, key=lambda text: -text.score)[:count]


def text_log_prob(log_probs: LogProbs, text: str, vocabulary: Sequence[str]) -> float:
    """Log-probability of a text, words with one space between, under (T, V) log-probs: the sum over its alignments.

    Spaces before, after and several in a row change no text. Raises: VocabularyError if it cannot be spelled.
    """
    place = {symbol: number for number, symbol in enumerate(vocabulary)}
    if any(len(symbol) > 1 for symbol in vocabulary) or not all(letter in place for letter in text):
        raise VocabularyError(f"{text[:60]!r} cannot be spelled in this vocabulary's characters")
    space = place.get(" ", -1)
    symbols = np.array([place[letter] for letter in text], np.int32)
    rows = np.array(log_probs, np.float32, order="C")  # the one form that code is compiled for
    return float(text_score(rows, symbols, BLANK, space))
