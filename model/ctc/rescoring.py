"""Ended hypotheses of a search scored again as whole texts, by a language model that the search itself cannot follow.

A search merges or drops hypotheses by what they end in, so its language model sees some words; one that reads a text
from its beginning can only choose among the texts that are left. Its log-probability counts beside the search's score.
Source: Mikolov et al. 2010, "Recurrent neural network based language model", section on rescoring of N-best lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from model.ctc.beam import BeamDecoder, BeamState
from model.ctc.search.kernel import sum_of_logs
from model.ctc.words import Word
from model.machine.compiled import DoubleArray

MOST = 60
"""Hypotheses of a text that are scored again, the best ones. Source: model/LOG.md."""
CONTEXT = 10
"""Words before a text that its words are judged by, too."""


class TextModel(Protocol):
    """A language model of whole texts, and what it counts for in a score."""

    weight: float
    ngram_discount: float  # what its search's n-grams count for less where it counts, too
    word_bonus: float

    def score(self, texts: Sequence[Sequence[str]]) -> DoubleArray:
        """Return the natural log-probability of each text, a sequence of words: (N,)."""


@dataclass(frozen=True, slots=True)
class Rescorer:
    """A language model that is loaded by the thread that needs it first, and its file's digest."""

    load: Callable[[], TextModel]
    digest: str


def best_words(
    decoder: BeamDecoder, state: BeamState, model: TextModel, before: Sequence[str] = (), most: int = MOST
) -> tuple[Word, ...]:
    """Return the words of the best hypothesis, by the search's score and the model's, if the text ends here.

    `before` are words that came before the text, at most `CONTEXT`. Words that key terms alone know are judged by the
    search, and left out of what the model reads: it would find each of them unlikely. The state stays as it is.
    Raises: ReleasedState.
    """
    texts, lm = texts_of(decoder, state, most), decoder.lm
    whole = [[word for word in (*before, *words) if lm is None or word in lm] for words, _, _ in texts]
    scores = np.array([score for _, score, _ in texts]) + model.weight * model.score(whole)
    if model.ngram_discount:
        scores -= model.ngram_discount * ngram_scores(decoder, whole)
    scores += model.word_bonus * np.array([len(words) for words, _, _ in texts])
    return decoder.ending(state, texts[int(np.argmax(scores))][2])


def ngram_scores(decoder: BeamDecoder, texts: Sequence[Sequence[str]]) -> DoubleArray:
    """Log-probabilities of texts (N,) by the language model of a search, 0 without one."""
    if decoder.lm is None:
        return np.zeros(len(texts))
    return np.array([sum(decoder.lm.score(words)) for words in texts])


def texts_of(decoder: BeamDecoder, state: BeamState, most: int) -> list[tuple[tuple[str, ...], float, int]]:
    """The best texts: words, score, and the hypothesis with the likeliest of a text's alignments, the best first.

    A text may have several pronunciations, whose probabilities add up.
    """
    found: dict[tuple[str, ...], tuple[float, int]] = {}
    scores = decoder.ending_scores(state)
    for hypothesis in np.argsort(-scores, kind="stable")[:most].tolist():
        score = float(scores[hypothesis])
        if score == -np.inf:
            break
        words = decoder.ending_texts(state, hypothesis)
        if words in found:
            total, whose = found[words]
            found[words] = sum_of_logs(total, score), whose
        else:
            found[words] = score, hypothesis
    return [(words, total, whose) for words, (total, whose) in found.items()]
