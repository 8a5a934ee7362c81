"""Loading of the models that a server has: their weights, their decoders, and the auxiliary models.

One process loads both parts of a model. Where another process computes its steps, that one calls `load_acoustic` and
sends its facts, and this one calls `load_decoders`, which never reads the weights.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from model import checkpoint
from model.acoustic import load_model
from model.audio import levels
from model.ctc.interface import Decoder, TwoPass
from model.ctc.interface import digest_of as digest_of_parts
from model.decoder import decoder_of, grammars_of, read_grammars, second_passes_of
from model.errors import CheckpointError
from model.facts import AcousticModel, ModelFacts
from model.lm.language_model import LanguageModel
from model.published.files import is_published
from model.published.timing import PublishedDescription
from model.punctuation.tagger import shipped_tagger
from model.turn_ends.turn_model import TurnModel
from server.configuration.models_file import ModelEntry
from server.errors import SettingsError
from server.models.engine_source import AuxiliaryModel, EngineSource, LocalEngines
from server.models.selection import is_english, is_language
from server.models.whisper import whisper_decoder
from server.recognition.segments.speaker_rules import SPEAKER_HZ, SPEAKER_WINDOW
from server.recognition.session_options import Finals
from server.recognition.steps import Auxiliary
from server.settings import Settings

Load = Callable[[ModelEntry | None, Settings], "LoadedModel"]
"""Loads one model by its own settings; None stands for the one that no entry names."""
AUXILIARY_HZ = SPEAKER_HZ  # sample rate of auxiliary models
WINDOWS = {Auxiliary.VAD: 512, Auxiliary.SPEAKERS: SPEAKER_WINDOW}  # in samples; `TOGETHER` has those of a row


def load_served(settings: Settings) -> tuple[tuple[LoadedModel, ...], dict[Auxiliary, EngineSource]]:
    """Load the models that do not wait for demand, the default first, and the auxiliary models.

    Raises: ModelError, SettingsError.
    """
    return load_models(settings, load_local), load_auxiliary(settings)


def load_models(settings: Settings, load: Load) -> tuple[LoadedModel, ...]:
    """Load the models that do not wait for demand, the default first. Raises: ModelError, SettingsError."""
    return tuple(load(entry, own) for entry, own in settings.of_models() if entry is None or not entry.on_demand)


def check_model_files(settings: Settings) -> None:
    """Read the small models and grammars that settings name, before any weights. Raises: ModelError, SettingsError."""
    if settings.turn_model is not None:
        TurnModel.load(settings.turn_model)
    for _, own in settings.of_models():
        if isinstance(own.lm, Path):
            LanguageModel.load(own.lm)  # a decoder then reads the cache of it
        if own.grammars is not None and not (own.model and is_published(own.model)):
            read_grammars(checkpoint.read_config(checkpoint.named(own.model or checkpoint.SHIPPED)), own.grammars)


def load_local(entry: ModelEntry | None, settings: Settings) -> LoadedModel:
    """Load the weights and the decoders of one model into this process. Raises: ModelError."""
    model = load_acoustic(settings)
    return load_decoders(model.facts, entry, settings, LocalEngines.of(model))


def load_acoustic(settings: Settings) -> AcousticModel:
    """Load the weights of one model by its own settings, without decoders. Raises: ModelError."""
    return load_model(
        settings.model,
        device=settings.device,
        precision=settings.precision,
        threads=settings.threads,
        rewriting=settings.graph_rewriting,
    )


def load_decoders(
    facts: ModelFacts, entry: ModelEntry | None, settings: Settings, engines: EngineSource
) -> LoadedModel:
    """Load the decoders of one model by its own settings, from its description alone.

    Raises: ModelError, SettingsError.
    """
    levels.warm_up()
    facts = _with_gate(facts, entry)
    decoder = decoder_of(
        facts, decoder=settings.decoder, beams=settings.beams, lm=settings.lm, reproducible=settings.reproducible
    )
    grammars = grammars_of(facts, settings.beams, settings.grammars) if decoder.supports_bias else {}
    passes = dict[tuple[Finals, str], Decoder]()
    for finals, again in second_passes_of(facts, decoder, settings.lm, settings.model).items():
        passes[finals, ""] = again
        for name, search in grammars.items():
            passes[finals, name] = again.over(search)
    named = (None, ()) if entry is None else (entry.name, entry.languages)
    loaded = LoadedModel.of(facts, decoder, *named, engines=engines, grammars=grammars, passes=passes)
    by_whisper = whisper_decoder(decoder, facts.config, loaded.languages, settings)
    if by_whisper is not None:
        loaded = replace(loaded, passes={("accurate", ""): by_whisper})
    usual = loaded.passes.get((settings.live_finals, ""))
    if isinstance(usual, TwoPass):
        usual.warm_up()
    if is_english(loaded.languages):
        shipped_tagger().warm_up()
    return loaded


def _with_gate(facts: ModelFacts, entry: ModelEntry | None) -> ModelFacts:
    """Return the facts of a model whose words in noise are dropped if its entry asks for it. Raises: SettingsError."""
    if entry is None or entry.drop_words_in_noise is None:
        return facts
    if not isinstance(facts.config, PublishedDescription):
        raise SettingsError(
            f"models: {entry.name!r}: drop_words_in_noise is for published models, and words of this one are always "
            "dropped in noise; leave it out"
        )
    if not entry.drop_words_in_noise:
        return facts
    config = replace(facts.config, doubts_steady_audio=True)
    return replace(facts, config=config, digest=digest_of_parts(facts.digest, "drop_words_in_noise"))


def auxiliary_of(settings: Settings) -> tuple[Auxiliary, ...]:
    """Return the auxiliary models that a server has."""
    return ((Auxiliary.VAD,) if settings.vad != "off" else ()) + ((Auxiliary.SPEAKERS,) if settings.speakers else ())


def auxiliary_models(settings: Settings) -> dict[Auxiliary, AuxiliaryModel]:
    """Load the auxiliary models that the settings name. Raises: ModelError."""
    load: dict[Auxiliary, Callable[[], AuxiliaryModel]] = {Auxiliary.VAD: _load_vad, Auxiliary.SPEAKERS: _load_speakers}
    return {model: load[model]() for model in auxiliary_of(settings)}


def load_auxiliary(settings: Settings) -> dict[Auxiliary, EngineSource]:
    """Load the auxiliary models that the settings name, and return where they compute. Raises: ModelError."""
    return {name: LocalEngines(model) for name, model in auxiliary_models(settings).items()}


def _load_vad() -> AuxiliaryModel:
    from model.vad.silero import SileroVad

    return SileroVad.load()


def _load_speakers() -> AuxiliaryModel:
    from model.speakers.slot_model import SpeakerWeights

    return SpeakerWeights.load()


def speaker_weights() -> str:
    """Return the digest of the speaker model's weights, without loading them. Raises: ModelError."""
    from model.speakers.slot_model import SHIPPED

    try:
        return checkpoint.digest_of(SHIPPED.read_bytes())
    except OSError as error:
        raise CheckpointError(f"speakers: cannot read {SHIPPED}: {error.strerror}; reinstall tutti") from error


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its decoders, the name it is served under, and its languages (empty: not known).

    `engines` compute its steps. `grammars` are decoders of one kind of phrase, which clients choose by name; `passes`
    those with a second pass, by their finals and the name of a grammar, empty for none.
    """

    name: str
    languages: tuple[str, ...]
    facts: ModelFacts
    engines: EngineSource
    decoder: Decoder
    grammars: Mapping[str, Decoder] = field(default_factory=dict)
    passes: Mapping[tuple[Finals, str], Decoder] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        acoustic: AcousticModel | ModelFacts,
        decoder: Decoder,
        name: str | None = None,
        languages: tuple[str, ...] = (),
        *,
        engines: EngineSource | None = None,
        grammars: Mapping[str, Decoder] | None = None,
        passes: Mapping[tuple[Finals, str], Decoder] | None = None,
    ) -> LoadedModel:
        """Name a model, by default by its own name. Facts need `engines`; a model's default is this process.

        Languages: the given ones, else the model's own, else its name if that is a language tag.
        """
        if isinstance(acoustic, ModelFacts):
            assert engines is not None, "facts have no weights"
            facts = acoustic
        else:
            facts, engines = acoustic.facts, engines or LocalEngines.of(acoustic)
        name = name or facts.config.name
        languages = languages or facts.config.languages or ((name,) if is_language(name) else ())
        return cls(name, languages, facts, engines, decoder, grammars or {}, passes or {})

    @property
    def card(self) -> ModelCard:
        """Its description for clients."""
        config = self.facts.config
        return ModelCard.of(self.name, config.version, self.facts.digest, config.architecture)


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
