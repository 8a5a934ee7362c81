"""The served model: loading, with decoder and voice-activity model; its card; the model names that clients may send."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from batching.slot_model import SlotModel
from model.acoustic import AcousticModel, load_model
from model.ctc.words import Decoder
from model.decoder import decoder_of
from model.description import ModelDescription
from model.runtime import set_up_torch
from server.errors import BadParameter
from server.settings import Settings


def load_served(settings: Settings) -> tuple[AcousticModel, Decoder, VadModel | None]:
    """Load model, decoder and VAD by the settings, and set torch up for them. Raises: ModelError."""
    set_up_torch(settings.threads)
    model = load_model(settings.model, device=settings.device, precision=settings.precision)
    decoder = decoder_of(model, decoder=settings.decoder, beams=settings.beams, lm=settings.lm)
    return model, decoder, load_vad(settings)


def load_vad(settings: Settings) -> VadModel | None:
    """Load the voice-activity model if the settings name one. Raises: ModelError."""
    if settings.vad == "off":
        return None
    from model.vad import SileroVad

    return SileroVad.load(device="cpu")


class Servable(Protocol):
    """A model that can be put behind an engine."""

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> SlotModel:
        """Return it over `capacity` streams, in batches of at most `largest`.

        With `tile_rows`, its arithmetic runs on exactly so many rows at a time, where that makes a difference.
        """


class ServedModel(Servable, Protocol):
    """The acoustic model: int16 PCM in steps, log-probs out."""

    @property
    def config(self) -> ModelDescription:
        """The configuration of its training."""

    @property
    def digest(self) -> str:
        """Hexadecimal digest of its weights."""

    @property
    def precision(self) -> str:
        """Its arithmetic, as `--precision` names it."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""


class VadModel(Servable, Protocol):
    """A model over windows of 16-bit samples; the output is one probability of speech each, (B, 1)."""

    @property
    def step_samples(self) -> int:
        """Samples of a window."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Description of the model for clients. `uuid` follows from the digest of its weights."""

    name: str
    version: str
    uuid: str

    @classmethod
    def of(cls, name: str, version: str, digest: str) -> ModelCard:
        """Return the card of a model with these weights."""
        return cls(name, version, str(uuid.uuid5(uuid.NAMESPACE_OID, digest)))

    @property
    def info(self) -> dict[str, str]:
        """The wire form."""
        return {"name": self.name, "version": self.version, "arch": "ctc-rnn"}


@dataclass(frozen=True, slots=True)
class Models:
    """Names that clients may send for the one model that is served."""

    name: str
    aliases: Mapping[str, str]
    strict: bool

    def check(self, asked: str) -> None:
        """Raises: BadParameter when names are strict and this one is unknown."""
        if self.strict and asked != self.name and asked not in self.aliases:
            raise BadParameter(f"model: {asked[:64]!r} is not served here")
