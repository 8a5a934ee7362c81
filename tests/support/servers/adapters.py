"""Helpers of adapter tests: words for events, and an adapter's actions by kind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from model.ctc.words import Word
from server.audio.pcm import PCM
from server.streaming.adapter import Actions, PushAudio, SendFrame

RATE = 16_000


def words(text: str, start_s: float = 0.0) -> tuple[Word, ...]:
    """Return consecutive words of a tenth of a second each."""
    return tuple(
        Word(word, start_s + index / 10, start_s + (index + 1) / 10, 0.9) for index, word in enumerate(text.split())
    )


def frames_of(actions: Actions) -> list[Any]:
    """Return the frames of the actions, decoded."""
    return [json.loads(action.payload) for action in actions if isinstance(action, SendFrame)]


def other_actions(actions: Actions) -> list[Any]:
    """Return the actions that are neither frames nor audio."""
    return [action for action in actions if not isinstance(action, SendFrame | PushAudio)]


def audio_of(actions: Iterable[object]) -> PCM:
    """Return the audio of the actions, concatenated, (S,)."""
    return np.concatenate(
        [np.empty(0, np.int16), *(action.samples for action in actions if isinstance(action, PushAudio))]
    )


def noise(seconds: float, rate: int = RATE) -> PCM:
    """Return random samples, so that a lost one is detected."""
    return np.random.default_rng(7).integers(-9_000, 9_000, round(seconds * rate)).astype(np.int16)
