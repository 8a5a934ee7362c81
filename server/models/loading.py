"""Loading of the models that a server has, each with its decoder, and of the voice-activity model."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from batching.slot_model import SlotModel
from model import checkpoint, levels
from model.acoustic import load_model
from model.ctc.words import Decoder
from model.decoder import accurate_of, decoder_of, grammars_of
from model.description import ModelDescription, Place
from model.published.files import is_published
from server.configuration.models_file import ModelEntry
from server.errors import SettingsError
from server.models.selection import is_language
from server.settings import Settings


def load_served(settings: Settings) -> tuple[tuple[LoadedModel, ...], VadModel | None]:
    """Load the models that do not wait for demand, the default first, and VAD.

    Raises: ModelError, SettingsError.
    """
    models = tuple(_load(entry, own) for entry, own in settings.of_models() if entry is None or not entry.on_demand)
    return models, load_vad(settings)


def outlines_of(settings: Settings) -> tuple[ModelOutline, ...]:
    """Return what is known of each named model without its weights. Raises: ModelError, SettingsError."""
    return tuple(_outline(entry, own) for entry, own in settings.of_models() if entry is not None)


def _outline(entry: ModelEntry, settings: Settings) -> ModelOutline:
    load = partial(_load, entry, settings)
    if is_published(entry.path):
        if entry.on_demand and not entry.languages:
            raise SettingsError(
                f"models_file: the model {entry.name!r} is loaded on demand, so `languages` must be set for it"
            )
        return ModelOutline(entry.name, entry.languages, ModelCard(entry.name, "", ""), load, entry.on_demand)
    config, digest = checkpoint.streaming_outline(checkpoint.named(entry.path))
    card = ModelCard.of(entry.name, config.version, digest, config.architecture)
    return ModelOutline(entry.name, entry.languages or config.languages, card, load, entry.on_demand)


def _load(entry: ModelEntry | None, settings: Settings) -> LoadedModel:
    """Load one model and its decoder by its own settings. Raises: ModelError."""
    model = load_model(
        settings.model,
        device=settings.device,
        precision=settings.precision,
        threads=settings.threads,
        rewriting=settings.graph_rewriting,
    )
    if model.config.doubts_steady_audio:
        levels.warm_up()
    decoder = decoder_of(model, decoder=settings.decoder, beams=settings.beams, lm=settings.lm)
    grammars = grammars_of(model, settings.beams, settings.grammars) if decoder.supports_bias else {}
    accurate = accurate_of(model, decoder, settings.lm)
    if accurate is not None and settings.finals == "accurate":
        accurate.warm_up()
    named = (None, ()) if entry is None else (entry.name, entry.languages)
    return LoadedModel.of(model, decoder, *named, grammars=grammars, accurate=accurate)


def load_vad(settings: Settings) -> VadModel | None:
    """Load the voice-activity model if the settings name one. Raises: ModelError."""
    if settings.vad == "off":
        return None
    from model.vad import SileroVad

    return SileroVad.load()


class BatchedModel(Protocol):
    """A model that an engine can step."""

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> SlotModel:
        """Return the model over `capacity` streams, in batches of at most `largest`.

        With `tile_rows` its arithmetic runs on exactly that many rows at a time, where that makes a difference.
        """


class AcousticModel(BatchedModel, Protocol):
    """A streaming acoustic model: int16 PCM in steps, log-probabilities out."""

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
    def device(self) -> Place:
        """Where it computes."""


class VadModel(BatchedModel, Protocol):
    """A model over windows of 16-bit samples; the output is one probability of speech each, (B, 1)."""

    @property
    def step_samples(self) -> int:
        """Samples of a window."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its decoders, the name it is served under, and its languages (empty: not known).

    `grammars` are decoders of one kind of phrase, which clients choose by name; `accurate` makes accurate finals.
    """

    name: str
    languages: tuple[str, ...]
    acoustic: AcousticModel
    decoder: Decoder
    grammars: Mapping[str, Decoder] = field(default_factory=dict)
    accurate: Decoder | None = None

    @classmethod
    def of(
        cls,
        acoustic: AcousticModel,
        decoder: Decoder,
        name: str | None = None,
        languages: tuple[str, ...] = (),
        *,
        grammars: Mapping[str, Decoder] | None = None,
        accurate: Decoder | None = None,
    ) -> LoadedModel:
        """Name a model, by default by its own name.

        Languages: the given ones, else the model's own, else its name if that is a language tag.
        """
        name = name or acoustic.config.name
        languages = languages or acoustic.config.languages or ((name,) if is_language(name) else ())
        return cls(name, languages, acoustic, decoder, grammars or {}, accurate)

    @property
    def card(self) -> ModelCard:
        """Its description for clients."""
        config = self.acoustic.config
        return ModelCard.of(self.name, config.version, self.acoustic.digest, config.architecture)


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model that can be loaded: what is known of it before, and the function that loads it.

    `on_demand`: the first request for it loads it.
    """

    name: str
    languages: tuple[str, ...]
    card: ModelCard
    load: Callable[[], LoadedModel]
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Description of a model for clients. `uuid` follows from the digest of its weights."""

    name: str
    version: str
    uuid: str
    architecture: str = "ctc-rnn"

    @classmethod
    def of(cls, name: str, version: str, digest: str, architecture: str = "ctc-rnn") -> ModelCard:
        """Return the card of a model with these weights."""
        return cls(name, version, str(uuid.uuid5(uuid.NAMESPACE_OID, digest)), architecture)

    @property
    def info(self) -> dict[str, str]:
        """The wire form."""
        return {"name": self.name, "version": self.version, "arch": self.architecture}
