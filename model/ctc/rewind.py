"""Decoders that can search the last seconds of taken text again for key terms, without the network.

What the search reads of the last `KEPT_S` is kept, as are the taken words: of CTC in compact form (`kept_frames`), 80
bytes per second of speech. The frames are decoded again from a word boundary, of CTC by a narrow search, in the context
of the preceding words. A key term that is found replaces the words that were recognized at its place; all other words
are unchanged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from model.ctc.beam import BeamDecoder
from model.ctc.beam_state import BeamState, SearchDecoder, SearchedState
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import LogProbs, digest_of
from model.ctc.kept_frames import FrameKeeper, KeptFrames
from model.ctc.search import layout as at
from model.ctc.search.saved_beam import Memory
from model.ctc.words import Word
from model.lm.language_model import LanguageModel
from model.text.letters import folded

KEPT_S = 30.0
"""Seconds of frames that a stream keeps."""
BEAMS, REACH = 128, 9.0
"""Width of the search for key terms: half of the time of the usual one. Source: docs/decisions/decoding.md."""
COVERED = 0.5
"""Share of a taken word that a key term must cover to replace it."""

MARKS = ".,;:?!"  # at the end of a word that a model writes with punctuation

Onset = tuple[float, float, int]  # BLANK_P, LETTER_P and BLANK_LAST of the hypothesis at the start of a text


def state_at(
    search: BeamDecoder, begin: int, bias: Bias, *, lm_state: int | None, onset: Onset | None, last_end: int
) -> BeamState:
    """Return a state that continues at frame `begin`, in this context.

    `lm_state` None is the start of a text, `onset` None silence before it; `last_end` is the frame in which the last
    word ended.
    """
    state = search.start(0, bias)
    memory = Memory(state.block, search.beams)
    if lm_state is not None:
        memory.nodes[0, at.LM_STATE] = lm_state
    memory.nodes[0, at.HYPOTHESIS] = 0
    onset = (0.0, -math.inf, begin - 1) if onset is None else onset
    memory.hypotheses_f[0, [at.BLANK_P, at.LETTER_P]] = onset[:2]
    memory.hypotheses[0, at.BLANK_LAST] = onset[2]
    memory.header[at.FRAMES] = state.frames = begin
    state.last_end = last_end
    return state


def keeper_of(search: BeamDecoder) -> FrameKeeper:
    """Return a keeper of the symbols that a search reads."""
    symbols = search.symbols
    writes = (symbols.table[: len(search.vocabulary), at.ROLE] != at.NEVER).astype(np.uint8)  # (V,)
    writes[symbols.blank] = 1
    return FrameKeeper(writes, symbols.blank, search.limits)


@dataclass(slots=True, eq=False)
class RewindState(SearchedState):
    """Decoder state of one stream. Taken text can be decoded again even after the state is released."""

    kept: Any = field(default_factory=KeptFrames)  # or `KeptEncodings` of a transducer
    taken: deque[Word] = field(default_factory=deque)  # the last words
    whole: bool = True  # True if these are all words since the start
    until: int = 0  # frame up to which the text was taken


@dataclass(frozen=True, slots=True)
class Rewound:
    """Words of taken text from `start_s` to `end_s`, with the key terms in it; `before` are the words before them."""

    start_s: float
    end_s: float
    words: tuple[Word, ...]
    before: tuple[Word, ...]


class RewindDecoder(SearchDecoder, ABC):
    """A `Decoder` with the words of its search; key terms can be found in taken text later."""

    def __init__(self, search: Any, context: int) -> None:
        """`search`: a `Decoder`; `context`: number of words before a text that its decoding depends on."""
        super().__init__(search)
        self._kept = round(KEPT_S / self.frame_s)
        self._context = context

    @property
    @abstractmethod
    def digest(self) -> str:
        """Digest of everything that its results depend on."""

    @abstractmethod
    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> RewindState:
        """Return a new state that ignores the first `skip_frames` frames."""

    @abstractmethod
    def advance(self, states: Sequence[RewindState], log_probs: LogProbs) -> None:
        """Decode (B, T, …) more frames, row b into `states[b]`. Raises: ValueError, ReleasedState."""

    @abstractmethod
    def decode_again(self, state: RewindState, begin: int, before: Sequence[Word], bias: Bias) -> tuple[Word, ...]:
        """Return the words that the search for key terms finds from frame `begin` to the end of the taken text.

        `before` are the words before that frame.
        """

    def copy(self, state: RewindState) -> RewindState:
        """Return an independent copy of a state. Raises: ReleasedState."""
        frames, taken = state.kept.since(state.kept.begin), deque(state.taken)
        return replace(state, first=self.search.copy(state.first), kept=frames, taken=taken)

    def take(self, state: RewindState, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all) of the open segment."""
        everything = count is None or count >= len(self.words(state))
        taken: tuple[Word, ...] = self.search.take(state.first, count)
        state.taken += taken
        if everything:
            state.until = state.frames
        elif taken:
            state.until = self._frame(taken[-1].end_s)
        return taken

    def rewind(self, state: RewindState, since_s: float, bias: Bias) -> Rewound | None:
        """Find key terms in taken text, starting with its first word at or after `since_s`.

        None if no part of it is kept.
        """
        frames, words = state.kept, state.taken
        earlier = [word for word in words if word.start_s < since_s or self._frame(word.start_s) < frames.begin]
        begin = max(frames.begin, self._frame(earlier[-1].end_s) if earlier else 0)
        if begin >= state.until:
            return None
        taken = tuple(words)[len(earlier) :]
        for term in _terms_in(self.decode_again(state, begin, earlier, bias), bias):
            taken = _with_term(taken, term)
        return Rewound(begin * self.frame_s, state.until * self.frame_s, taken, tuple(earlier))

    def _frame(self, seconds: float) -> int:
        return round(seconds / self.frame_s)

    def _forget(self, state: RewindState) -> None:
        """Drop frames that are too old, and words before them except their context."""
        begin = state.frames - self._kept
        if begin <= state.kept.begin:
            return
        state.kept.drop(begin)
        while len(state.taken) > self._context and self._frame(state.taken[self._context].start_s) < begin:
            state.taken.popleft()
            state.whole = False


class BeamRewind(RewindDecoder):
    """Beam search over CTC outputs, and a narrower one for key terms."""

    def __init__(self, search: BeamDecoder, again: BeamDecoder | None = None) -> None:
        """`again`: the search for key terms; by default a narrower one with the same language model."""
        super().__init__(search, 0 if search.lm is None else search.lm.order - 1)
        self._again = again or search.narrowed(BEAMS, REACH)
        self._keeper = keeper_of(search)

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on."""
        return digest_of(f"rewind {self._kept}", self.search.digest, self._again.digest)

    def warm_up(self) -> None:
        """Also run the search over kept frames once."""
        super().warm_up()
        state = self.start(0)
        size = len(self.search.vocabulary)
        self.advance([state], np.full((1, 8, size), -math.log(size), np.float32))
        self.release(state)

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> RewindState:
        """Return a new state that ignores the first `skip_frames` frames."""
        return RewindState(self.search.start(skip_frames, bias))

    def advance(self, states: Sequence[RewindState], log_probs: LogProbs) -> None:
        """Decode (B, T, V) more frames, row b into `states[b]`. Raises: ValueError, ReleasedState."""
        log_probs = self.search.own(log_probs)
        before = [state.frames for state in states]
        self.search.search([state.first for state in states], log_probs)
        new = ((state.kept, state.frames - frames) for state, frames in zip(states, before, strict=True))
        self._keeper.keep(new, log_probs)
        for state in states:
            self._forget(state)

    def decode_again(self, state: RewindState, begin: int, before: Sequence[Word], bias: Bias) -> tuple[Word, ...]:
        """See `RewindDecoder`."""
        again = self._again
        context = tuple(word.text for word in before[-self._context :] if self._context)
        last_end = self._frame(before[-1].end_s) if before else 0
        first = state_at(again, begin, bias, lm_state=self._lm_state(state, context), onset=None, last_end=last_end)
        log_probs = state.kept.since(begin).log_probs(len(again.vocabulary), again.symbols.blank)  # (1, T, V)
        again.search([first], np.ascontiguousarray(log_probs[:, : state.until - begin]))
        words = again.take(first)
        again.release(first)
        return words

    def _lm_state(self, state: RewindState, context: Sequence[str]) -> int | None:
        lm: LanguageModel | None = self.search.lm
        if lm is None:
            return None
        return lm.state_after(context, bos=state.whole and len(context) < self._context)


def _terms_in(words: Sequence[Word], bias: Bias) -> Iterator[tuple[Word, ...]]:
    """Yield the key terms among words; of several that begin at the same word, the longest first."""
    phrases = sorted((tuple(phrase.split()) for phrase, weight in bias.phrases if weight > 0), key=len, reverse=True)
    said = tuple(folded(word.text).strip(MARKS) for word in words)
    at = 0
    while at < len(words):
        size = next((len(p) for p in phrases if said[at : at + len(p)] == p), 0)
        if size:
            yield tuple(words[at : at + size])
        at += max(1, size)


def _with_term(words: tuple[Word, ...], term: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return words with a key term replacing those that it covers."""
    begin_s, end_s = term[0].start_s, term[-1].end_s
    rest = [word for word in words if not _covered(word, begin_s, end_s)]
    before = [msgspec.structs.replace(word, end_s=min(word.end_s, begin_s)) for word in rest if word.start_s < begin_s]
    after = [
        msgspec.structs.replace(word, start_s=max(word.start_s, end_s)) for word in rest if word.start_s >= begin_s
    ]
    return (*before, *term, *after)


def _covered(word: Word, begin_s: float, end_s: float) -> bool:
    return min(word.end_s, end_s) - max(word.start_s, begin_s) > COVERED * (word.end_s - word.start_s)
