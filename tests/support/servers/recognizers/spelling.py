"""A model that reads text from the audio itself, so that lost, doubled, late or swapped steps are visible in the text.

Each 40 ms frame holds one symbol as its level. The symbols pass through a delay line kept in the stream's state, as a
real network's lookahead does: a row with another stream's state answers with that stream's letters. Every step
since the reset lowers the log-prob a little, which reveals a lost or repeated step or a missing reset.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from model.config import ENGLISH, ModelConfig
from model.ctc.greedy import GreedyDecoder
from model.facts import ModelFacts
from model.machine.device import Device
from server.audio.pcm import PCM
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.recognizers.array_slots import Array, ArraySlots, Row, State


@dataclass(frozen=True, slots=True)
class SpellingConfig(ModelConfig):
    """Configuration without the check for constant audio."""

    @property
    def doubts_steady_audio(self) -> bool:
        """False: every letter is a constant level."""
        return False


CONFIG = SpellingConfig(name="spelling", version="test", lookahead=3)
FRAME = CONFIG.frame_samples
LEVEL = 1_000  # between neighboring symbols
POISON = -20_000
POISONED = 100  # samples of it in a step: resampled audio has one now and then


def spell(text: str, rate: int = CONFIG.sample_rate) -> PCM:
    """Return audio of `text`: a frame for each letter, and a blank one after it."""
    levels = [level for letter in text for level in (ENGLISH.index(letter) * LEVEL, 0)]
    return np.repeat(np.array(levels, np.int16), FRAME * rate // CONFIG.sample_rate)


def voiced(text: str) -> PCM:
    """Return audio of `text` after a step of silence, that is louder than that by its level, as speech is."""
    audio = spell(text)
    return np.concatenate([silence(0.08), audio + np.where(np.arange(len(audio)) % 2, 300, -300).astype(np.int16)])


def silence(seconds: float, rate: int = CONFIG.sample_rate) -> PCM:
    """Return audio without text."""
    return np.zeros(round(seconds * rate), np.int16)


def poison() -> PCM:
    """One step of audio on which the model fails."""
    return np.full(CONFIG.step_samples, POISON, np.int16)


def spelling_decoder() -> GreedyDecoder:
    """The greedy decoder of `SpellingModel`, ready for its first stream."""
    decoder = GreedyDecoder(CONFIG.vocabulary, CONFIG.frame_s)
    decoder.warm_up()
    return decoder


class SpellingModel:
    """(B, step_samples) int16 -> one-hot log-probs (B, frames_per_step, V), `lookahead` frames late."""

    digest = "00spelling"
    precision = "exact"
    device = Device("cpu")

    def __init__(self, lookahead: int = CONFIG.lookahead) -> None:
        self.config = replace(CONFIG, lookahead=lookahead)
        self.input_spec = (CONFIG.step_samples,), np.int16
        self.state_spec: Mapping[str, Row] = {"late": ((lookahead,), np.int64), "steps": ((1,), np.float32)}
        self.rows: list[int] = []  # rows of each call so far

    @property
    def facts(self) -> ModelFacts:
        """What decoders and a server need of it."""
        return ModelFacts.own(self.config, self.digest, self.precision, self.device)

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> ArraySlots:
        """The model over `capacity` streams."""
        del tile_rows  # its arithmetic is exact
        return ArraySlots(self, capacity=capacity, largest=largest)

    def step(self, inputs: Array, state: State) -> tuple[Array, State]:
        """Read, delay, answer. Raises: ArithmeticError for poison."""
        if ((inputs == POISON).sum(axis=1) >= POISONED).any():
            raise ArithmeticError("poisoned")
        self.rows.append(len(inputs))
        middle = inputs[:, FRAME // 2 :: FRAME].astype(np.float64)  # (B, frames_per_step)
        symbols = np.rint(middle / LEVEL).astype(np.int64).clip(0, len(ENGLISH) - 1)
        line = np.concatenate([state["late"], symbols], axis=1)  # (B, lookahead + frames_per_step)
        answers, late = line[:, : symbols.shape[1]], line[:, symbols.shape[1] :]
        log_probs = np.full((*answers.shape, len(ENGLISH)), -20.0, np.float32)
        steps = state["steps"] + 1  # (B, 1)
        doubt = np.float32(-0.001) * np.minimum(steps, 600)[:, :, None]  # (B, 1, 1)
        np.put_along_axis(log_probs, answers[:, :, None], doubt, axis=2)
        return log_probs, {"late": late, "steps": steps}


class GatedSpellingModel(SpellingModel):
    """A model that, once `shut`, blocks inside each step until `open`: events in between happen in mid-batch."""

    def __init__(self, lookahead: int = CONFIG.lookahead) -> None:
        super().__init__(lookahead)
        self._entered: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._gate = threading.Event()
        self._gate.set()

    def shut(self) -> None:
        """Stop at the next step."""
        self._gate.clear()

    def open(self) -> None:
        """Let every step through again."""
        self._gate.set()

    def wait_inside(self) -> int:
        """Block until the model is stopped inside a step. Returns: its rows."""
        return self._entered.get(timeout=WAIT_S)

    def step(self, inputs: Array, state: State) -> tuple[Array, State]:
        """As `SpellingModel`, once the gate is open."""
        if not self._gate.is_set():
            self._entered.put(len(inputs))
            if not self._gate.wait(timeout=WAIT_S):
                raise TimeoutError("the gate was not opened")
        return super().step(inputs, state)
