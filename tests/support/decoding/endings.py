"""All hypotheses of a beam search if the text ends here: their scores and words, by the compiled search's own parts."""

import numba
import numpy as np

from model.ctc.search import kernel
from model.ctc.search import layout as at
from model.ctc.search.layout import OUT_INTS, OUT_WORD


@numba.njit
def _scores(address, setup, scores):
    stream = kernel.stream_at(address, setup.beams)
    texts = kernel.texts_of(setup, stream.header)
    for h in range(stream.header[at.HYPOTHESES]):
        scores[h] = kernel._score_ended(texts, stream, h)
    return stream.header[at.HYPOTHESES]


@numba.njit
def _words(address, setup, hypothesis):
    stream = kernel.stream_at(address, setup.beams)
    return kernel._write_path(kernel.texts_of(setup, stream.header), stream, hypothesis, True)


def ending_scores(decoder, state):
    """Return the score of each hypothesis, (H,); -inf for one represented by another one."""
    scores = np.empty(decoder.beams, np.float64)
    return scores[: _scores(state.opened(), decoder._setup, scores)]


def ending_texts(decoder, state, hypothesis):
    """Return the words of a hypothesis, without times."""
    count = _words(state.opened(), decoder._setup, hypothesis)
    records = np.frombuffer(state.block, np.int32, OUT_INTS * count, decoder._out_words)
    words = records[OUT_WORD::OUT_INTS].tolist()
    committed = [word.text for word in state.committed]
    if decoder.lm is None or min(words, default=0) < 0:  # spelled by their symbols
        return (*committed, *(word.text for word in decoder._read(state, count)[0]))
    return (*committed, *[decoder.lm.words[word] for word in words])
