"""The open segment of one channel: decoder state, words, partials and final, in stream time. No clock, no I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from functools import partial
from itertools import islice

import numpy as np

from model.ctc.bias import Bias
from model.ctc.interface import Agreeing, Decoder, DecoderState, FoldsStates, FrameAudio, SecondPass, TwoPass
from model.ctc.rewind import KEPT_S, RewindDecoder, RewindState
from model.ctc.two_pass import CONTEXT_S
from model.ctc.two_pass import KEPT_S as READ_AGAIN_S
from model.ctc.words import Word
from model.description import ModelDescription
from server.audio.pcm import PCM
from server.recognition.events import Final, FinalReason, Partial
from server.recognition.results.pending_finals import PendingFinal
from server.recognition.saved_state import SavedAudio, SavedChannel
from server.recognition.segments.endpointing import EndpointRules
from server.recognition.segments.partials import PartialFilter, SettledWords, WordPlacer, placed
from server.recognition.segments.rewinding import Part
from server.recognition.segments.speech_gate import Levels, SpeechGate


class OpenSegment:
    """The audio since the end of the last final, and the decoder state with its words.

    Call `release` once when the session is over, because the decoder may keep its states in slots.
    """

    def __init__(
        self, index: int, config: ModelDescription, decoder: Decoder, rules: EndpointRules, bias: Bias
    ) -> None:
        self.index = index  # of the channel
        self.decoder = decoder
        self.two_pass = decoder if isinstance(decoder, TwoPass) else None
        self._folds = decoder if isinstance(decoder, FoldsStates) else None
        reads_audio = self.two_pass is not None and self.two_pass.reads_audio
        self.audio = SegmentAudio(config) if reads_audio else None  # for the second pass
        self.gate = SpeechGate(config, KEPT_S if isinstance(decoder, RewindDecoder) else 0.0)
        self._delay_frames, self._frame_s = config.delay_frames, config.frame_s
        self.state: DecoderState = decoder.start(self._delay_frames, bias)
        self.partials = PartialFilter(tell_stable=rules.tell_stable, interval_s=rules.partial_interval_s)
        self.settled = SettledWords() if rules.settled_only else None
        self._every_step = rules.every_step
        self._placer = WordPlacer()
        self._read: tuple[int, tuple[Word, ...]] | None = None  # a revision of the state, and `words` there
        self.base_s = 0.0  # stream time at which the decoder state started
        self.start_s = 0.0  # where the segment starts
        self.since_s = 0.0  # where it would start without interims: from here rules measure it
        self.cursor_s = 0.0  # end of the last step that was decoded
        self.resting = False  # whether the next steps are silence that is not computed

    @property
    def first_word_s(self) -> float:
        """Start of the first word; infinity if it has none."""
        words = self.words() if self.state.has_text else ()
        return self.placed(words)[0].start_s if words else math.inf

    @property
    def partial_words(self) -> tuple[Word, ...]:
        """The words of a partial."""
        return self.placed(self.words()) if self.state.has_text else ()

    @property
    def known_s(self) -> float:
        """Stream time up to which words are known: the model's delay earlier than the cursor."""
        return self.base_s + self.state.frames * self._frame_s

    @property
    def silence_s(self) -> float:
        """Silence after the last word, as measured by the decoder."""
        return self.state.silence_frames * self._frame_s

    @property
    def part(self) -> Part:
        """The present decoder state, up to the end of the last final; only for a decoder that can decode again."""
        assert isinstance(self.state, RewindState), "of a decoder that can decode again"
        return Part(self.state, self.base_s, self.start_s, self.gate.frozen())

    @property
    def silent_until_s(self) -> float:
        """Time at which a segment without text may end: at most the end of what is decoded, or the next word would
        begin before its segment.
        """
        return max(self.since_s, min(self.known_s, self.cursor_s))

    def cut_until_s(self, count: int) -> float:
        """Return the time at which a segment may end that is cut after `count` words: the start of the next one."""
        words = self.decoder.words(self.state)
        next_s = self.base_s + words[count].start_s if count < len(words) else self.known_s
        return max(self.since_s, min(next_s, self.cursor_s))

    def _sent_until_s(self, until_s: float) -> float:
        """Return the end of a final of the audio until then: at least the end of the last result, because results never
        go back. With a result for every step, that is the cursor.
        """
        return self.cursor_s if self._every_step else max(self.start_s, self.partials.last_end_s, until_s)

    # Steps

    def answered(self, end_s: float) -> None:
        """Record that the decoder state was advanced over the next step, which ends at `end_s`, or that it rests."""
        if self.resting:
            self.base_s += end_s - self.cursor_s
            if self._folds is not None:
                self._folds.fold(self.state)
        else:
            self.replayed()
        self.cursor_s = end_s

    def rest(self) -> None:
        """Begin a rest: the segment, which has no text, continues, but its decoder's time stands still."""
        self._placer.restart()
        self.resting = True
        if self.audio is not None:
            self.audio.forget()

    def wake(self, replayed_s: float) -> None:
        """End the rest with the last `replayed_s` of the audio; the next steps replay them."""
        self.base_s -= replayed_s
        self.resting = False

    def computes(self, step: PCM) -> None:
        """Record a step (S,) that is sent to the engine."""
        self.gate.sent(step)
        if self.audio is not None:
            self.audio.add(step)

    def replayed(self) -> None:
        """Record that the decoder state was advanced over a step that precedes the cursor."""
        self.gate.answered()
        if self.audio is not None:
            self.audio.answered()

    def start_at(self, stream_s: float) -> None:
        """Let the stream time begin at `stream_s`."""
        self.base_s = self.start_s = self.since_s = self.cursor_s = stream_s
        self._restart_partials(stream_s)

    def set_bias(self, bias: Bias) -> None:
        """Bias the words of later steps."""
        self.decoder.set_bias(self.state, bias)
        self._read = None  # words that only the earlier key terms contain are spelled again

    def restart(self, bias: Bias) -> None:
        """Restart the decoder after a flush; the next step also resets the model."""
        self.decoder.release(self.state)
        self.state = self.decoder.start(self._delay_frames, bias)
        self.gate.restart()
        if self.audio is not None:
            self.audio.restart()

    def release(self) -> None:
        """Release the decoder state; nothing may be decoded afterwards."""
        self.decoder.release(self.state)

    # Words

    def words(self) -> tuple[Word, ...]:
        """Words that pass the gate, in decoder time; cached for each revision of the state."""
        revision = self.state.revision
        if self._read is None or self._read[0] != revision:
            self._read = revision, self.gate.speech(self.decoder.words(self.state))
        return self._read[1]

    def take(self, count: int | None) -> tuple[Word, ...]:
        """Take the first `count` words, None for all, from the decoder; return those that pass the gate."""
        taken = self.decoder.take(self.state, count)
        words = self.gate.speech(taken)
        self._read = None
        until_s = self.state.frames * self._frame_s if count is None else taken[-1].end_s
        self.gate.taken(until_s, all_words=count is None)
        if count is None and self.audio is not None:
            self.audio.taken()
        return words

    def placed(self, words: Sequence[Word]) -> tuple[Word, ...]:
        """Move words of the decoder, from the segment's first one on, to stream time, inside the segment."""
        return placed(words, self.base_s, self.start_s, self.cursor_s)

    # Results

    def close(
        self, reason: FinalReason, count: int | None = None, until_s: float | None = None
    ) -> Final | PendingFinal:
        """Close the segment with its first `count` words (None: all), at the cursor or at `until_s`.

        A segment closed with all words gets a second pass if the decoder has one. The next segment starts where this
        one ends.
        """
        self.since_s = self.cursor_s if until_s is None else until_s
        end_s = self._sent_until_s(self.since_s)
        decode = self._second_pass() if count is None else None
        words = placed(self.take(count), self.base_s, self.start_s, end_s)
        final = Final(self.index, self.start_s, end_s - self.start_s, words, reason)
        self.start_s = end_s
        self._placer.restart()
        self._restart_partials(end_s)
        return PendingFinal(final, decode) if words and decode is not None else final

    def _second_pass(self) -> SecondPass | None:
        """Return the second pass over the segment, if the decoder has one, with its words in stream time."""
        if self.two_pass is None or (self.audio is not None and not self.audio.complete):
            return None
        again = self.two_pass.second_pass(self.state, None if self.audio is None else self.audio.decoded())
        place = self.base_s, self.start_s, self.cursor_s
        return None if again is None else partial(_second_words, again, self.gate.frozen(), place)

    def settle(self, settled: SettledWords, stable: int) -> int:
        """Return how many of the decoder's words partials show; call it at every step.

        The first `stable` words can no longer change. A decoder with a single hypothesis counts as certain.
        """
        words = self.decoder.words(self.state) if self.state.has_text else ()
        decoder = self.decoder

        def agreement() -> Sequence[float]:
            return decoder.agreement(self.state) if isinstance(decoder, Agreeing) else (1.0,) * len(words)

        return settled.count(words, stable, agreement, self.cursor_s)

    def due_partial(self, rules: EndpointRules, stable: int, shown: int | None) -> Partial | None:
        """Return the partial to send at this step, if any, with the first `shown` of the decoder's words."""
        if rules.every_step:
            return self._partial(stable, shown)
        fixed = (stable if rules.tell_stable else 0) + (shown or 0)
        if not rules.partials or not self.partials.due(self.state.revision, fixed, self.cursor_s):
            return None
        found = self._partial(stable, shown)
        return found if self.partials.is_news(found) else None

    def _partial(self, stable: int, shown: int | None) -> Partial:
        duration_s = self.cursor_s - self.start_s
        if not self.state.has_text:
            return Partial(self.index, self.start_s, duration_s, (), 0)
        words = self._placer.place(self.words(), self.base_s, self.start_s, self.cursor_s)
        said = min(self.gate.said(stable), self._placer.fitting)
        return Partial(
            self.index, self.start_s, duration_s, words if shown is None else words[: self.gate.said(shown)], said
        )

    def _restart_partials(self, end_s: float) -> None:
        self.partials.restart(end_s)
        if self.settled is not None:
            self.settled.restart(end_s)

    # Copies

    def fork(self) -> OpenSegment:
        """Return a segment that continues from the last step decoded. Release both."""
        twin = copy(self)
        twin.state = self.decoder.copy(self.state)
        twin.gate = self.gate.copy()
        twin.audio = None if self.audio is None else self.audio.copy()
        twin.partials, twin._placer = copy(self.partials), copy(self._placer)
        twin.settled = None
        return twin

    def restore(self, saved: SavedChannel, state: DecoderState) -> None:
        """Continue from a snapshot with its decoder state."""
        self.release()
        self.state = state
        self.partials.restore(saved.partials)
        self.gate.restore(saved.gate)
        if self.settled is not None and saved.settled is not None:
            self.settled.restore(saved.settled)
        if self.audio is not None and saved.audio is not None:
            self.audio.restore(saved.audio)
        self.base_s, self.start_s = saved.base_s, saved.start_s
        self.since_s, self.cursor_s = saved.since_s, saved.cursor_s


def _second_words(again: SecondPass, levels: Levels, place: tuple[float, float, float]) -> tuple[Word, ...]:
    """Run the second pass; return the words that pass the gate, in stream time."""
    return placed([word for word in again() if levels.has_speech(word)], *place)


class SegmentAudio:
    """The audio of a segment and some before it, by steps, numbered from the first one of the decoder state.

    For a second pass that processes it as a whole.
    """

    def __init__(self, config: ModelDescription) -> None:
        step_s = config.step_samples / config.sample_rate
        self._frames = round(step_s / config.frame_s)  # frames per step
        before_s = CONTEXT_S + config.delay_frames * config.frame_s  # decoded frames lag the audio that was sent
        self._before, self._most = math.ceil(before_s / step_s), math.ceil((READ_AGAIN_S + before_s) / step_s)
        self._steps: deque[PCM] = deque()
        self.again: deque[PCM] = self._steps  # receives the steps that a resumed client sends again, before all others
        self._first = 0  # number of the oldest step that is kept
        self._answered = 0  # steps decoded since the decoder state started

    def add(self, step: PCM) -> None:
        """Take a step that is sent to the engine."""
        self._steps.append(step)

    def answered(self) -> None:
        """Record that the next step was decoded."""
        self._answered += 1
        if self._answered - self._most > self._first:
            self._drop(self._answered - self._most)

    @property
    def complete(self) -> bool:
        """Whether all of it is here: false until a resumed client has sent it again."""
        return self._first + len(self._steps) >= self._answered

    def saved(self) -> SavedAudio:
        """Return which steps are kept."""
        return SavedAudio(self._first, self._answered)

    def restore(self, saved: SavedAudio) -> None:
        """Continue from what `saved` returned; `again` then receives the samples."""
        self._first, self._answered = saved.first, saved.answered

    def decoded(self) -> FrameAudio:
        """Return the kept part of the decoded audio."""
        steps = list(islice(self._steps, self._answered - self._first))
        pcm = np.concatenate(steps) if steps else np.zeros(0, np.int16)
        return FrameAudio(pcm, self._first * self._frames)

    def copy(self) -> SegmentAudio:
        """Return an independent copy of what was decoded; steps that are not answered are not in it."""
        twin = copy(self)
        twin._steps = deque(islice(self._steps, self._answered - self._first))
        return twin

    def taken(self) -> None:
        """Drop audio after all words so far were sent, except the context of the next segment."""
        self._drop(self._answered - self._before)

    def forget(self) -> None:
        """Drop the audio of all steps that were decoded."""
        self._drop(self._answered)

    def restart(self) -> None:
        """Start again with a restarted decoder state, whose first step is the next one."""
        self.forget()
        self._first = self._answered = 0

    def _drop(self, until: int) -> None:
        while self._first < until:
            if self._steps:  # not so if a resumed client ends its stream before it has sent them again
                self._steps.popleft()
            self._first += 1
