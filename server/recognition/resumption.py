"""Saving the state of a session between two of its steps, and continuing from a saved one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from server.recognition.audio_digest import AudioDigest
from server.recognition.keyterms.session_keyterms import SessionKeyterms
from server.recognition.results.pending_finals import PendingFinals
from server.recognition.results.result_order import AudioOrder
from server.recognition.saved_state import SavedChannel, SavedCutter, SavedInput, SavedStream
from server.recognition.segments.resting import Rest
from server.recognition.segments.segmenter import Segmenter
from server.recognition.steps import StepCutter


class Resumption:
    """The tickets' view of a resumable session: its audio input, its channels and the order of its results."""

    def __init__(
        self,
        channels: Sequence[Segmenter],
        cutters: Sequence[StepCutter],
        keyterms: SessionKeyterms,
        order: AudioOrder,
        *,
        sample_rate: int,
        step_s: float,
        digest: AudioDigest | None,
    ) -> None:
        """`sample_rate` is the client's."""
        self._channels, self._cutters, self._keyterms = channels, cutters, keyterms
        self._sample_rate, self._step_s = sample_rate, step_s
        self._digest = digest
        self.order = order
        self.pending: PendingFinals | None = None  # that wrap this order
        for channel, cutter in zip(channels, cutters, strict=True):
            if channel.segment.audio is not None:
                cutter.kept = channel.segment.audio.again
        self.rests: Sequence[Rest] = ()  # by channel; empty if the stream never rests

    @property
    def unmarked_s(self) -> float:
        """Audio sent to the engine since the last mark, per channel."""
        return self.order.unmarked * self._step_s / len(self._channels)

    @property
    def waits(self) -> bool:
        """Whether steps wait for a decision about rest; until then `mark` cannot be called."""
        return any(rest.waiting for rest in self.rests)

    def mark(self) -> None:
        """Save the input side after all steps so far; a `StateSaved` has the engine's state of each channel."""
        phrases, allowance = self._keyterms.saved()
        assert not self.waits, "a state is saved between two steps"
        kept = [len(rest.last) for rest in self.rests] or [0] * len(self._cutters)
        cutters = tuple(cutter.saved(steps) for cutter, steps in zip(self._cutters, kept, strict=True))
        steps = tuple(channel.settings.bias_steps for channel in self._channels)
        digest = None
        if self._digest is not None:
            pairs = zip(self._cutters, cutters, strict=True)
            digest = self._digest.saved(min(cutter.stepped_to(place) for cutter, place in pairs))
        levels = tuple(channel.meter.saved() for channel in self._channels)
        for rest in self.rests:
            rest.marks += 1
        resting = tuple(rest.resting for rest in self.rests)
        context = self._keyterms.current.context
        self.order.mark(SavedInput(cutters, phrases, allowance, context, steps, levels, digest, resting))

    def exported(self, channel: Segmenter, state: bytes, auxiliary: tuple[bytes, ...]) -> None:
        """Take the engines' states of one channel, decoded up to the oldest mark that lacks them."""
        if self.rests:
            self.rests[channel.index].marks -= 1
        self.order.exported(channel.index, (state, auxiliary), channel.saved(self._keyterms.initial.bias))

    def replay_from_s(self, saved: SavedStream) -> float:
        """Stream time from which the client must send its audio again."""
        return self._replay_from(saved) / self._sample_rate

    def _replay_from(self, saved: SavedStream) -> int:
        pairs, digest = zip(self._cutters, _places(saved), strict=True), saved.audio.digest
        begin = min(cutter.replay_from(place) for cutter, place in pairs)
        return begin if digest is None else min(begin, digest.end)

    def restoring(self, saved: SavedStream) -> Callable[[], None]:
        """Return a function that makes this untouched session continue from a saved one, with the audio that follows.

        The caller restores the model's states. Raises: ValueError, ModelError; nothing has changed then.
        """
        self._check_kind(saved)
        default = self._keyterms.initial.bias
        paired = self._paired(saved)
        states = [channel.restored_state(one, default) for channel, one in paired]
        audio = saved.audio
        restore_keyterms = self._keyterms.restoring(audio.phrases, audio.allowance, audio.context)
        steps = list(zip(self._channels, audio.context_steps, strict=True))
        begin, places = self._replay_from(saved), _places(saved)

        def restore() -> None:
            restore_keyterms()
            self.order.finals, self.order.ends_s = saved.finals, list(saved.ends_s)
            if self._digest is not None and saved.audio.digest is not None:
                self._digest.restore(saved.audio.digest, begin)
            for cutter, place in zip(self._cutters, places, strict=True):
                cutter.restore(place, begin)
            for rest, resting in zip(self.rests, audio.resting, strict=True):
                rest.restore(resting)
            for (channel, one), (state, bias), place in zip(paired, states, audio.cutters, strict=True):
                channel.restore(one, state, bias, [windows.end for windows in place.windows])
                channel.meter.restore(audio.levels[channel.index])
                end_s = saved.ends_s[channel.index]
                if self.pending is not None and one.last_word_end_s is not None and end_s is not None:
                    self.pending.sent_before(channel.index, one.last_word_end_s, end_s)
            keyterms = self._keyterms.current
            for channel, left in steps:
                if left:
                    channel.set_bias(keyterms.bias, left, keyterms.without_context.bias)

        return restore

    def _check_kind(self, saved: SavedStream) -> None:
        """Raises: ValueError unless a saved stream has the same parts as this one."""
        if any((channel.utterance.speech is None) != (one.voice is None) for channel, one in self._paired(saved)):
            raise ValueError("only one of the two has a voice-activity model")
        if (saved.audio.digest is None) != (self._digest is None):
            raise ValueError(
                "a stream with receipts cannot be resumed without them, nor one without receipts with them"
            )
        if len(saved.audio.resting) != len(self.rests):
            raise ValueError("only one of the two may rest")

    def _paired(self, saved: SavedStream) -> list[tuple[Segmenter, SavedChannel]]:
        return list(zip(self._channels, saved.channels, strict=True))


def _places(saved: SavedStream) -> list[SavedCutter]:
    """Return the positions of the channels, with the steps that are cut again: for a rest, or for the second pass."""
    pairs = zip(saved.audio.cutters, [channel.audio for channel in saved.channels], strict=True)
    return [
        msgspec.structs.replace(cutter, kept=max(cutter.kept, audio.answered - audio.first)) if audio else cutter
        for cutter, audio in pairs
    ]
