"""Facts about a loaded model, without its weights: what decoders and a server need to know of it. They can be pickled.

A process that computes no steps builds its decoders from the facts that another one sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from model.config import BLANK, ModelConfig
from model.ctc.tokens import Tokens
from model.description import ModelDescription
from model.machine.device import AnyDevice, Device


@dataclass(frozen=True, slots=True)
class PublishedFacts:
    """What decoders and warnings need of a published model."""

    tokens: Tokens
    transducer: bool  # its outputs are the symbols that its own search found, not log-probabilities of all symbols
    one_row: bool  # its graph takes a batch of one row
    undivided: str  # why a step has one thread though more were asked for; empty if it has them


class HasFacts(Protocol):
    """A loaded model, or its `ModelFacts`."""

    @property
    def config(self) -> ModelDescription:
        """Its sample rate, step and symbols."""

    @property
    def digest(self) -> str:
        """Hexadecimal digest of its weights."""

    @property
    def precision(self) -> str:
        """Its number format, as `--precision` names it."""

    @property
    def device(self) -> AnyDevice:
        """Where it computes."""

    @property
    def published(self) -> PublishedFacts | None:
        """Symbols and limits of a published model; None for those of this project."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Configuration, digest, precision and device of a loaded model; `published` is None for those of this project.

    The search of a transducer is part of the model's steps, so neither its decoder nor its joiner network is needed.
    """

    config: ModelDescription
    digest: str
    precision: str
    device: Device
    published: PublishedFacts | None = None

    @property
    def own_config(self) -> ModelConfig:
        """Configuration of a model of this project, one that is not `published`."""
        assert isinstance(self.config, ModelConfig), "it has no `published` facts"
        return self.config

    @property
    def tokens(self) -> Tokens:
        """Symbols of its outputs."""
        return Tokens.of(self.own_config.vocabulary, BLANK) if self.published is None else self.published.tokens


def facts_of(model: HasFacts) -> ModelFacts:
    """Return the facts about a loaded model; those of `ModelFacts` are itself."""
    if isinstance(model, ModelFacts):
        return model
    device = Device("cuda" if model.device.type == "cuda" else "cpu")
    return ModelFacts(model.config, model.digest, model.precision, device, model.published)
