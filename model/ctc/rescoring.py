"""Rescoring of a search's final hypotheses as whole texts, by a language model that the search itself cannot use.

A search merges or drops hypotheses by their last words, so its language model sees only a few words. A model that needs
the whole text can only choose among the remaining texts. Its log-probability is added to the search's score. Source:
Mikolov et al. 2010, "Recurrent neural network based language model", section on rescoring of N-best lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from model.ctc.beam import BeamDecoder
from model.ctc.beam_state import BeamState
from model.ctc.search.kernel import sum_of_logs
from model.ctc.words import Word
from model.lm.recurrent.model import Counts, RecurrentLanguageModel
from model.machine.compiled import DoubleArray, IntArray

MOST = 60
"""Number of best hypotheses that are rescored. Source: model/LOG.md."""
CONTEXT = 10
"""Preceding words that are used as context."""

Text = tuple[tuple[str, ...], float, int]
"""Words, the search's score, and the index of the hypothesis."""


@dataclass(frozen=True, slots=True)
class Rescorer:
    """A language model, loaded by the first thread that needs it, and the digest of its file."""

    load: Callable[[], RecurrentLanguageModel]
    digest: str


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of texts (N,): the search's, log-probabilities of the model and the search's n-grams, word counts."""

    search: DoubleArray
    log_probs: DoubleArray
    ngrams: DoubleArray
    lengths: IntArray

    def best(self, counts: Counts) -> int:
        """Index of the text with the highest score; the first of equal ones."""
        scores = self.search + counts.weight * self.log_probs - counts.ngram_discount * self.ngrams
        return int(np.argmax(scores + counts.word_bonus * self.lengths))


def best_words(
    decoder: BeamDecoder, state: BeamState, model: RecurrentLanguageModel, before: Sequence[str] = (), most: int = MOST
) -> tuple[Word, ...]:
    """Return the words of the best hypothesis, by the search's score and the model's, if the text ends here.

    `before` are words that came before the text, at most `CONTEXT`. Words known only from key terms are scored by the
    search and hidden from the model, which would find each of them unlikely. The state is unchanged. Raises:
    ReleasedState.
    """
    texts = texts_of(decoder, state, most)
    return decoder.ending(state, texts[scores_of(decoder, texts, model, before).best(model.counts)][2])


def scores_of(
    decoder: BeamDecoder, texts: Sequence[Text], model: RecurrentLanguageModel, before: Sequence[str] = ()
) -> Scores:
    """Score texts of a search, with the words `before` them; see `best_words`."""
    lm = decoder.lm
    whole = [[word for word in (*before, *words) if lm is None or word in lm] for words, _, _ in texts]
    return Scores(
        np.array([score for _, score, _ in texts]),
        model.score(whole),
        np.zeros(len(texts)) if lm is None else np.array([sum(lm.score(words)) for words in whole]),
        np.array([len(words) for words, _, _ in texts], np.int32),
    )


def texts_of(decoder: BeamDecoder, state: BeamState, most: int) -> list[Text]:
    """The best texts, best first: words, score, and the hypothesis with the likeliest alignment of the text.

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
