"""Decoders whose second pass writes open words in capitals, or with a digest of what it read, so that each final shows
which pass made it.
"""

from __future__ import annotations

import threading
import zlib
from functools import partial

from msgspec import structs

from model.ctc.greedy import GreedyDecoder, GreedyState
from model.ctc.interface import FrameAudio, SecondPass
from model.ctc.words import Word
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.recognizers.spelling import CONFIG


class ShoutingDecoder(GreedyDecoder):
    """Greedy decoder whose second pass waits until the gate is open."""

    def __init__(self) -> None:
        super().__init__(CONFIG.vocabulary, CONFIG.frame_s)
        self.gate = threading.Event()
        self.gate.set()
        self.free = 0  # second decodes that do not wait for the gate
        self.fails = False
        self.later_s = 0.0  # by which its words end later than the first decode's
        self.begun = self.passes = 0  # second passes that began, and that ended

    reads_audio = False

    def second_pass(self, state: GreedyState, audio: FrameAudio | None) -> SecondPass | None:
        """As `model.ctc.interface.TwoPass`."""
        del audio
        words, stable = self.words(state), self.stable_words(state)
        if len(words) == stable:
            return None
        self.free -= 1
        waits = self.free < 0
        return lambda: (*words[:stable], *self._shout(words[stable:], waits=waits))

    def _shout(self, words: tuple[Word, ...], *, waits: bool) -> tuple[Word, ...]:
        self.begun += 1
        assert not waits or self.gate.wait(timeout=WAIT_S), "the gate was not opened"
        self.passes += 1
        if self.fails:
            raise ArithmeticError("the second decode")
        later_s = self.later_s
        return tuple(structs.replace(word, text=word.text.upper(), end_s=word.end_s + later_s) for word in words)


class DigestingDecoder(GreedyDecoder):
    """Greedy decoder whose second pass reads the segment's audio: its last word ends with a digest of that."""

    reads_audio = True

    def __init__(self) -> None:
        super().__init__(CONFIG.vocabulary, CONFIG.frame_s)

    def second_pass(self, state: GreedyState, audio: FrameAudio | None) -> SecondPass | None:
        """As `model.ctc.interface.TwoPass`."""
        assert audio is not None, "it reads audio"
        words = self.words(state)
        return partial(self._digested, words, audio) if words else None

    @staticmethod
    def _digested(words: tuple[Word, ...], audio: FrameAudio) -> tuple[Word, ...]:
        *others, last = words
        return (*others, structs.replace(last, text=f"{last.text} {audio.frame} {zlib.crc32(audio.pcm.tobytes())}"))
