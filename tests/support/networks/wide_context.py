"""Facts of a network that has more context in a whole segment, for which the shipped one stands in."""

from __future__ import annotations

import dataclasses

from model.config import ModelConfig
from model.facts import ModelFacts


class WideContext(ModelConfig):
    """A configuration whose network computes more from a whole segment than from a stream."""

    __slots__ = ()

    @property
    def segment_context(self) -> bool:
        return True


def with_segment_context(facts: ModelFacts) -> ModelFacts:
    """Return the facts of the same network as if it had segment context."""
    config = facts.own_config
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return dataclasses.replace(facts, config=WideContext(**fields))
