"""Acknowledgements by their sound: "uh-huh", "yeah" and "okay" that the search writes as other words.

Such a word is short, and language models of sentences hardly know it, so the search finds "but" or "yes". A network of
two layers tells whether a short segment only acknowledges, from its phones: of each the highest probability in each of
four equal parts of the speech, the sum over all of it, and the length. It runs once, when a segment is taken, over
frames that the stream has anyway, in integers. The text stays the search's.

`python -m tutti_asr_lab.training.acknowledgements` learns the weights (docs/voice-agents.md has its figures).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from model.ctc.beam import BeamDecoder
from model.ctc.beam_state import SearchDecoder, SearchedState
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import LogProbs, digest_of
from model.ctc.words import Word
from model.errors import ModelError
from model.text.files import read_text

SUFFIX = ".acknowledgements.json"  # after the name of the acoustic model
PARTS = 4
MOST_WORDS = 3  # of the search
LONGEST_S = 1.2  # from the first word to the end of the last one
BEFORE_S, AFTER_S = 0.2, 0.2  # around the words, which the search may have found too late or too short
PER_NAT, LEVELS = 16, 128  # steps of a log-probability; anything less likely counts as the last step
ONE = 255  # a probability of 1
SPEECH = 230  # least probability of the blank in silence
SUMMED = 10  # the sum of probabilities over the frames counts a tenth, at most `ONE`
PER_FRAME = 4  # value of a frame in the length
_PROBABILITY = np.array([round(ONE * math.exp(-step / PER_NAT)) for step in range(LEVELS)], np.int64)


def may_be_marked(words: Sequence[Word]) -> bool:
    """Whether a segment with these words is short enough."""
    return 0 < len(words) <= MOST_WORDS and words[-1].end_s - words[0].start_s <= LONGEST_S


def features_of(log_probs: LogProbs) -> NDArray[np.int64] | None:
    """Return the features ((PARTS + 1) * V + 1,) of the speech in log_probs (T, V), blank first; None in silence."""
    steps = np.clip(np.floor(log_probs * np.float32(-PER_NAT)), 0, LEVELS - 1).astype(np.int64)
    levels = _PROBABILITY[steps]  # (T, V)
    speech = np.flatnonzero(levels[:, 0] < SPEECH)
    if not len(speech):
        return None
    levels = levels[max(0, speech[0] - 1) : speech[-1] + 2]
    count = len(levels)
    bounds = [count * part // PARTS for part in range(PARTS + 1)]
    highest = [levels[begin : max(end, begin + 1)].max(axis=0) for begin, end in pairwise(bounds)]
    return np.concatenate([*highest, np.minimum(levels.sum(axis=0) // SUMMED, ONE), [count * PER_FRAME]])


class _NetworkFile(msgspec.Struct):
    phones: list[str]
    hidden: list[list[int]]
    output: list[int]
    threshold: int


@dataclass(frozen=True)
class AcknowledgementNetwork:
    """Integer weights of H hidden units over F features, and the least output for an acknowledgement."""

    hidden: NDArray[np.int64]  # (H, F + 1), the bias last
    output: NDArray[np.int64]  # (H,)
    threshold: int
    digest: str

    @classmethod
    def load(cls, path: Path, phones: Sequence[str]) -> AcknowledgementNetwork:
        """Read the network for a model with these phones. Raises: ModelError with the path."""
        text = read_text(path, ModelError)
        try:
            read = msgspec.json.decode(text, type=_NetworkFile)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ModelError(f"{path}: not a network of acknowledgements: {error}") from error
        inputs = (PARTS + 1) * (len(phones) + 1) + 2
        if read.phones != list(phones) or [len(row) for row in read.hidden] != [inputs] * len(read.output):
            raise ModelError(f"{path}: not for a model with these {len(phones)} phones; learn it again, or remove it")
        return cls(np.array(read.hidden, np.int64), np.array(read.output, np.int64), read.threshold, digest_of(text))

    def marked(self, words: tuple[Word, ...], log_probs: LogProbs, first: int, frame_s: float) -> tuple[Word, ...]:
        """Return a segment's words, all marked if its speech only acknowledges; log_probs (T, V) from frame `first`."""
        if not may_be_marked(words):
            return words
        begin = max(round(words[0].start_s / frame_s) - round(BEFORE_S / frame_s) - first, 0)
        end = round(words[-1].end_s / frame_s) + round(AFTER_S / frame_s) - first
        marks = end > begin and self.acknowledges(log_probs[begin:end])
        return tuple(structs.replace(word, acknowledges=True) for word in words) if marks else words

    def acknowledges(self, log_probs: LogProbs) -> bool:
        """Whether the speech in log_probs (T, V) only acknowledges."""
        features = features_of(log_probs)
        if features is None:
            return False
        hidden = np.maximum(self.hidden[:, :-1] @ features + self.hidden[:, -1], 0)  # (H,)
        return int(hidden @ self.output) >= self.threshold


@dataclass(slots=True, eq=False)
class AcknowledgingState(SearchedState):
    """Decoder state of one stream, with its last outputs, (T, V) each."""

    outputs: deque[LogProbs] = field(default_factory=deque)
    kept: int = 0  # frames in `outputs`


class AcknowledgingDecoder(SearchDecoder):
    """A beam search over phones that marks the words of a short segment which only acknowledges."""

    def __init__(self, search: BeamDecoder, network: AcknowledgementNetwork) -> None:
        super().__init__(search)
        self.network = network
        self._kept = round(2 * LONGEST_S / self.frame_s)

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on."""
        return digest_of("acknowledgements", self.search.digest, self.network.digest)

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> AcknowledgingState:
        """Return a new state that ignores the first `skip_frames` frames."""
        return AcknowledgingState(self.search.start(skip_frames, bias))

    def advance(self, states: Sequence[AcknowledgingState], log_probs: LogProbs) -> None:
        """Decode (B, T, outputs) more frames, row b into `states[b]`. Raises: ValueError, ReleasedState."""
        log_probs = self.search.own(log_probs)
        self.search.search([state.first for state in states], log_probs)
        for state, row in zip(states, log_probs, strict=True):
            state.outputs.append(row.copy())
            state.kept += len(row)
            while state.kept - len(state.outputs[0]) >= self._kept:
                state.kept -= len(state.outputs.popleft())

    def copy(self, state: AcknowledgingState) -> AcknowledgingState:
        """Return an independent copy of a state. Raises: ReleasedState."""
        return replace(state, first=self.search.copy(state.first), outputs=state.outputs.copy())

    def take(self, state: AcknowledgingState, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all) of the open segment; all are marked or none is."""
        words: tuple[Word, ...] = self.search.take(state.first, count)
        if count is not None or not state.outputs:
            return words
        return self.network.marked(words, np.concatenate(state.outputs), state.frames - state.kept, self.frame_s)
