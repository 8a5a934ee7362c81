"""Two-pass decoding: a narrow beam search during speech, and a wide beam search over the whole segment when it ends.

The second pass searches the segment again, including stable words: over the outputs of a `Reader`, which processes the
segment's audio as a whole, or without one over the outputs of the stream, which are kept then. It works on copies, so
any thread may run it while the stream continues. Source of two passes, the second over the whole segment: Sainath et
al. 2019, "Two-Pass End-to-End Speech Recognition".

With a `Transcriber` an encoder-decoder network writes the segment's text, and what it is sure of is taken
(`model.ctc.combination`).

The second pass may use another language model. Its text is not fed back: the next segment is searched in the context of
the first pass, because otherwise it would have to wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import msgspec
import numpy as np

from model.ctc.acknowledgements import AcknowledgementNetwork
from model.ctc.beam import BeamDecoder
from model.ctc.beam_state import SearchDecoder, SearchedState
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.combination import Transcriber, combined
from model.ctc.interface import PCM, FrameAudio, LogProbs, SecondPass, digest_of
from model.ctc.kept_frames import KeptFrames
from model.ctc.rewind import Onset, keeper_of, state_at
from model.ctc.search import layout as at
from model.ctc.search.saved_beam import Memory
from model.ctc.words import Word

KEPT_S = 60.0
"""Most seconds of frames, or of audio, that a stream keeps. An open text that began earlier has no second pass; usual
segments are shorter."""
LEAD_S = 2.0
"""Seconds before the first open word from which the second pass starts: the first pass may have missed a word there."""

WARM_UP_FRAMES = 16

CONTEXT_S = 0.25
"""Seconds of audio before the first frame of the second pass, as context for the reader. Source: model/LOG.md"""


@dataclass(frozen=True, slots=True)
class Reader:
    """A network for whole segments: maps the PCM (S,) of a segment to log-probs (T, outputs) of the stream's frames."""

    read: Callable[[PCM], LogProbs]
    frame_samples: int
    step_frames: int  # frames per step; it reads whole steps
    digest: str  # of its weights


class SegmentDigits(Protocol):
    """Reads segments of digits, `model.digit_reader`; callable on any thread."""

    @property
    def digest(self) -> str:
        """Digest of everything that its words depend on."""

    def warm_up(self) -> None:
        """Load and compile everything."""

    def digits(self, words: Sequence[Word], pcm: PCM, begin_s: float) -> tuple[Word, ...]:
        """Return the words of samples (S,) from `begin_s` on if they are digits, else none; `words`: those so far."""


@dataclass(slots=True, eq=False)
class TwoPassState(SearchedState):
    """Decoder state of one stream: the state of the first pass, and the input of a second pass over the open text."""

    kept: KeptFrames = field(default_factory=KeptFrames)  # with a reader only where they would begin
    onset: Onset | None = None  # at `kept.begin`; None after silence or a committed word
    context: tuple[str, ...] = ()  # the last words taken
    taken_end: int = 0  # frame in which they end


@dataclass(frozen=True, slots=True)
class OpenText:
    """Input of one second pass; it shares nothing with the stream."""

    begin: int  # its first frame
    frames: KeptFrames | None  # None: the reader computes them
    lm_state: int | None  # of the second pass's language model at its start; None: there is no such model
    onset: Onset | None
    last_end: int
    bias: Bias
    words: tuple[Word, ...]  # of the first pass
    audio: FrameAudio | None


class SavedTwoPass(msgspec.Struct, array_like=True, frozen=True):
    """Serialized `TwoPassState` without its key terms."""

    first: bytes
    begin: int
    counts: bytes
    symbols: bytes
    values: bytes
    onset: Onset | None
    context: tuple[str, ...]
    taken_end: int


class TwoPassDecoder(SearchDecoder):
    """A `Decoder` that returns the words of the first pass and can run a second pass over the open text."""

    def __init__(
        self,
        first: BeamDecoder,
        second: BeamDecoder,
        reader: Reader | None = None,
        transcriber: Transcriber | None = None,
        *,
        lead_s: float = LEAD_S,
        acknowledgements: AcknowledgementNetwork | None = None,
        digits: SegmentDigits | None = None,
    ) -> None:
        """Both searches must have the same symbols and read the same share of each frame. Raises: ValueError.

        Without a `reader` the second pass searches the stream's own outputs. `acknowledgements` marks its words. What
        `digits` reads are the segment's words.
        """
        self._reader, self._transcriber, self._lead_s = reader, transcriber, lead_s
        self._acknowledgements, self.digits = acknowledgements, digits
        limits, others = first.limits, second.limits  # share and number of symbols first
        if first.vocabulary != second.vocabulary or first.frame_s != second.frame_s or (limits != others)[:2].any():
            raise ValueError("both searches must have the same symbols, frame duration and kept share of a frame")
        super().__init__(first)
        self.first, self.second = first, second
        self._keeper = keeper_of(first) if reader is None else None
        self._kept = round(KEPT_S / self.frame_s)
        self._lead = round(lead_s / self.frame_s)
        self._context = 0 if second.lm is None else second.lm.order - 1

    def over(self, search: BeamDecoder) -> TwoPassDecoder:
        """Return a decoder of both passes by one search, such as a grammar's, over the same outputs; no transcriber."""
        return TwoPassDecoder(search, search, self._reader, lead_s=self._lead_s)

    @property
    def reads_audio(self) -> bool:
        """Whether the second pass needs the segment's audio."""
        return self._reader is not None or self._transcriber is not None

    @property
    def lm_digest(self) -> str:
        """Digest of the language models of both passes, empty without any."""
        digests = self.first.lm_digest, self.second.lm_digest
        return digest_of(*digests) if any(digests) else ""

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on."""
        digests = [self.first.digest, self.second.digest]
        parts = self._reader, self._transcriber, self._acknowledgements, self.digits
        digests += ["" if part is None else part.digest for part in parts]
        return digest_of(f"two passes {self._kept} {self._lead}", *digests)

    def warm_up(self) -> None:
        """Compile all entry points, or load them from disk, so that the first stream need not wait."""
        self.first.warm_up()
        self.second.warm_up()
        state = self.start(0)
        size = len(self.first.vocabulary)
        self.advance([state], np.full((1, WARM_UP_FRAMES, size), -math.log(size), np.float32))
        again = self.second_pass(state, None)
        if again is not None:
            again()
        self.release(state)
        if self._reader is not None:
            self._reader.read(np.zeros(self._reader.step_frames * self._reader.frame_samples, np.int16))
        for other in (self._transcriber, self.digits):
            if other is not None:
                other.warm_up()

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> TwoPassState:
        """Return a new state that ignores the first `skip_frames` frames."""
        return TwoPassState(self.first.start(skip_frames, bias))

    def release(self, state: TwoPassState) -> None:
        """Free a state's memory now. Raises: ReleasedState."""
        self.first.release(state.first)
        state.kept.restart(0)

    def advance(self, states: Sequence[TwoPassState], log_probs: LogProbs) -> None:
        """Decode (B, T, V) more frames, row b into `states[b]`. Raises: ValueError, ReleasedState."""
        log_probs = self.first.own(log_probs)
        before = [state.first.frames for state in states]
        self.first.search([state.first for state in states], log_probs)
        if self._keeper is None:
            return
        new = ((state.kept, state.first.frames - at) for state, at in zip(states, before, strict=True))
        self._keeper.keep(new, log_probs)
        for state in states:
            self._forget(state)

    def agreement(self, state: TwoPassState) -> list[float]:
        """Share of the first pass's weight, 0 to 1, that agrees on all words up to each of `words`."""
        return self.first.agreement(state.first)

    def take(self, state: TwoPassState, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all) of the open segment by the first pass."""
        first, held = state.first, self.words(state)
        taken = self.first.take(first, count)
        if self._context:
            state.context = (*state.context, *(word.text for word in taken))[-self._context :]
        if taken:
            state.taken_end = round(taken[-1].end_s / self.frame_s)
        if count is None or count >= len(held):
            if held:
                state.kept.restart(first.frames)
                hypotheses = Memory(first.block, self.first.beams)
                blank_p, letter_p = hypotheses.hypotheses_f[0, [at.BLANK_P, at.LETTER_P]].tolist()
                state.onset = blank_p, letter_p, int(hypotheses.hypotheses[0, at.BLANK_LAST])
        else:
            self._forget(state)
        return taken

    def _forget(self, state: TwoPassState) -> None:
        """Drop frames of taken words, and frames that are too old."""
        kept = state.kept
        begin = max(state.taken_end, state.first.frames - self._kept)
        if begin > kept.begin:
            kept.drop(begin)
            state.onset = None

    # The second pass

    def second_pass(self, state: TwoPassState, audio: FrameAudio | None) -> SecondPass | None:
        """Return a function that runs the second pass over the open text, on any thread, independent of later changes.

        `audio`: audio of the latest frames, for the reader and the transcriber.

        The function returns the words of the whole segment, possibly none. None without words, and if the audio
        that the reader needs begins after the first one. Call it before `take`.
        """
        first, words = state.first, self.words(state) or self._ended_words(state)
        if not words:
            return None
        opened = round(words[0].start_s / self.frame_s)
        begin = max(state.kept.begin, state.taken_end, first.frames - self._kept, opened - self._lead)
        if self._reader is not None:
            begin = max(begin, first.frames if audio is None else audio.frame)
        if opened < begin:
            return None
        at_start = begin == state.kept.begin
        text = OpenText(
            begin=begin,
            frames=None if self._keeper is None else state.kept.since(begin),
            lm_state=self._lm_state(state.context),
            onset=state.onset if at_start else None,
            last_end=state.taken_end,
            bias=first.bias,
            words=words,
            audio=audio,
        )
        return partial(self._again, text)

    def _ended_words(self, state: TwoPassState) -> tuple[Word, ...]:
        """Words of an open text without any, if it ends here: hypotheses of an unfinished word do not count then."""
        twin = self.first.copy(state.first)
        words = self.first.take(twin)
        self.first.release(twin)
        return words

    def _lm_state(self, words: tuple[str, ...]) -> int | None:
        """State of the second pass's language model after these words, the last ones before the open text."""
        if not self._context or self.second.lm is None:
            return None
        began = len(words) < self._context  # `words` are all words since the start of the stream
        return self.second.lm.state_after(words[-self._context :], bos=began)

    def _again(self, text: OpenText) -> tuple[Word, ...]:
        """Search an open text, or have it written where that is as good; return its words."""
        audio, transcriber = text.audio, self._transcriber
        if transcriber is None or audio is None:
            return self._search(text)
        begin = max(text.begin, audio.frame)
        pcm = audio.pcm[round((begin - audio.frame) * self.frame_s * transcriber.sample_rate) :]
        return combined(partial(self._search, text), text.words, (pcm, begin * self.frame_s), text.bias, transcriber)

    def _search(self, text: OpenText) -> tuple[Word, ...]:
        """Search an open text; return its words."""
        second = self.second
        state = state_at(
            second, text.begin, text.bias, lm_state=text.lm_state, onset=text.onset, last_end=text.last_end
        )
        log_probs = self._log_probs(text)
        second.search([state], log_probs)
        words = second.take(state)
        second.release(state)
        if self.digits is not None and self._reader is not None and text.audio is not None:
            pcm = text.audio.pcm[(text.begin - text.audio.frame) * self._reader.frame_samples :]
            words = self.digits.digits(words, pcm, text.begin * self.frame_s) or words
        network = self._acknowledgements
        return words if network is None else network.marked(words, log_probs[0], text.begin, self.frame_s)

    def _log_probs(self, text: OpenText) -> LogProbs:
        """Return the log-probs (1, T, V) of an open text's frames."""
        if text.frames is not None:
            return text.frames.log_probs(len(self.second.vocabulary), self.second.symbols.blank)
        reader, audio = self._reader, text.audio
        assert reader is not None, "frames are kept without one"
        assert audio is not None, "there is no second pass without it"
        skipped = max(0, text.begin - round(CONTEXT_S / self.frame_s) - audio.frame)
        first = audio.frame + skipped // reader.step_frames * reader.step_frames
        rows = reader.read(audio.pcm[(first - audio.frame) * reader.frame_samples :])
        return self.second.own(rows[None, text.begin - first :])

    # Copies

    def save(self, state: TwoPassState) -> bytes:
        """Serialize a state without its key terms, for `load`; the state stays usable. Raises: ReleasedState."""
        frames = state.kept
        parts = bytes(frames.counts), bytes(frames.symbols), bytes(frames.values)
        first = self.first.save(state.first)
        saved = SavedTwoPass(first, frames.begin, *parts, state.onset, state.context, state.taken_end)
        return msgspec.msgpack.encode(saved)

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> TwoPassState:
        """Deserialize a saved state; `bias` must be given again. Raises: ValueError for damaged or foreign bytes."""
        read = msgspec.msgpack.decode(saved, type=SavedTwoPass)
        frames = KeptFrames(read.begin, bytearray(read.counts), bytearray(read.symbols), bytearray(read.values))
        frames.check(len(self.second.vocabulary))
        return TwoPassState(self.first.load(read.first, bias), frames, read.onset, read.context, read.taken_end)

    def copy(self, state: TwoPassState) -> TwoPassState:
        """Return an independent copy of a state. Raises: ReleasedState."""
        return replace(state, first=self.first.copy(state.first), kept=state.kept.since(state.kept.begin))
