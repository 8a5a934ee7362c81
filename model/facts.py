"""Facts about a loaded model, without its weights: what decoders and a server need to know of it. They can be pickled.

A process that computes no steps builds its decoders from the facts that another one sends.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.config import BLANK, ModelConfig
from model.ctc.tokens import Tokens
from model.description import ModelDescription
from model.machine.device import CPU, Device


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Configuration, digest, number format (as `--precision` names it), device and symbols of a loaded model.

    The search of a transducer is part of the model's steps, so neither its decoder nor its joiner network is needed.
    """

    config: ModelDescription
    digest: str
    precision: str
    device: Device
    tokens: Tokens
    transducer: bool = False  # its outputs are the symbols that its own search found, not log-probabilities of all
    one_row: bool = False  # its graph takes a batch of one row
    undivided: str = ""  # why a step has one thread though more were asked for; empty if it has them

    @classmethod
    def own(cls, config: ModelConfig, digest: str = "", precision: str = "", device: Device = CPU) -> ModelFacts:
        """Return the facts about a model of this project."""
        return cls(config, digest, precision, device, Tokens.of(config.vocabulary, BLANK))

    @property
    def published(self) -> bool:
        """Whether others published it: it is not a model of this project."""
        return not isinstance(self.config, ModelConfig)

    @property
    def own_config(self) -> ModelConfig:
        """Configuration of a model of this project, one that is not `published`."""
        assert isinstance(self.config, ModelConfig), "it is published"
        return self.config
