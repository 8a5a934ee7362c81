"""The model that is served: loading it with its decoder and voice-activity model, its card, the names it answers to."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from batching.step_model import StepModel
from model.acoustic import AcousticModel
from model.config import ModelConfig
from model.ctc.words import Decoder
from model.decoder import make_decoder
from model.runtime import set_up_torch
from server.errors import BadParameter
from server.settings import Settings


def load_served(settings: Settings) -> tuple[AcousticModel, Decoder, VadModel | None]:
    """Load what the settings name, and set the process's compute threads. Raises: ModelError."""
    set_up_torch(settings.threads)
    model = AcousticModel.load(settings.model, device=settings.device, precision=settings.precision)
    decoder = make_decoder(config=model.config, decoder=settings.decoder, beams=settings.beams, lm=settings.lm)
    return model, decoder, load_vad(settings)


def load_vad(settings: Settings) -> VadModel | None:
    """Load the voice-activity model that the settings ask for."""
    if settings.vad == "off":
        return None
    from model.vad import SileroVad

    return SileroVad.load(device="cpu")


class ServedModel(StepModel, Protocol):
    """A step model that says what it is."""

    @property
    def config(self) -> ModelConfig:
        """What it learned with."""

    @property
    def digest(self) -> str:
        """Hexadecimal digest of its weights."""


class VadModel(StepModel, Protocol):
    """A step model over windows of 16-bit samples, (B, S), answering one probability of speech each."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What clients are told about the model. `uuid` follows from the digest of its weights."""

    name: str
    version: str
    uuid: str

    @classmethod
    def of(cls, name: str, version: str, digest: str) -> ModelCard:
        """Name a model by its weights."""
        return cls(name, version, str(uuid.uuid5(uuid.NAMESPACE_OID, digest)))

    @property
    def info(self) -> dict[str, str]:
        """The wire form."""
        return {"name": self.name, "version": self.version, "arch": "ctc-rnn"}


@dataclass(frozen=True, slots=True)
class Models:
    """Which model names a client may ask for; every alias leads to the one model that is served."""

    name: str
    aliases: Mapping[str, str]
    strict: bool

    def check(self, asked: str) -> None:
        """Raises: BadParameter when names are strict and this one is unknown."""
        if self.strict and asked != self.name and asked not in self.aliases:
            raise BadParameter(f"model: {asked[:64]!r} is not served here")
