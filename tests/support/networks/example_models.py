"""The networks of `examples/` as slot models: the shipped language model, and random weights of the others."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples import captions, forecast
from examples.network import Floats
from examples.typing_suggestions import LanguageModel


class AnyIds(LanguageModel):
    """The language model, with ids beyond its pieces wrapped around: tests draw any number."""

    def step(self, inputs: NDArray[Any], hidden: Floats) -> tuple[Floats, Floats]:
        return super().step(inputs % len(self.pieces), hidden)


class AnyWords(captions.Captioner):
    """The captioner, with numbers beyond its words wrapped around."""

    def step(self, inputs: NDArray[Any], states: Floats) -> tuple[NDArray[np.int64], Floats]:
        inputs = inputs.copy()
        inputs[:, 0] %= len(captions.WORDS)
        return super().step(inputs, states)


@cache
def language_model() -> AnyIds:
    return AnyIds()


@cache
def captioner() -> AnyWords:
    return AnyWords(captions.train(updates=0))


@cache
def forecaster() -> forecast.Forecaster:
    return forecast.Forecaster(forecast.train(updates=0))
