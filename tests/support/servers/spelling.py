"""A model that reads text from the audio itself, so that lost, doubled, late or swapped steps are visible in the text.

Each 40 ms frame holds one symbol as its level. The symbols pass through a delay line kept in the stream's state, as a
real network's lookahead does: a row that meets another stream's state answers with that stream's letters. Every step
since the state was fresh lowers the log-prob a little: a step that is lost, repeated or not reset shows there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from model.config import ENGLISH, ModelConfig
from model.ctc.greedy import GreedyDecoder
from model.torch_network.slabs import RowSpec
from model.torch_network.slots import TorchSlots
from server.audio.pcm import PCM
from tests.support.servers.fakes import WAIT_S


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


def silence(seconds: float, rate: int = CONFIG.sample_rate) -> PCM:
    """Return audio without text."""
    return np.zeros(round(seconds * rate), np.int16)


def poison() -> PCM:
    """One step of audio on which the model fails."""
    return np.full(CONFIG.step_samples, POISON, np.int16)


def spelling_decoder() -> GreedyDecoder:
    """The greedy decoder of `SpellingModel`."""
    return GreedyDecoder(CONFIG.vocabulary, CONFIG.frame_s)


class SpellingModel:
    """(B, step_samples) int16 -> one-hot log-probs (B, frames_per_step, V), `lookahead` frames late."""

    digest = "00spelling"
    precision = "exact"
    min_rows = 1
    device = torch.device("cpu")

    def __init__(self, lookahead: int = CONFIG.lookahead) -> None:
        self.config = replace(CONFIG, lookahead=lookahead)
        self.input_spec = RowSpec((CONFIG.step_samples,), torch.int16)
        self.state_spec: Mapping[str, RowSpec] = {
            "late": RowSpec((lookahead,), torch.int64),
            "steps": RowSpec((1,), torch.float32),
        }
        self.rows: list[int] = []  # rows of each call so far

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> TorchSlots:
        """The model over `capacity` streams."""
        return TorchSlots(self, capacity=capacity, largest=largest, tile_rows=tile_rows)

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read, delay, answer. Raises: ArithmeticError for poison."""
        if ((inputs == POISON).sum(dim=1) >= POISONED).any():
            raise ArithmeticError("poisoned")
        self.rows.append(len(inputs))
        middle = inputs[:, FRAME // 2 :: FRAME].double()  # (B, frames_per_step)
        symbols = (middle / LEVEL).round().long().clamp(0, len(ENGLISH) - 1)
        line = torch.cat([state["late"], symbols], dim=1)  # (B, lookahead + frames_per_step)
        answers, late = line[:, : symbols.shape[1]], line[:, symbols.shape[1] :]
        log_probs = torch.full((*answers.shape, len(ENGLISH)), -20.0)
        steps = state["steps"] + 1  # (B, 1)
        doubt = (-0.001 * steps.clamp(max=600))[:, :, None].expand(-1, answers.shape[1], 1)  # (B, frames_per_step, 1)
        return log_probs.scatter_(2, answers[:, :, None], doubt), {"late": late, "steps": steps}


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

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """As `SpellingModel`, once the gate is open."""
        if not self._gate.is_set():
            self._entered.put(len(inputs))
            if not self._gate.wait(timeout=WAIT_S):
                raise TimeoutError("the gate was not opened")
        return super().step(inputs, state)
