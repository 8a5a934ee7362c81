"""A transducer whose frames are logits and whose prediction network is a table: its tokens are known.

`spoken` makes the frames of a text: each piece in a frame of its own, blanks between, and noise.
"""

from __future__ import annotations

import numpy as np

from model.ctc.tokens import Tokens
from model.published.transducer.frame_joiner import Rows
from model.published.transducer.networks import best_of
from model.transducer.decoder import TransducerDecoder

SYLLABLES = [first + second for first in "bdgklmnprstvz" for second in ("a", "e", "i", "o", "u")]
SYMBOLS = ("<blk>", "<unk>", *(f"▁{each}" for each in SYLLABLES), *SYLLABLES)
FRAME_S = 0.04
SURE = 6.0  # logit of what is spoken


class ToyNetworks:
    """Stateless networks: logits are those of the frame and those that follow the last two symbols."""

    def __init__(self, symbols=SYMBOLS, symbols_per_frame=1, seed=1):
        self.tokens, self.rows, self.symbols_per_frame = Tokens.of(symbols, 0), Rows(), symbols_per_frame
        size = len(symbols)
        self._table = np.random.default_rng(seed).standard_normal((2, size, size)).astype(np.float32) * 0.5
        self.calls = 0  # rows advanced
        start = np.zeros((1, 2), np.int64)
        self.start = start, self._outputs(start)

    def advance(self, contexts, symbols):
        self.calls += len(symbols)
        contexts = np.concatenate([contexts[:, 1:], symbols[:, None]], axis=1)
        return contexts, self._outputs(contexts)

    def project(self, encoded):
        return np.ascontiguousarray(encoded)

    def join(self, frames, outputs):
        return frames + outputs

    def best(self, frames, outputs, written):
        return best_of(self.join(frames, outputs), written)

    def _outputs(self, contexts):
        return self._table[0, contexts[:, 0]] + self._table[1, contexts[:, 1]]


def toy_decoder(**options):
    return TransducerDecoder(ToyNetworks(**options), FRAME_S, "toy")


def pieces_of(text):
    """Symbols of a text of syllables: two letters each."""
    words = [[word[at : at + 2] for at in range(0, len(word), 2)] for word in text.split()]
    return [SYMBOLS.index("▁" * (not at) + each) for word in words for at, each in enumerate(word)]


def spoken(text, noise=0.0, seed=1, confused=None):
    """Frames (1, T, V) of a text; `confused`: pieces that sound as another one, which is a little likelier."""
    random = np.random.default_rng(seed)
    rows = []
    for piece in pieces_of(text):
        logits = np.zeros(len(SYMBOLS), np.float32)
        logits[piece] = SURE
        if confused and piece in confused:
            logits[confused[piece]] = SURE + 1.5
        silence = np.zeros(len(SYMBOLS), np.float32)
        silence[0] = SURE
        rows += [logits, silence]
    frames = np.stack(rows) + noise * random.standard_normal((len(rows), len(SYMBOLS))).astype(np.float32)
    return frames[None].astype(np.float32)


def text_of(decoder, frames, bias, split=None):
    """Text of frames (1, T, V), in one call or in steps of `split` frames."""
    state = decoder.start(0, bias)
    step = split or frames.shape[1]
    for at in range(0, frames.shape[1], step):
        decoder.advance([state], frames[:, at : at + step])
    return " ".join(word.text for word in decoder.take(state))
