"""What tests of adapters share: words of a recogniser that does not exist, and what an adapter asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from model.ctc.words import Word
from server.audio.pcm import PCM
from server.streaming.adapter import Actions, Hear, Say

RATE = 16_000


def words(text: str, start_s: float = 0.0) -> tuple[Word, ...]:
    """Words of a tenth of a second each, one behind the other."""
    return tuple(
        Word(word, start_s + index / 10, start_s + (index + 1) / 10, 0.9) for index, word in enumerate(text.split())
    )


def said(actions: Actions) -> list[Any]:
    """The frames among the actions."""
    return [json.loads(action.payload) for action in actions if isinstance(action, Say)]


def asked(actions: Actions) -> list[Any]:
    """The other actions, but for the audio."""
    return [action for action in actions if not isinstance(action, Say | Hear)]


def heard(actions: Iterable[object]) -> PCM:
    """All audio among the actions, (S,)."""
    return np.concatenate([np.empty(0, np.int16), *(action.samples for action in actions if isinstance(action, Hear))])


def noise(seconds: float, rate: int = RATE) -> PCM:
    """Samples that are all different, so that one lost shows."""
    return np.random.default_rng(7).integers(-9_000, 9_000, round(seconds * rate)).astype(np.int16)
