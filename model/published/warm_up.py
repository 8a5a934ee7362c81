"""Compile the code that every published model uses, whatever its network: features, states, the joiner's search."""

from __future__ import annotations

import numpy as np

from model.published.features import FbankWindows
from model.published.filter_bank import WHISPER
from model.published.frame_joiner import FrameJoiner, Rows
from model.published.states import SlotStates, StateTensor
from model.published.timing import PublishedDescription

ROWS, FRAMES, SYMBOLS = 2, 3, 4


def warm_up() -> None:
    """Compile the code, or load it from disk, so that loading the first model need not wait."""
    _features()
    _states()
    _joiner()


def _features() -> None:
    described = PublishedDescription("", "", "", (), 16_000, window=3, shift=1, frames_per_step=1, frame_s=0.01)
    windows = FbankWindows(WHISPER, described, capacity=1)
    for _ in range(described.first_steps):
        windows.push(np.zeros(1, np.int64), np.zeros((1, described.step_samples), np.int16))


def _states() -> None:
    for numbers in (1, 2):  # units of 4 and of 8 bytes
        states = SlotStates((StateTensor((numbers,), np.dtype(np.float32)),), capacity=1).batched(1)
        slots = np.zeros(1, np.int64)
        states.gather(slots)
        states.scatter(slots, 1)


def _joiner() -> None:
    encoded = np.zeros((ROWS, FRAMES, SYMBOLS), np.float32)
    joiner = FrameJoiner(lambda _, decoded: decoded, Rows(), encoded, np.zeros(SYMBOLS, np.bool_))
    joiner.next_symbols(np.zeros((ROWS, SYMBOLS), np.float32))
