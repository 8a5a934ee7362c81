"""Log-probabilities in which given symbols are the likeliest, for tests of CTC decoders."""

import numpy as np
from hypothesis import strategies as st

VOCABULARY = ("", " ", "a", "b", "c")
FRAME_S = 0.04


def log_probs(symbols, vocabulary=VOCABULARY, certainty=0.9):
    """Log-probabilities (T, V) in which the given symbols are the likeliest."""
    rest = (1 - certainty) / (len(vocabulary) - 1)
    table = np.full((len(symbols), len(vocabulary)), rest, np.float32)
    table[np.arange(len(symbols)), symbols] = certainty
    return np.log(table)


def spell(text):
    return [VOCABULARY.index(c) if c != "_" else 0 for c in text]


symbols_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60)
