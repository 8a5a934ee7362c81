"""A decoder whose second decode writes the same words in capitals, so that each final shows which one it has."""

from __future__ import annotations

import threading
from dataclasses import replace

from fakes import WAIT_S
from spelling import CONFIG

from model.ctc.greedy import GreedyDecoder, GreedyState
from model.ctc.words import SecondPass, Word


class ShoutingDecoder(GreedyDecoder):
    """Decodes greedily; the second decode waits until the gate is open."""

    def __init__(self) -> None:
        super().__init__(CONFIG.vocabulary, CONFIG.frame_s)
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.later_s = 0.0  # by which its words end later than the first decode's

    def again(self, state: GreedyState) -> SecondPass | None:
        """As `model.ctc.words.TwoPass`."""
        words = self.words(state)
        return (lambda: self._shout(words)) if words else None

    def _shout(self, words: tuple[Word, ...]) -> tuple[Word, ...]:
        assert self.gate.wait(timeout=WAIT_S), "the gate was not opened"
        if self.fails:
            raise ArithmeticError("the second decode")
        return tuple(replace(word, text=word.text.upper(), end_s=word.end_s + self.later_s) for word in words)
