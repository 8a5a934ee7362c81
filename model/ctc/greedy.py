"""Greedy CTC decoding, frame by frame: the best symbol of each frame, repeats merged, blanks dropped.

Source: Graves et al. 2006, section 3.2 (best path decoding). A letter never changes once emitted, so every word closed
by a space is stable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from model.config import BLANK
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.words import LogProbs, Word, digest_of

SPACE = " "
VERSION = 1  # of saved states


@dataclass(slots=True)
class GreedyState:
    """One stream: the closed words, the letters of the open one."""

    skip: int
    frames: int = 0
    silence_frames: int = 0
    revision: int = 0
    previous: int = BLANK
    closed: list[Word] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    log_prob: float = 0.0  # sum over `letters`
    first_frame: int = 0
    last_frame: int = 0
    released: bool = False

    @property
    def has_text(self) -> bool:
        """True if the open segment holds a letter."""
        return bool(self.closed or self.letters)


class SavedGreedy(msgspec.Struct, array_like=True, frozen=True):
    """The serialised form of a `GreedyState`."""

    version: int
    skip: int
    frames: int
    silence_frames: int
    revision: int
    previous: int
    closed: list[Word]
    letters: list[str]
    log_prob: float
    first_frame: int
    last_frame: int


class GreedyDecoder:
    """Owns the vocabulary; the states belong to its callers. Key terms have no effect."""

    supports_bias = False

    def __init__(self, vocabulary: Sequence[str], frame_s: float) -> None:
        self.vocabulary, self.frame_s = tuple(vocabulary), frame_s

    def warm_up(self) -> None:
        """Do nothing: there is nothing to compile."""

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> GreedyState:  # noqa: ARG002  part of the interface
        """Return a fresh state that ignores the first `skip_frames` frames."""
        return GreedyState(skip=skip_frames)

    def set_bias(self, state: GreedyState, bias: Bias) -> None:
        """Do nothing: key terms have no effect."""

    def release(self, state: GreedyState) -> None:
        """Mark the state as released. Raises: ValueError the second time, as every decoder does."""
        if state.released:
            raise ValueError("this decoder state has been released")
        state.released = True

    @property
    def digest(self) -> str:
        """Digest of all that its results depend on."""
        return digest_of(f"greedy {VERSION} {self.frame_s!r}", *self.vocabulary)

    def save(self, state: GreedyState) -> bytes:
        """Return all of a state, for `load`; the state stays usable."""
        fields = {name: getattr(state, name) for name in SavedGreedy.__struct_fields__ if name != "version"}
        return msgspec.msgpack.encode(SavedGreedy(VERSION, **fields))

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> GreedyState:  # noqa: ARG002  part of the interface
        """Return the saved state. Raises: ValueError for damaged or foreign bytes."""
        read = msgspec.msgpack.decode(saved, type=SavedGreedy)
        if read.version != VERSION or not 0 <= read.previous < len(self.vocabulary) or read.skip < 0:
            raise ValueError("this is no state of the greedy decoder")
        fields = msgspec.structs.asdict(read)
        del fields["version"]
        return GreedyState(**fields)

    def advance(self, states: Sequence[GreedyState], log_probs: LogProbs) -> None:
        """Decode (B, T, V) more frames, row b into `states[b]`."""
        symbols = log_probs.argmax(axis=2)  # (B, T)
        spoken = symbols.any(axis=1).tolist()
        rows, best = symbols.tolist(), log_probs.max(axis=2).tolist()
        for state, row, scores, any_spoken in zip(states, rows, best, spoken, strict=True):
            if any_spoken or state.skip or not row:
                self._frames(state, row, scores)
            else:  # blanks only: most steps of most streams
                state.frames += len(row)
                state.silence_frames += len(row)
                state.previous = BLANK

    def words(self, state: GreedyState) -> tuple[Word, ...]:
        """Words of the open segment; the last one may be unfinished."""
        return (*state.closed, self._open_word(state)) if state.letters else tuple(state.closed)

    def stable_words(self, state: GreedyState) -> int:
        """Number of `words` that can no longer change: all but the open one."""
        return len(state.closed)

    def take(self, state: GreedyState, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all); taking the open word closes it."""
        words = self.words(state)
        taken = words if count is None else words[:count]
        if taken:
            if len(taken) > len(state.closed):
                self._forget_open(state)
            del state.closed[: len(taken)]
            state.revision += 1
        return taken

    def _frames(self, state: GreedyState, row: Sequence[int], scores: Sequence[float]) -> None:
        for symbol, log_prob in zip(row, scores, strict=True):
            if state.skip:
                state.skip -= 1
                continue
            if symbol == BLANK:
                state.silence_frames += 1
            elif (text := self.vocabulary[symbol]) == SPACE:
                self._close_word(state)
                state.silence_frames += 1
            else:
                self._letter(state, symbol, text, log_prob)
            state.previous = symbol
            state.frames += 1

    def _letter(self, state: GreedyState, symbol: int, text: str, log_prob: float) -> None:
        state.silence_frames = 0
        state.last_frame = state.frames
        if symbol == state.previous:
            return
        if not state.letters:
            state.first_frame = state.frames
        state.letters.append(text)
        state.log_prob += log_prob
        state.revision += 1

    def _close_word(self, state: GreedyState) -> None:
        if state.letters:
            state.closed.append(self._open_word(state))
            self._forget_open(state)
            state.revision += 1

    def _open_word(self, state: GreedyState) -> Word:
        return Word(
            text="".join(state.letters),
            start_s=state.first_frame * self.frame_s,
            end_s=(state.last_frame + 1) * self.frame_s,
            confidence=math.exp(min(0.0, state.log_prob / len(state.letters))),
        )

    @staticmethod
    def _forget_open(state: GreedyState) -> None:
        state.letters = []
        state.log_prob = 0.0


def best_path(log_probs: LogProbs, vocabulary: Sequence[str]) -> str:
    """Text of one whole utterance (T, V): the definition that the incremental decoder must match."""
    symbols = np.asarray(log_probs).argmax(axis=1).tolist()
    kept = [s for s, before in zip(symbols, [BLANK, *symbols], strict=False) if s not in (BLANK, before)]
    return " ".join("".join(vocabulary[s] for s in kept).split())
