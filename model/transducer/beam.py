"""Beam search of transducers: a few hypotheses for each stream, all of which a frame joins at once.

A hypothesis is a sequence of symbols with the context of the prediction network and its output, computed once. In a
frame each may end with a blank, or be extended by the symbols that a frame may have; hypotheses of equal symbols are
added up. Symbols that all hypotheses share are committed: they never change. A row's bits do not depend on the others.
Scores of a language model of words may be added (shallow fusion).

Source: Graves 2012; one symbol a frame as icefall's modified beam search; several as Kim et al. 2020 (expansion).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.greedy import GreedyState
from model.ctc.interface import digest_of
from model.ctc.words import Word
from model.published.transducer.networks import TransducerNetworks
from model.transducer.decoder import NOWHERE, TransducerDecoder, TransducerState
from model.transducer.language import NO_LANGUAGE, LanguageState, PieceLanguage
from model.transducer.terms import TermState

BEAMS, MAX_BEAMS = 4, 8
CHOICES = 4  # with a language model, symbols of a hypothesis for each beam that it scores
SURE = math.log(0.999)  # a frame whose blank is at least as likely leaves all hypotheses as they are
OPEN_SYMBOLS = 100  # of hypotheses that share no first symbol: then all but the best are dropped
Floats = NDArray[np.float32]


class Emitted(NamedTuple):
    """A symbol of a hypothesis, its frame and log-probability."""

    symbol: int
    frame: int
    log_prob: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Symbols that are not committed, with the score of all; arrays are those after `open`, None until computed."""

    score: float  # of the model, and of the language model if there is one
    bonus: float  # of key terms
    position: TermState
    open: tuple[Emitted, ...]
    context: NDArray[Any]
    output: Floats | None
    language: LanguageState = NO_LANGUAGE

    @property
    def total(self) -> float:
        """The score by which hypotheses are compared."""
        return self.score + self.bonus

    @property
    def symbols(self) -> tuple[int, ...]:
        """The symbols that are not committed."""
        return tuple(emitted.symbol for emitted in self.open)


@dataclass(slots=True)
class TransducerBeamState(TransducerState):
    """Decoder state of one stream: words and open symbols that are committed, and hypotheses, the best one first."""

    hypotheses: tuple[Hypothesis, ...] = ()
    emitted_any: bool = False  # whether a symbol was committed
    written: tuple[Word, ...] | None = None  # cache of `words`

    @property
    def has_text(self) -> bool:
        """Whether the open segment contains a letter."""
        return bool(self.closed or self.symbols or self.hypotheses[0].open)


class SavedHypothesis(msgspec.Struct, array_like=True, frozen=True):
    """Serialized `Hypothesis`."""

    score: float
    bonus: float
    position: TermState
    open: tuple[Emitted, ...]
    context: bytes
    output: bytes
    language: LanguageState


class SavedBeams(msgspec.Struct, array_like=True, frozen=True):
    """Serialized `TransducerBeamState`: its committed part, and hypotheses."""

    committed: bytes
    emitted_any: bool
    hypotheses: tuple[SavedHypothesis, ...]


class TransducerBeamDecoder(TransducerDecoder):
    """Beam search over frames (B, T, D)."""

    kind = "transducer beam"

    def __init__(
        self,
        networks: TransducerNetworks,
        frame_s: float,
        digest: str = "",
        *,
        beams: int = BEAMS,
        alone: bool = False,
        language: PieceLanguage | None = None,
    ) -> None:
        """`beams`: most hypotheses of a stream; `alone`: compute rows one at a time if they depend on each other.

        `language`: n-grams of words whose scores are added.

        Raises: ValueError.
        """
        if not 1 <= beams <= MAX_BEAMS:
            raise ValueError(f"the beam search of a transducer has 1 to {MAX_BEAMS} beams, not {beams}")
        super().__init__(networks, frame_s, digest)
        self.beams, self.language = beams, language
        self._alone = alone and networks.rows.dependent

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on."""
        own = f"{self.beams} {OPEN_SYMBOLS} {SURE}"
        return digest_of(own, super().digest, *([] if self.language is None else [self.language.digest, f"{CHOICES}"]))

    @property
    def lm_digest(self) -> str:
        """Digest of the language model, empty without one."""
        return "" if self.language is None else self.language.lm_digest

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> TransducerBeamState:
        """Return a new state that ignores the first `skip_frames` frames."""
        (context,), (output,) = self.networks.start
        language = NO_LANGUAGE if self.language is None else self.language.after(())
        first = Hypothesis(0.0, 0.0, NOWHERE, (), context, output, language)
        state = TransducerBeamState(skip_frames, previous=self.tokens.blank, hypotheses=(first,))
        self.set_bias(state, bias)
        return state

    def start_after(self, frame: int, pieces: Sequence[int], bias: Bias) -> TransducerBeamState:
        """Return a state that begins at a frame of a stream, after these pieces of it."""
        state, (context, output) = self.start(0, bias), self.after(pieces)
        language = NO_LANGUAGE if self.language is None else self.language.after(pieces)
        first = replace(state.hypotheses[0], context=context, output=output, language=language)
        state.hypotheses, state.frames = (first,), frame
        return state

    def set_bias(self, state: GreedyState, bias: Bias) -> None:
        """Replace the key terms from the next frame on; symbols that are not committed are rescored with them."""
        assert isinstance(state, TransducerBeamState), "one of this decoder"
        if bias.phrases == state.bias.phrases:
            return
        super().set_bias(state, bias)
        terms, rescored = state.terms, []
        for one in state.hypotheses:
            position, bonus = state.position, 0.0
            if terms is not None:
                for symbol in one.symbols:
                    position, more = terms.follow(position, symbol)
                    bonus += more
            rescored.append(replace(one, position=position, bonus=bonus))
        self._replace(state, rescored)

    def save(self, state: GreedyState) -> bytes:
        """Serialize a state without its key terms, for `load`; the state stays usable."""
        assert isinstance(state, TransducerBeamState), "one of this decoder"
        hypotheses = []
        for one in state.hypotheses:
            assert one.output is not None, "it is computed at the end of a frame"
            arrays = one.context.tobytes(), one.output.tobytes()
            hypotheses.append(SavedHypothesis(one.score, one.bonus, one.position, one.open, *arrays, one.language))
        return msgspec.msgpack.encode(SavedBeams(super().save(state), state.emitted_any, tuple(hypotheses)))

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> TransducerBeamState:
        """Deserialize a saved state; `bias` must be given again. Raises: ValueError for damaged or foreign bytes."""
        read = msgspec.msgpack.decode(saved, type=SavedBeams)
        state, (context, output) = super().load(read.committed, bias), self.networks.start
        assert isinstance(state, TransducerBeamState), "as started"
        states, size = (1 if state.terms is None else state.terms.states), len(self.tokens.symbols)
        contexts = 1 if self.language is None else self.language.contexts
        if not 1 <= len(read.hypotheses) <= self.beams or not all(
            (len(one.context), len(one.output)) == (context.nbytes, output.nbytes)
            and 0 <= one.position.state < states
            and 0 <= one.language.context < contexts
            and all(0 <= emitted.symbol < size for emitted in one.open)
            for one in read.hypotheses
        ):
            raise ValueError("the saved state is damaged or not one of the transducer's beam search")
        state.emitted_any = read.emitted_any
        state.hypotheses = tuple(
            Hypothesis(
                *(one.score, one.bonus, one.position, one.open),
                np.frombuffer(one.context, context.dtype).reshape(context.shape[1:]),
                np.frombuffer(one.output, np.float32),
                one.language,
            )
            for one in read.hypotheses
        )
        return state

    def advance(self, states: Sequence[GreedyState], log_probs: Floats) -> None:
        """Decode frames (B, T, D), row b into `states[b]`."""
        rows = [state for state in states if isinstance(state, TransducerBeamState)]
        assert len(rows) == len(states), "states of this decoder"
        frames = self.networks.project(log_probs)
        groups = [[row] for row in range(len(rows))] if self._alone else [list(range(len(rows)))]
        for group in groups:
            for at in range(frames.shape[1]):
                due = [row for row in group if not rows[row].skip]
                if due:
                    self._frame([rows[row] for row in due], frames[due, at])
                for row in group:
                    if rows[row].skip:
                        rows[row].skip -= 1

    def words(self, state: GreedyState) -> tuple[Word, ...]:
        """Words of the open segment by the best hypothesis; the last one may be unfinished."""
        assert isinstance(state, TransducerBeamState), "one of this decoder"
        if state.written is None:
            state.written = self._words_of(state, state.hypotheses[0])
        return state.written

    def agreement(self, state: TransducerBeamState) -> list[float]:
        """Share of the hypotheses' weight, 0 to 1, that agrees on the words up to each one of `words`."""
        texts = [[word.text for word in self._words_of(state, one)] for one in state.hypotheses]
        weights = [math.exp(one.total - state.hypotheses[0].total) for one in state.hypotheses]
        return [
            sum(weight for weight, text in zip(weights, texts, strict=True) if text[:count] == texts[0][:count])
            / sum(weights)
            for count in range(1, len(texts[0]) + 1)
        ]

    def take(self, state: GreedyState, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all) of the best hypothesis, which is the only one then."""
        assert isinstance(state, TransducerBeamState), "one of this decoder"
        best = state.hypotheses[0]
        if count is None:
            best = max(state.hypotheses, key=lambda one: one.total + self._ending(state, one))
        if count is None or count > len(state.closed):
            self._commit(state, (best,), len(best.open))
        state.written = None
        taken = super().take(state, count)
        state.written = None
        return taken

    def _ending(self, state: TransducerBeamState, hypothesis: Hypothesis) -> float:
        """Return by how much its total changes if the text ends here."""
        terms, language = state.terms, self.language
        closing = 0.0 if terms is None else terms.ending(hypothesis.position)
        return closing if language is None else closing + language.ending(hypothesis.language, state.bias)

    def _words_of(self, state: TransducerBeamState, hypothesis: Hypothesis) -> tuple[Word, ...]:
        if not hypothesis.open:
            return super().words(state)
        written = self.copy(state)
        assert isinstance(written, TransducerBeamState), "a copy"
        self._write_all(written, hypothesis.open)
        return super().words(written)

    def _write_all(self, state: TransducerBeamState, emitted: Sequence[Emitted]) -> None:
        now = state.frames, state.silence_frames
        for symbol, state.frames, log_prob in emitted:
            if symbol != self._unknown:
                self._write(state, symbol, log_prob)
        state.frames, state.silence_frames = now

    def _frame(self, states: Sequence[TransducerBeamState], frames: Floats) -> None:
        """Search one frame of B streams, (B, D), unless it is silent by a stream's best hypothesis."""
        blanks = self._join(frames, [state.hypotheses[:1] for state in states])[:, self.tokens.blank].tolist()
        spoken = [row for row, blank in enumerate(blanks) if blank < SURE]
        for state, blank in zip(states, blanks, strict=True):
            if blank >= SURE:
                state.frames, state.silence_frames = state.frames + 1, state.silence_frames + 1
        if spoken:
            self._spoken_frame([states[row] for row in spoken], frames[spoken])

    def _spoken_frame(self, states: Sequence[TransducerBeamState], frames: Floats) -> None:
        """Search one frame of B streams, (B, D), with all hypotheses."""
        ended: list[dict[tuple[int, ...], Hypothesis]] = [{} for _ in states]
        active = [list(state.hypotheses) for state in states]
        most = self.networks.symbols_per_frame
        for number in range(1, most + 1):
            self._complete(active)
            rows = [row for row, hypotheses in enumerate(active) for _ in hypotheses]
            if not rows:
                break
            log_probs = self._join(frames[rows], active)  # (N, V)
            first = 0
            for row, hypotheses in enumerate(active):
                own = log_probs[first : first + len(hypotheses)]
                first += len(hypotheses)
                blank = own[:, self.tokens.blank].tolist()
                for one, log_prob in zip(hypotheses, blank, strict=True):
                    _add(ended[row], replace(one, score=one.score + log_prob))
                longer = self._extended(states[row], hypotheses, own)
                if number == most:
                    for one in longer:
                        _add(ended[row], one)
                    continue
                scores = sorted((one.total for one in ended[row].values()), reverse=True)
                least = scores[self.beams - 1] if len(scores) >= self.beams else -math.inf
                active[row] = [one for one in longer if one.total > least]
        for state, ends in zip(states, ended, strict=True):
            state.frames += 1
            self._replace(state, list(ends.values()))
        completed = [list(state.hypotheses) for state in states]
        self._complete(completed)
        for state, ready in zip(states, completed, strict=True):
            state.hypotheses = tuple(ready)

    def _join(self, frames: Floats, active: Sequence[Sequence[Hypothesis]]) -> Floats:
        """Return log-probabilities of the hypotheses with their streams' frames (N, D): (N, V)."""
        outputs = np.stack([one.output for hypotheses in active for one in hypotheses if one.output is not None])
        logits = self.networks.join(frames, outputs)
        shifted = logits - logits.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), np.float32)

    def _extended(
        self, state: TransducerBeamState, hypotheses: Sequence[Hypothesis], log_probs: Floats
    ) -> list[Hypothesis]:
        """Return the best hypotheses with one more symbol, given log-probabilities (H, V)."""
        if not hypotheses:
            return []
        terms, lm, longer = state.terms, self.language, list[Hypothesis]()
        raised = log_probs if terms is None else log_probs + np.stack([terms.bonus(one.position) for one in hypotheses])
        raised = np.where(self._search.writes, raised, -np.inf)  # (H, V)
        count = min(self.beams * (1 if lm is None else CHOICES), int(self._search.writes.sum()))
        best = np.argsort(-raised, axis=1, kind="stable")[:, :count].tolist()
        for one, symbols, row in zip(hypotheses, best, log_probs, strict=True):
            for symbol in symbols:
                position, bonus = (one.position, 0.0) if terms is None else terms.follow(one.position, symbol)
                language, more = (NO_LANGUAGE, 0.0) if lm is None else lm.follow(one.language, symbol, state.bias)
                log_prob = float(row[symbol])
                emitted = (*one.open, Emitted(symbol, state.frames, log_prob))
                score, bonus = one.score + log_prob + more, one.bonus + bonus
                longer.append(Hypothesis(score, bonus, position, emitted, one.context, None, language))
        return sorted(longer, key=lambda one: -one.total)[: self.beams]

    def _complete(self, groups: Sequence[list[Hypothesis]]) -> None:
        """Advance the prediction network for the hypotheses that have a new symbol, all in one batch."""
        new = [(group, at) for group in groups for at, one in enumerate(group) if one.output is None]
        if not new:
            return
        longer = [group[at] for group, at in new]
        symbols = np.array([one.open[-1].symbol for one in longer], np.int64)
        contexts, outputs = self.networks.advance(np.stack([one.context for one in longer]), symbols)
        for (group, at), context, output in zip(new, contexts, outputs, strict=True):
            group[at] = replace(group[at], context=context.copy(), output=output.copy())

    def _replace(self, state: TransducerBeamState, hypotheses: Sequence[Hypothesis]) -> None:
        """Keep the best hypotheses, and commit the symbols that all of them share."""
        best = sorted(hypotheses, key=lambda one: -one.total)[: self.beams]
        base = best[0].score
        best = [replace(one, score=one.score - base) for one in best]  # scores stay small in long streams
        if best[0].symbols != state.hypotheses[0].symbols:
            state.revision += 1
        if len(best[0].open) > OPEN_SYMBOLS:
            best = best[:1]
        shared = 0
        shortest = min(len(one.open) for one in best)
        while shared < shortest and len({one.open[shared].symbol for one in best}) == 1:
            shared += 1
        state.written = None
        self._commit(state, best, shared)
        spoken = [emitted.frame for emitted in best[0].open if self.tokens.texts[emitted.symbol]]
        last = spoken[-1] if spoken else state.last_frame if state.emitted_any else -1
        state.silence_frames = state.frames - 1 - last

    def _commit(self, state: TransducerBeamState, hypotheses: Sequence[Hypothesis], count: int) -> None:
        """Commit the first `count` symbols of the hypotheses, which share them."""
        if count:
            revision = state.revision
            self._write_all(state, hypotheses[0].open[:count])
            state.revision, state.emitted_any = revision, True
            if state.terms is not None:
                for emitted in hypotheses[0].open[:count]:
                    state.position, _ = state.terms.follow(state.position, emitted.symbol)
        state.hypotheses = tuple(replace(one, open=one.open[count:]) for one in hypotheses)


def _add(ended: dict[tuple[int, ...], Hypothesis], one: Hypothesis) -> None:
    """Add a hypothesis to those of a stream; with equal symbols they become one, with the times of the likelier."""
    symbols = one.symbols
    same = ended.get(symbols)
    if same is not None:
        score = float(np.logaddexp(same.score, one.score))
        likelier = same if same.score >= one.score else one
        output, context = (same.output, same.context) if same.output is not None else (one.output, one.context)
        one = replace(likelier, score=score, output=output, context=context)
    ended[symbols] = one
