"""Two spelling models for one server, `en` and `es`: the second recognizes "n" as "m"."""

from __future__ import annotations

from typing import Any

from model.config import ENGLISH
from server.models.loading import LoadedModel
from tests.support.servers.recognizers.array_slots import Array, State
from tests.support.servers.recognizers.spelling import SpellingModel, spelling_decoder

N, M = ENGLISH.index("n"), ENGLISH.index("m")


class Spanish(SpellingModel):
    """A spelling model with other weights that recognizes "n" as "m"."""

    digest = "11spanish"

    def step(self, inputs: Array, state: State) -> tuple[Array, State]:
        log_probs, state = super().step(inputs, state)
        swapped = log_probs.copy()
        swapped[:, :, M], swapped[:, :, N] = log_probs[:, :, N], log_probs[:, :, M]
        return swapped, state


def two_models(english: Any = None, spanish: Any = None) -> tuple[LoadedModel, LoadedModel]:
    """The default `en`, and `es`."""
    return (
        LoadedModel.of(english or SpellingModel(), spelling_decoder(), "en"),
        LoadedModel.of(spanish or Spanish(), spelling_decoder(), "es", ("es",)),
    )
