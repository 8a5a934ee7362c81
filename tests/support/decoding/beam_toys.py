"""Small language models, log-probabilities and reference scores for tests of the beam search."""

import math
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from model.ctc.beam import BeamDecoder
from model.ctc.weights import DecodingWeights
from model.lm.language_model import LanguageModel
from tests.support.decoding.ctc_symbols import log_probs, spell

FRAME_S = 0.04
LETTERS = ("", " ", "a", "b", "c")
PLAIN = DecodingWeights(lm_weight=0, word_bonus=0, unknown_cost=0, unknown_letter_cost=0)

TOY_ARPA = """\\data\\
ngram 1=7
ngram 2=6
ngram 3=2

\\1-grams:
-1.5\t<unk>\t-0.2
-99\t<s>\t-0.4
-1.0\t</s>
-0.6\ta\t-0.3
-0.9\tab\t-0.1
-1.1\tba\t-0.5
-1.4\tcab\t-0.2

\\2-grams:
-0.3\t<s> ab\t-0.2
-0.7\t<s> a\t-0.1
-0.2\tab a\t-0.3
-0.4\ta ba
-0.8\ta </s>
-0.9\tcab ab\t-0.1

\\3-grams:
-0.1\t<s> ab a
-0.5\tab a ba

\\end\\
"""


@cache
def toy_lm() -> LanguageModel:
    """Trigram model of four words."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "toy.arpa"
        path.write_text(TOY_ARPA)
        return LanguageModel.load(path, cache_dirs=[Path(folder) / "cache"])


def decoder(beams=8, *, lm=True, weights=None, **options):
    return BeamDecoder(LETTERS, FRAME_S, beams=beams, lm=toy_lm() if lm else None, weights=weights, **options)


def decoded(text, beams=8, **options):
    """Decoder without a language model, and its state after the symbols of `text`, with _ for blank."""
    made = decoder(beams, lm=False, weights=PLAIN)
    state = made.start(options.get("skip", 0))
    made.advance([state], log_probs(spell(text), certainty=options.get("certainty", 0.9))[None])
    return made, state


def seen(made, state):
    """Everything that a caller can read from a state."""
    counts = state.frames, state.silence_frames, state.revision, state.has_text
    return made.words(state), made.stable_words(state), counts


def random_log_probs(seed: int, frames: int, symbols: int, sharpness: float = 2.0) -> np.ndarray:
    """Random distributions (T, V); a larger sharpness makes one symbol more likely."""
    logits = np.random.default_rng(seed).normal(0, sharpness, (frames, symbols))
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


def speech_like(seed: int, frames: int, symbols: int = len(LETTERS)) -> np.ndarray:
    """Log-probabilities (T, V) that resemble speech: mostly blanks, some letters with competitors, spaces."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1.5, (frames, symbols))
    kind = generator.random(frames)
    logits[kind < 0.35, 0] += 9  # certainly blank
    logits[(kind > 0.35) & (kind < 0.55), 0] += 3
    logits[kind > 0.85, 1] += 4
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


def penalised(log_probs: np.ndarray, weights: DecodingWeights, blank: int = 0) -> np.ndarray:
    """Log-probabilities (T, V) as the search uses them: with the penalty on the blank."""
    read = log_probs.astype(np.float64)
    read[:, blank] -= weights.blank_penalty
    return read


def all_texts(log_probs: np.ndarray, vocabulary: tuple[str, ...]) -> dict[str, float]:
    """Log-probability of every text: the sum over all CTC alignments."""
    totals: dict[str, float] = {}
    rows = log_probs.astype(np.float64).tolist()
    for alignment in product(range(len(vocabulary)), repeat=len(rows)):
        text = "".join(vocabulary[c] for c, before in zip(alignment, (0, *alignment), strict=False) if c != before)
        text = " ".join(text.split())
        total = sum(row[c] for row, c in zip(rows, alignment, strict=True))
        totals[text] = float(np.logaddexp(totals.get(text, -math.inf), total))
    return totals


def words_score(words: list[str], lm: LanguageModel | None, weights: DecodingWeights, forgiven: set[int]) -> float:
    """Score of the words without the acoustic one; unknown words at the positions `forgiven` get `prefix_score`."""
    score = weights.word_bonus * len(words)
    if lm is None:
        return score
    *log_probs, end = lm.score(words)
    score += weights.lm_weight * end
    for place, (word, log_p) in enumerate(zip(words, log_probs, strict=True)):
        if word in lm:
            score += weights.lm_weight * log_p
        elif place in forgiven:
            score += prefix_score(word, lm, weights)
        else:
            score += unknown(len(word), weights)
    return score


def unknown(letters: int, weights: DecodingWeights) -> float:
    return -weights.unknown_cost - weights.unknown_letter_cost * letters


def prefix_score(word: str, lm: LanguageModel, weights: DecodingWeights) -> float:
    """Score of the likeliest known word with the longest common prefix."""
    for length in range(len(word), 0, -1):
        known = [w for w in lm.words[3:] if w.startswith(word[:length])]
        if known:
            best = max(lm.score([w], bos=False, eos=False)[0] for w in known)
            return max(weights.lm_weight * best, unknown(length, weights))
    return 0.0
