"""The spelling model with a decoder that writes a character for each letter, so that sessions recognize Mandarin."""

from __future__ import annotations

import numpy as np

from model.config import ENGLISH
from model.ctc.greedy import GreedyDecoder
from server.audio.pcm import PCM
from server.models.loading import LoadedModel
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, spell

HANZI = "零一二三四五六七八九幺两十百千我的卡号是谢个叉嗯那安"
"""What the letters a to z are written as."""


def hanzi_decoder() -> GreedyDecoder:
    """The greedy decoder of `SpellingModel`, in characters."""
    return GreedyDecoder((*ENGLISH[:3], *HANZI), CONFIG.frame_s)


def hanzi_model() -> LoadedModel:
    """A model of Mandarin for a server."""
    return LoadedModel.of(SpellingModel(), hanzi_decoder(), "zh", ("zh",))


def letters(text: str) -> str:
    """Return the letters that are recognized as a text of `HANZI`."""
    return "".join(chr(ord("a") + HANZI.index(character)) for character in text)


def spell_hanzi(text: str, rate: int = CONFIG.sample_rate) -> PCM:
    """Return audio of a text, (S,) int16."""
    return spell(letters(text), rate) if text else np.zeros(0, np.int16)
