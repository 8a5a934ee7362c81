"""A transducer whose last seconds can be searched again for key terms: the encoder's frames are kept.

A frame of 512 floats takes 2 kB, so `KEPT_S` of a zipformer take 1.5 MB for each stream that asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import digest_of
from model.ctc.rewind import RewindDecoder, RewindState
from model.ctc.words import Word
from model.transducer.decoder import TransducerDecoder

CONTEXT = 4  # words before a text whose pieces the prediction network reads
Floats = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class KeptEncodings:
    """The last frames of one stream, from frame `begin` on, in parts (T, D)."""

    begin: int = 0
    parts: deque[Floats] = field(default_factory=deque)

    def drop(self, until: int) -> None:
        """Drop the parts that end before `until`."""
        while self.parts and self.begin + len(self.parts[0]) <= until:
            self.begin += len(self.parts.popleft())

    def since(self, begin: int) -> KeptEncodings:
        """Return the frames from `begin` on; parts are shared, and never change."""
        later = KeptEncodings(self.begin, deque(self.parts))
        later.drop(begin)
        if later.parts:
            later.parts[0] = later.parts[0][begin - later.begin :]
        later.begin = begin
        return later


class TransducerRewind(RewindDecoder):
    """A transducer's search, which searches the kept frames in the same way."""

    def __init__(self, search: TransducerDecoder) -> None:
        super().__init__(search, CONTEXT)

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on."""
        return digest_of(f"rewind {self._kept} {CONTEXT}", self.search.digest)

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> RewindState:
        """Return a new state that ignores the first `skip_frames` frames."""
        return RewindState(self.search.start(skip_frames, bias), KeptEncodings())

    def advance(self, states: Sequence[RewindState], log_probs: Floats) -> None:
        """Decode frames (B, T, D), row b into `states[b]`."""
        before = [state.frames for state in states]
        self.search.advance([state.first for state in states], log_probs)
        for state, frames, row in zip(states, before, log_probs, strict=True):
            if new := state.frames - frames:
                state.kept.parts.append(row[len(row) - new :].copy())
            self._forget(state)

    def decode_again(self, state: RewindState, begin: int, before: Sequence[Word], bias: Bias) -> tuple[Word, ...]:
        """See `RewindDecoder`."""
        search: TransducerDecoder = self.search
        pieces = [piece for word in before[-CONTEXT:] for piece in search.speller.pieces(word.text)]
        again = search.start_after(begin, pieces, bias)
        frames = np.concatenate([*state.kept.since(begin).parts])[: state.until - begin]  # (T, D)
        search.advance([again], frames[np.newaxis])
        return search.take(again)
