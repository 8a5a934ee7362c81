"""Greedy CTC decoding, frame by frame: the best symbol of each frame, repeats merged, blanks dropped.

Source: Graves et al. 2006, section 3.2 (best path decoding). An emitted symbol never changes, so every word that is
closed, by a space or by the start of the next word, is stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from model.config import BLANK
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import LogProbs, digest_of
from model.ctc.search.logs import probability
from model.ctc.tokens import Tokens
from model.ctc.words import Word

VERSION = 2  # of saved states


@dataclass(slots=True)
class GreedyState:
    """Decoder state of one stream: the closed words and the symbols of the open one."""

    skip: int
    frames: int = 0
    silence_frames: int = 0
    revision: int = 0
    previous: int = BLANK
    closed: list[Word] = field(default_factory=list)
    symbols: list[int] = field(default_factory=list)
    log_prob: float = 0.0  # sum over `symbols`
    first_frame: int = 0
    last_frame: int = 0
    released: bool = False

    @property
    def has_text(self) -> bool:
        """Whether the open segment contains a letter."""
        return bool(self.closed or self.symbols)


class SavedGreedy(msgspec.Struct, array_like=True, frozen=True):
    """Serialized `GreedyState`."""

    version: int
    skip: int
    frames: int
    silence_frames: int
    revision: int
    previous: int
    closed: list[Word]
    symbols: list[int]
    log_prob: float
    first_frame: int
    last_frame: int


class GreedyDecoder:
    """Greedy CTC decoder. Owns the vocabulary; callers own the states. Key terms have no effect."""

    supports_bias = False
    kind = "greedy"

    def __init__(self, vocabulary: Sequence[str] | Tokens, frame_s: float) -> None:
        """`vocabulary`: letters, the blank first; or `Tokens`."""
        self.tokens = vocabulary if isinstance(vocabulary, Tokens) else Tokens.of(vocabulary, BLANK)
        self.frame_s = frame_s

    def warm_up(self) -> None:
        """Compile what computes confidences, or load it from disk."""
        probability(0.0)

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> GreedyState:  # noqa: ARG002  part of the interface
        """Return a new state that ignores the first `skip_frames` frames."""
        return GreedyState(skip=skip_frames, previous=self.tokens.blank)

    def set_bias(self, state: GreedyState, bias: Bias) -> None:
        """Do nothing: key terms have no effect."""

    def release(self, state: GreedyState) -> None:
        """Mark the state as released. Raises: ValueError the second time, like every decoder."""
        if state.released:
            raise ValueError("this decoder state was already released")
        state.released = True

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on."""
        return digest_of(f"{self.kind} {VERSION} {self.frame_s!r} {self.tokens.blank}", *self.tokens.symbols)

    def save(self, state: GreedyState) -> bytes:
        """Serialize a state, for `load`; the state stays usable."""
        fields = {name: getattr(state, name) for name in SavedGreedy.__struct_fields__ if name != "version"}
        return msgspec.msgpack.encode(SavedGreedy(VERSION, **fields))

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> GreedyState:  # noqa: ARG002  part of the interface
        """Deserialize a saved state. Raises: ValueError for damaged or foreign bytes."""
        read = msgspec.msgpack.decode(saved, type=SavedGreedy)
        size = len(self.tokens.symbols)
        if (
            read.version != VERSION
            or read.skip < 0
            or not all(0 <= symbol < size for symbol in (read.previous, *read.symbols))
        ):
            raise ValueError("the saved state is damaged or not one of the greedy decoder")
        fields = msgspec.structs.asdict(read)
        del fields["version"]
        return GreedyState(**fields)

    def copy(self, state: GreedyState) -> GreedyState:
        """Return an independent copy of a state. Raises: ValueError for a released one."""
        if state.released:
            raise ValueError("this decoder state was already released")
        return replace(state, closed=list(state.closed), symbols=list(state.symbols))

    def advance(self, states: Sequence[GreedyState], log_probs: LogProbs) -> None:
        """Decode (B, T, outputs) more frames, the columns of the vocabulary first, row b into `states[b]`."""
        log_probs = log_probs[:, :, : len(self.tokens.symbols)]  # (B, T, V)
        symbols = log_probs.argmax(axis=2)  # (B, T)
        blank = self.tokens.blank
        spoken = (symbols != blank).any(axis=1).tolist()
        rows, best = symbols.tolist(), log_probs.max(axis=2).tolist()
        for state, row, scores, any_spoken in zip(states, rows, best, spoken, strict=True):
            if any_spoken or state.skip or not row:
                self._frames(state, row, scores)
            else:  # blanks only: most steps of most streams
                state.frames += len(row)
                state.silence_frames += len(row)
                state.previous = blank

    def words(self, state: GreedyState) -> tuple[Word, ...]:
        """Words of the open segment; the last one may be unfinished."""
        return (*state.closed, self._open_word(state)) if state.symbols else tuple(state.closed)

    def stable_words(self, state: GreedyState) -> int:
        """Number of leading `words` that can no longer change: all but the open one."""
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
        blank = self.tokens.blank
        for symbol, log_prob in zip(row, scores, strict=True):
            if state.skip:
                state.skip -= 1
                continue
            if symbol == blank:
                state.silence_frames += 1
            elif symbol == state.previous:
                self._repeat(state, symbol)
            else:
                self._write(state, symbol, log_prob)
            state.previous = symbol
            state.frames += 1

    def _repeat(self, state: GreedyState, symbol: int) -> None:
        """Count one more frame of the previous symbol."""
        if self.tokens.ends[symbol] and not self.tokens.texts[symbol]:  # a space
            state.silence_frames += 1
            return
        state.silence_frames = 0
        state.last_frame = state.frames

    def _write(self, state: GreedyState, symbol: int, log_prob: float) -> None:
        """Add a symbol to the open word, or close that word and start the next one."""
        tokens = self.tokens
        if tokens.starts[symbol]:
            self._close_word(state)
        if not tokens.texts[symbol] and tokens.ends[symbol]:
            state.silence_frames += 1
            return
        state.silence_frames = 0
        state.last_frame = state.frames
        if not state.symbols:
            state.first_frame = state.frames
        state.symbols.append(symbol)
        state.log_prob += log_prob
        state.revision += 1
        if tokens.ends[symbol]:
            self._close_word(state)

    def _close_word(self, state: GreedyState) -> None:
        if state.symbols:
            state.closed.append(self._open_word(state))
            self._forget_open(state)
            state.revision += 1

    def _open_word(self, state: GreedyState) -> Word:
        return Word(
            text=self.tokens.word(state.symbols),
            start_s=state.first_frame * self.frame_s,
            end_s=(state.last_frame + 1) * self.frame_s,
            confidence=probability(state.log_prob / len(state.symbols)),
        )

    @staticmethod
    def _forget_open(state: GreedyState) -> None:
        state.symbols = []
        state.log_prob = 0.0


def best_path(log_probs: LogProbs, vocabulary: Sequence[str]) -> str:
    """Text of one whole utterance (T, outputs): the reference for the incremental decoder."""
    symbols = np.asarray(log_probs)[:, : len(vocabulary)].argmax(axis=1).tolist()
    path = [s for s, before in zip(symbols, [BLANK, *symbols], strict=False) if s not in (BLANK, before)]
    return " ".join("".join(vocabulary[s] for s in path).split())
