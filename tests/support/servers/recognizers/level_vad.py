"""A voice detector by the level of its windows, whose answers a test may delay."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from server.models.loading import WINDOWS
from server.recognition.steps import TOGETHER, Auxiliary
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.recognizers.array_slots import Array, ArraySlots, Row, State

WINDOW = WINDOWS[Auxiliary.VAD]


class LevelVad:
    """A window is speech if it has a nonzero sample; if speech `trails`, the window after it, too."""

    step_samples = WINDOW * TOGETHER[Auxiliary.VAD]
    input_spec = (step_samples + 1,), np.int16
    state_spec: Mapping[str, Row] = {"loud": ((1,), np.bool_)}

    def __init__(self, *, trails: bool = False) -> None:
        self._trails = trails
        self.gate = threading.Event()  # it answers while this is set
        self.gate.set()

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> ArraySlots:
        return ArraySlots(self, capacity=capacity, largest=largest)

    def step(self, inputs: Array, state: State) -> tuple[Array, State]:
        self.gate.wait(WAIT_S)
        loud = inputs[:, :-1].reshape(len(inputs), -1, WINDOW).any(axis=2)  # (B, W)
        with_last = np.concatenate((state["loud"], loud), axis=1)
        spoken = loud | (with_last[:, :-1] & self._trails)
        last = np.take_along_axis(with_last, inputs[:, -1:].astype(np.int64), axis=1)
        return np.float32(0.1) + np.float32(0.8) * spoken, {"loud": last}
