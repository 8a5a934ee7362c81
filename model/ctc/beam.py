"""Prefix beam search over CTC log-probabilities with a language model and key terms, frame by frame.

A prefix is a sequence of symbols: characters, or the word pieces of a published model. A piece is one step of the
search, because CTC merges repeated symbols. Its score is the sum over its letters, because the language model and key
terms spell words in letters. The same text in different pieces is a different hypothesis.

With pronunciations the symbols are phones, and a hypothesis is a sequence of words of the language model's vocabulary:
after phones that form a word, the next phone may begin another word. Homophones are separate hypotheses.

The decoder owns the weights and the language model; each state owns one block of memory for compiled code, freed with
the state. The result of a frame depends only on the stream's frames, not on the batch or on the division of frames into
calls. Hypotheses with equal future scores are merged; hypotheses of letters only if there is no room for both
(`search/recombination`).

Words that all hypotheses share are committed: they leave the tree, are stable and never change. If an open text does
not fit, only the hypotheses with the first word of the best one are kept, so memory and time per step are bounded.

`python -m model.warm_up`, run once after installation, compiles the search before the first stream. The machine code
does not depend on vocabulary, beams or language model; a server compiles it if it is missing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import partial
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.config import BEAMS, MAX_BEAMS, REACH
from model.ctc.beam_state import BeamState, loaded_state, new_state, saved_state
from model.ctc.bias import NO_BIAS, Bias, TermAutomaton
from model.ctc.interface import LogProbs, digest_of
from model.ctc.phones import PhoneLexicon
from model.ctc.search import kernel
from model.ctc.search.layout import BLOCK_FRAMES, OUT_INTS, out_offsets
from model.ctc.search.logs import probability
from model.ctc.search.prefix_score import Setup
from model.ctc.search.saved_beam import VERSION
from model.ctc.search.symbols import Symbols
from model.ctc.tokens import Tokens
from model.ctc.weights import DecodingWeights
from model.ctc.words import Word
from model.lm.language_model import LanguageModel
from model.lm.pronounced import PhoneTrie
from model.lm.spelling import SpellingTrie
from model.machine.compiled import LongArray

MAX_KEPT_SYMBOLS = 63  # each hypothesis has one bit per kept symbol
KEPT_SHARE = 0.998  # 0.99 in Amodei et al. 2016, section 7.3; model/LOG.md has the gain of a larger share
KEPT_SYMBOLS = 40  # Source: the same section
AGREEING = 64  # open words whose agreement is computed


class BeamDecoder:
    """Prefix beam search. Owns the weights and the language model; callers own the states."""

    def __init__(
        self,
        vocabulary: Sequence[str] | Tokens,
        frame_s: float,
        *,
        outputs: int | None = None,
        beams: int = BEAMS,
        lm: LanguageModel | None = None,
        phone_lexicon: PhoneLexicon | None = None,
        weights: DecodingWeights | None = None,
        kept_share: float = KEPT_SHARE,
        kept_symbols: int = KEPT_SYMBOLS,
        reach: float = REACH,
        merges: bool = True,
        keeps_blank: bool = False,
    ) -> None:
        """`vocabulary`: single characters, the first the blank ""; or `Tokens`, spelled letter by letter.

        `outputs`: columns of a frame, the vocabulary first; by default those of the vocabulary. With `phone_lexicon`
        the columns after the vocabulary are a blank and phones, and only these are read.

        `kept_share` of 1: keep `kept_symbols` symbols of each frame. `reach`: hypotheses more than this many nats below
        the best are dropped. `keeps_blank`: always keep the blank, which a small vocabulary needs, because in other
        speech some frames have no symbol that continues a word. Without `merges`, hypotheses with the same future are
        not merged, which finds a worse text unless there is room for all of them. Raises: VocabularyError for tokens
        that cannot be spelled, with a language model also for tokens without its letters; ValueError.
        """
        if not 1 <= beams <= MAX_BEAMS:
            raise ValueError(f"beams must be 1 to {MAX_BEAMS}, not {beams}")
        self.phone_lexicon = phone_lexicon
        if phone_lexicon is not None:
            self.vocabulary = ("", *phone_lexicon.phones)
            self.symbols = Symbols.of_phones(phone_lexicon.phones, phone_lexicon.trie.ranks)
        elif isinstance(vocabulary, Tokens):
            self.vocabulary = vocabulary.symbols
            self.symbols = Symbols.of_tokens(vocabulary, known_letters=lm is not None)
        else:
            self.vocabulary = tuple(vocabulary)
            self.symbols = Symbols.of_characters(vocabulary)
        if not (0 < kept_share <= 1 and 1 <= min(kept_symbols, len(self.vocabulary)) <= MAX_KEPT_SYMBOLS - keeps_blank):
            raise ValueError(
                f"kept_symbols must be 1 to {MAX_KEPT_SYMBOLS - keeps_blank}, not {kept_symbols}, "
                f"and kept_share above 0 and at most 1, not {kept_share}"
            )
        if not reach > 0:
            raise ValueError(f"reach must be above 0, not {reach}")
        self._outputs = outputs or len(self.vocabulary)
        self._first = 0 if phone_lexicon is None else self._outputs - len(self.vocabulary)  # column
        self.frame_s, self.supports_bias = frame_s, self.symbols.spells_key_terms
        self.beams, self.lm, self.weights = beams, lm, weights or DecodingWeights()
        model, self._kept_alive = _model_table(lm, phone_lexicon.trie if phone_lexicon is not None else None)
        limits = np.array([kept_share, kept_symbols, reach, merges, keeps_blank], np.float64)
        symbols = self.symbols
        self.limits = limits  # (5,) share of the probability and number of symbols that a frame keeps come first
        self._setup = Setup(
            beams, limits, symbols.blank, symbols.space, 1 + symbols.adds_boundaries, symbols.longest, symbols.boundary,
            symbols.ranks, symbols.table, symbols.columns, np.array(astuple(self.weights), np.float64), model,
        )  # fmt: skip
        self._out_words, self._out_symbols, self._out_sums = out_offsets(beams)
        self._start_state = lm.start_state if lm is not None else 0

    def narrowed(self, beams: int, reach: float) -> BeamDecoder:
        """Return a search with fewer hypotheses; states cannot be shared with it."""
        narrow = copy.copy(self)
        narrow.beams = min(beams, self.beams)
        narrow.limits = self.limits.copy()
        narrow.limits[2] = min(reach, self.limits[2])
        narrow._setup = self._setup._replace(beams=narrow.beams, limits=narrow.limits)
        narrow._out_words, narrow._out_symbols, narrow._out_sums = out_offsets(narrow.beams)
        return narrow

    def warm_up(self) -> None:
        """Compile all entry points, or load them from disk, so that the first stream need not wait."""
        state = self.start(0, Bias.of([("a", 1.0), ("zyzzyvas", 1.0)]))  # pronunciation by rules, which loads the rules
        rows = np.full((1, 2, len(self.vocabulary)), -math.log(len(self.vocabulary)), np.float32)
        self.search([state], rows)
        kernel.write_best(state.address, self._setup)
        kernel.write_agreement(state.address, self._setup, np.empty(AGREEING, np.float64))
        self.release(self.load(self.save(state), state.bias))
        self.set_bias(state, NO_BIAS)
        kernel.take_words(state.address, self.beams, 0, np.empty(kernel.REPORT, np.int64))
        self.take(state)
        self.release(state)
        probability(0.0)

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> BeamState:
        """Return a new state that ignores the first `skip_frames` frames."""
        state = new_state(self.beams, bias, self._terms(bias))
        kernel.start_stream(state.address, skip_frames, self._start_state, state.terms.table, self._setup)
        return state

    def set_bias(self, state: BeamState, bias: Bias) -> None:
        """Replace the key terms from the next frame on; words that are not stable yet are rescored with them."""
        address = state.opened()
        if bias.phrases != state.bias.phrases:
            terms = self._terms(bias)
            kernel.set_terms(address, terms.table, self._setup)
            state.taken_all = -1
            state.bias, state.terms = bias, terms  # keeps its arrays alive while the kernel reads them
            state.shown = None  # words that only the old key terms contain disappear

    def unspeakable(self, bias: Bias) -> tuple[str, ...]:
        """Phrases that no symbols of the model express; builds the automaton of the others, in any thread."""
        return self._terms(bias).unspeakable

    def word_log_prob(self, word: str) -> float:
        """Natural log-probability of a word without context; minus infinity without a language model."""
        return -math.inf if self.lm is None else self.lm.unigram(word)

    def _terms(self, bias: Bias) -> TermAutomaton:
        return bias.in_letters() if self.phone_lexicon is None else self.phone_lexicon.of(bias)

    def release(self, state: BeamState) -> None:
        """Free a state's memory now, before its garbage collection. Raises: ReleasedState."""
        if state.folded is None:
            state.opened()
        state.folded, state.address, state.block = None, 0, np.zeros(0, np.uint8)

    def fold(self, state: BeamState) -> None:
        """Serialize a state until its next use: a few hundred bytes without text, instead of its memory."""
        if state.address:
            made = partial(self.load, self.save(state), state.bias)
            self.release(state)
            state.folded = made

    @property
    def lm_digest(self) -> str:
        """Digest of the language model's file, empty without one."""
        return "" if self.lm is None else self.lm.digest

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on."""
        limits = [repr(value) for value in self._setup.limits.tolist()]
        weights = [repr(value) for value in self._setup.weights.tolist()]
        model = "" if self.lm is None else self.lm.digest or repr(self.lm.words)
        symbols = [self.symbols.table.tobytes().hex(), self.symbols.columns.tobytes().hex(), *self.symbols.texts]
        head = f"beam {VERSION} {self.beams} {self.frame_s!r} {self.symbols.blank}"
        model += self.phone_lexicon.lexicon.digest if self.phone_lexicon is not None else ""
        return digest_of(head, model, *limits, *weights, *symbols)

    def save(self, state: BeamState) -> bytes:
        """Serialize a state without its key terms, for `load`; the state stays usable. Raises: ReleasedState."""
        return saved_state(state, self.beams, self.symbols)

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> BeamState:
        """Deserialize a saved state; `bias` must be given again. Raises: ValueError for damaged or foreign bytes."""
        return loaded_state(saved, bias, self._terms(bias), self.symbols, self._setup)

    def copy(self, state: BeamState) -> BeamState:
        """Return an independent copy of a state. Raises: ReleasedState.

        The only addresses in a block are those of the tables of key terms, which both states keep alive.
        """
        state.opened()
        block = state.block.copy()
        return replace(state, block=block, address=block.ctypes.data, committed=list(state.committed))

    def advance(self, states: Sequence[BeamState], log_probs: LogProbs) -> None:
        """Decode (B, T, outputs) more frames, row b into `states[b]`. Raises: ValueError, ReleasedState."""
        self.search(states, self.own(log_probs))

    def own(self, log_probs: LogProbs) -> LogProbs:
        """Return the columns that this search reads, (B, T, V), of a model's outputs (B, T, outputs)."""
        first, size = self._first, len(self.vocabulary)
        if log_probs.ndim == 3 and log_probs.shape[2] == self._outputs:
            log_probs = log_probs[:, :, first : first + size]
        if log_probs.dtype != np.float32 or not (log_probs.flags.c_contiguous and log_probs.flags.writeable):
            log_probs = np.array(log_probs, np.float32, order="C")  # the only layout for which code is compiled
        return log_probs

    def search(self, states: Sequence[BeamState], log_probs: LogProbs) -> None:
        """Decode (B, T, V) more frames of `own`, row b into `states[b]`.

        A log-probability that is NaN or infinite counts as impossible; a frame without a possible symbol only
        increments the count of frames. Raises: ValueError for other shapes, ReleasedState.
        """
        if log_probs.ndim != 3 or log_probs.shape[::2] != (len(states), len(self.vocabulary)):
            wanted = f"({len(states)}, T, {len(self.vocabulary)})"
            raise ValueError(f"log-probs of these streams must be {wanted}, not {log_probs.shape}")
        addresses = np.array([state.address or state.opened() for state in states], np.int64)  # (B,)
        report = np.empty((len(states), kernel.REPORT), np.int64)
        frames = log_probs.shape[1]
        for begin in range(0, frames, BLOCK_FRAMES):
            end = min(begin + BLOCK_FRAMES, frames)
            kernel.advance_streams(addresses, log_probs, (begin, end), self._setup, report)
            for state, row in zip(states, report.tolist(), strict=True):
                self._update(state, row)

    def words(self, state: BeamState) -> tuple[Word, ...]:
        """Words of the open segment; the last one may be unfinished."""
        address = state.opened()
        if state.shown is None:
            count = kernel.write_best(address, self._setup) if state.has_text else 0
            state.shown = (*state.committed, *self._read(state, count)[0])
        return state.shown

    def stable_words(self, state: BeamState) -> int:
        """Number of leading `words` that can no longer change, because all hypotheses share them."""
        return len(state.committed)

    def agreement(self, state: BeamState) -> list[float]:
        """Share of the hypotheses' weight, 0 to 1, that agrees on the words up to each one of `words`."""
        shares = np.empty(AGREEING, np.float64)
        count = kernel.write_agreement(state.opened(), self._setup, shares) if state.has_text else 0
        open_shares: list[float] = shares[:count].tolist()
        return [1.0] * len(state.committed) + open_shares

    def take(self, state: BeamState, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words; None: all words of the best hypothesis if the text ends here.

        The language model's context is kept, because a segment ends at a pause or at its maximum length, which is
        rarely the end of a sentence. A new text needs a new state.
        """
        if count is None and state.folded is not None and state.taken_all == state.frames:
            return ()  # nothing was decoded since, as in most finals of silence
        words = self.words(state)
        if count is None or count >= len(words):
            return self._take_all(state, ended=count is None)
        taken = words[:count]
        if count > len(state.committed):
            row = np.empty(kernel.REPORT, np.int64)
            kernel.take_words(state.opened(), self.beams, count - len(state.committed), row)
            self._update(state, row.tolist())
        if taken:
            del state.committed[: len(taken)]
            state.taken, state.shown = state.taken + 1, None
            state.has_text = len(words) > len(taken)
        return taken

    def _take_all(self, state: BeamState, *, ended: bool) -> tuple[Word, ...]:
        row = np.empty(kernel.REPORT, np.int64)
        count = kernel.take_text(state.opened(), ended, self._setup, row)
        state.taken_all = state.frames if ended else -1
        if not count and not state.has_text:
            return ()
        read, last_end = self._read(state, count)
        taken = (*state.committed, *read)
        state.committed, state.last_end = [], last_end
        self._update(state, row.tolist())
        state.taken += 1
        return taken

    def _update(self, state: BeamState, row: Sequence[int]) -> None:
        """Store a kernel's report on a stream, and the committed words."""
        state.frames, state.silence_frames, state.changes, open_text, words = row
        state.shown = None
        if words:
            read, state.last_end = self._read(state, words)
            state.committed += read
        state.has_text = bool(open_text or state.committed)

    def _read(self, state: BeamState, count: int) -> tuple[list[Word], int]:
        """Return the words that a kernel has written, and the frame after the last word."""
        words: list[Word] = []
        block, at, end, frame_s = state.block.data, self._out_symbols, state.last_end, self.frame_s
        lexicon, known = self.phone_lexicon, None if self.phone_lexicon is None or self.lm is None else self.lm.words
        records = _RECORD.iter_unpack(block[self._out_words : self._out_words + _RECORD.size * count])
        sums = block[self._out_sums : self._out_sums + 8 * count].cast("d")
        for (start, last, length, word), log_prob in zip(records, sums, strict=True):
            begin = max(start, end)
            end = last + 1 if last >= begin else begin
            if known is not None and word >= 0:
                text = known[word]
            else:
                symbols = np.frombuffer(block, np.int32, length, at).tolist()
                if lexicon is None or known is None:
                    text = "".join([self.symbols.texts[symbol] for symbol in symbols])
                else:  # a word known only from a key term, or the beginning of such a word
                    text = lexicon.spell(state.terms, symbols)
            words.append(Word(text, begin * frame_s, end * frame_s, probability(log_prob / length)))
            at += 4 * length
        return words, end


_RECORD = Struct(f"{OUT_INTS}i")
_NO_WORDS = SpellingTrie(np.zeros((1, 1), np.uint64), np.zeros(1, np.int32), np.zeros(1, np.float32))


def _model_table(lm: LanguageModel | None, phones: PhoneTrie | None = None) -> tuple[LongArray, list[NDArray[Any]]]:
    """Return sizes and addresses of a language model's arrays, and the arrays, which must outlive the addresses.

    Its words are spelled in letters, or in phones with `phones`.
    """
    if lm is None:
        trie = [np.zeros(2, dtype) for dtype in (np.int32, np.int32, np.float32, np.float32, np.int32, np.int32)]
        letters, spelled = _NO_WORDS, np.full(1, -1, np.int32)
    else:
        trie = list(lm.trie.arrays)
        letters, spelled = lm.characters.spelling, lm.characters.word
    if phones is None:
        spelling, sounding = letters, [np.zeros(1, np.int32)] * 3
    else:
        spelling, sounding = phones.spelling, [phones.first, phones.words, phones.likeliest]
        spelled = np.zeros(1, np.int32)
    arrays = [
        np.ascontiguousarray(array)
        for array in (*trie, spelling.follows, spelling.below, spelled, spelling.best, *sounding)
    ]
    sizes = [lm is not None, len(arrays[1]), *spelling.follows.shape, len(sounding[1])]
    return np.array([*sizes, *(array.ctypes.data for array in arrays)], np.int64), arrays
