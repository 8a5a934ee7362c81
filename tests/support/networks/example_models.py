"""The networks of `examples/` as slot models: the shipped language model, and random weights of the others."""

from __future__ import annotations

from functools import cache
from typing import Any

from numpy.typing import NDArray

from examples.network import Floats
from examples.typing_suggestions import LanguageModel


class AnyIds(LanguageModel):
    """The language model, with ids beyond its pieces wrapped around: tests draw any number."""

    def step(self, inputs: NDArray[Any], hidden: Floats) -> tuple[Floats, Floats]:
        return super().step(inputs % len(self.pieces), hidden)


@cache
def language_model() -> AnyIds:
    return AnyIds()
