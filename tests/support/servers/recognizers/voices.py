"""A speaker model that reads the voice from the audio itself, next to the letters of `SpellingModel`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from server.audio.pcm import PCM
from tests.support.servers.recognizers.array_slots import Array, ArraySlots, Row, State
from tests.support.servers.recognizers.spelling import LEVEL, spell

OFFSET = 100  # of the samples of a voice: far below half a letter's level
SIZE = 256
HOP, WINDOW = 5, 20  # steps


def say(text: str, voice: int, rate: int = 16_000) -> PCM:
    """Return audio of `text` in a voice, numbered from 0."""
    return spell(text, rate) + np.int16(OFFSET * (voice + 1))


class Voices:
    """(B, 1280) int16 -> (B, 257): each fifth step the voice of most of the last 20 steps, as a unit vector."""

    digest = "voices"
    step_samples = 1_280
    input_spec = (step_samples,), np.int16
    state_spec: Mapping[str, Row] = {"last": ((WINDOW,), np.int64), "steps": ((1,), np.int64)}

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> ArraySlots:
        """The model over `capacity` streams."""
        del tile_rows
        return ArraySlots(self, capacity=capacity, largest=largest)

    def step(self, inputs: Array, state: State) -> tuple[Array, State]:
        """Number the voice of this step from 1, 0 for none, and answer."""
        rests = np.rint((inputs.astype(np.int64) % LEVEL) / OFFSET).astype(np.int64)  # (B, S)
        now = [int(np.bincount(row[row > 0], minlength=2).argmax()) if row.any() else 0 for row in rests]
        last = np.concatenate([state["last"][:, 1:], np.array(now, np.int64)[:, None]], axis=1)
        steps = state["steps"] + 1
        out = np.zeros((len(inputs), 1 + SIZE), np.float32)
        for row, voices in enumerate(last):
            if steps[row, 0] % HOP == 0 and voices.any():
                out[row, 0], out[row, int(np.bincount(voices[voices > 0]).argmax())] = WINDOW * 0.08, 1.0
        return out, {"last": last, "steps": steps}
