"""Greedy decoder of transducers: searches the encoder's frames, and joins the symbols to words.

A state holds the context of the prediction network and the position of the text in the stream's key terms, besides the
words of a greedy decoder. An emitted symbol never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.greedy import GreedyDecoder, GreedyState
from model.ctc.interface import digest_of
from model.published.transducer.greedy_search import GreedySearch, TermBonus
from model.published.transducer.networks import TransducerNetworks
from model.transducer.spelling import Speller
from model.transducer.terms import PIECE_BOOST, PieceTerms, TermState, piece_terms

VERSION = 1  # of saved states
NOWHERE = TermState()
Floats = NDArray[np.float32]


@dataclass(slots=True)
class TransducerState(GreedyState):
    """Decoder state of one stream; arrays are replaced, never changed."""

    context: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    output: Floats = field(default_factory=lambda: np.zeros(0, np.float32))  # of the prediction network
    bias: Bias = NO_BIAS
    terms: PieceTerms | None = None  # `bias` in pieces; None without key terms
    position: TermState = NOWHERE


class SavedTransducer(msgspec.Struct, array_like=True, frozen=True):
    """Serialized `TransducerState`, without its key terms."""

    version: int
    words: bytes
    context: bytes
    output: bytes
    position: TermState


class TransducerDecoder(GreedyDecoder):
    """Greedy search over frames (B, T, D); a frame may have several symbols. Key terms raise their next pieces."""

    kind = "transducer"

    def __init__(self, networks: TransducerNetworks, frame_s: float, digest: str = "", *, alone: bool = False) -> None:
        """`digest` of the model; `alone`: search rows one at a time if rows depend on each other."""
        super().__init__(networks.tokens, frame_s)
        self.networks = networks
        self._search, self._model = GreedySearch(networks, alone=alone), digest
        symbols = self.tokens.symbols
        self._unknown = symbols.index("<unk>") if "<unk>" in symbols else -1
        self._tags = self.tokens.tags
        self.speller = Speller(self.tokens)
        self.supports_bias = self.speller.spells_key_terms
        self.terms_of = lru_cache(maxsize=64)(lambda phrases: piece_terms(Bias(phrases), self.speller))

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on."""
        return digest_of(f"{self.kind} {VERSION} {PIECE_BOOST}", super().digest, self._model)

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> TransducerState:
        """Return a new state that ignores the first `skip_frames` frames."""
        context, output = self.networks.start
        state = TransducerState(skip_frames, previous=self.tokens.blank, context=context[0], output=output[0])
        self.set_bias(state, bias)
        return state

    def start_after(self, frame: int, pieces: Sequence[int], bias: Bias) -> TransducerState:
        """Return a state that begins at a frame of a stream, after these pieces of it."""
        context, output = self.after(pieces)
        return replace(self.start(0, bias), frames=frame, context=context, output=output)

    def after(self, pieces: Sequence[int]) -> tuple[NDArray[Any], Floats]:
        """Return the context of a text that begins with these pieces, and the prediction network's output."""
        context, output = self.networks.start
        for piece in pieces:
            context, output = self.networks.advance(context, np.array([piece]))
        return context[0], output[0]

    def set_bias(self, state: GreedyState, bias: Bias) -> None:
        """Replace the key terms from the next frame on; the open word may be the beginning of one."""
        assert isinstance(state, TransducerState), "one of this decoder"
        if bias.phrases == state.bias.phrases:
            return
        state.bias, state.position = bias, NOWHERE
        state.terms = self.terms_of(bias.phrases) if bias else None
        if state.terms is not None:
            for symbol in state.symbols:
                state.position, _ = state.terms.follow(state.position, symbol)

    def unspeakable(self, bias: Bias) -> tuple[str, ...]:
        """Phrases that no symbols of the model express; builds the automaton of the others, in any thread."""
        return self.terms_of(bias.phrases).unspeakable

    def word_log_prob(self, word: str) -> float:
        """Natural log-probability of a word without context, estimated by its pieces."""
        return self.speller.log_prob(word)

    def save(self, state: GreedyState) -> bytes:
        """Serialize a state without its key terms, for `load`; the state stays usable."""
        assert isinstance(state, TransducerState), "one of this decoder"
        words, context, output = super().save(state), state.context.tobytes(), state.output.tobytes()
        return msgspec.msgpack.encode(SavedTransducer(VERSION, words, context, output, state.position))

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> TransducerState:
        """Deserialize a saved state; `bias` must be given again. Raises: ValueError for damaged or foreign bytes."""
        read = msgspec.msgpack.decode(saved, type=SavedTransducer)
        words, state = super().load(read.words), self.start(0, bias)
        sizes = state.context.nbytes, state.output.nbytes
        states = 1 if state.terms is None else state.terms.states
        if (
            read.version != VERSION
            or (len(read.context), len(read.output)) != sizes
            or not 0 <= read.position.state < states
        ):
            raise ValueError("the saved state is damaged or not one of the transducer's decoder")
        fields = {name: getattr(words, name) for name in GreedyState.__dataclass_fields__}
        context = np.frombuffer(read.context, state.context.dtype).reshape(state.context.shape)
        output = np.frombuffer(read.output, np.float32)
        return replace(state, **fields, context=context, output=output, position=read.position)

    def advance(self, states: Sequence[GreedyState], log_probs: Floats) -> None:
        """Decode frames (B, T, D), row b into `states[b]`."""
        rows = [state for state in states if isinstance(state, TransducerState)]
        assert len(rows) == len(states), "states of this decoder"
        frames = log_probs.shape[1]
        contexts = np.stack([state.context for state in rows])  # (B, …)
        outputs = np.stack([state.output for state in rows])  # (B, D')
        skipped = np.array([min(state.skip, frames) for state in rows], np.int64)
        positions = {row: state.position for row, state in enumerate(rows) if state.terms is not None}
        emitted = self._search.search(contexts, outputs, log_probs, skipped, self._bonus(rows, positions))
        wrote: list[bool] = np.any(emitted[..., 0] >= 0, axis=(1, 2)).tolist()
        for row, (state, any_written) in enumerate(zip(rows, wrote, strict=True)):
            if any_written:
                state.context, state.output = contexts[row].copy(), outputs[row].copy()
                state.position = positions.get(row, state.position)
            if any_written or state.skip:
                self._take_symbols(state, emitted[row])
            else:
                state.frames += frames
                state.silence_frames += frames

    def _bonus(self, rows: Sequence[TransducerState], positions: dict[int, TermState]) -> TermBonus | None:
        """Return the bonus of symbols in these rows; the search moves `positions`. None without key terms."""
        if not positions:
            return None
        bonus = np.zeros((len(rows), len(self.tokens.symbols)), np.float32)  # (B, V)
        biased = np.zeros(len(rows), np.bool_)

        def follow(row: int, symbol: int) -> Floats:
            terms = rows[row].terms
            assert terms is not None, "a row with key terms"
            positions[row], _ = terms.follow(positions[row], symbol)
            return terms.bonus(positions[row])

        for row, position in positions.items():
            terms = rows[row].terms
            assert terms is not None, "a row with key terms"
            bonus[row], biased[row] = terms.bonus(position), True
        return TermBonus(bonus, biased, follow)

    def _take_symbols(self, state: TransducerState, row: Floats) -> None:
        """Join a stream's symbols (T, E, 2) to words; a tag of a language marks the words before it."""
        for frame in row.tolist():
            if state.skip:
                state.skip -= 1
                continue
            chosen = [(int(symbol), log_prob) for symbol, log_prob in frame if symbol >= 0 and symbol != self._unknown]
            for symbol, log_prob in chosen:
                if symbol in self._tags:
                    self._tag(state, self._tags[symbol])
                else:
                    self._write(state, symbol, log_prob)
            if not chosen:
                state.silence_frames += 1
            state.frames += 1

    def _tag(self, state: TransducerState, language: str) -> None:
        """Mark the words since the last tag."""
        self._close_word(state)
        at = len(state.closed)
        while at and not state.closed[at - 1].language:
            at -= 1
            state.closed[at] = msgspec.structs.replace(state.closed[at], language=language)
            state.revision += 1
