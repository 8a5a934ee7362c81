"""The decoder that the settings ask for: chosen, loaded and warm. Every entry point takes it from here."""

from __future__ import annotations

from pathlib import Path

import model
from model.config import ModelConfig
from model.ctc.beam import BeamDecoder
from model.ctc.greedy import GreedyDecoder
from model.ctc.weights import DecodingWeights
from model.ctc.words import Decoder
from model.lm.language_model import LanguageModel
from server.settings import Settings

SHIPPED_LM = Path(model.__file__).parent / "weights" / "tutti-words.arpa.gz"
WEIGHTS_SUFFIX = ".weights.json"  # behind the model's name; `tutti lm tune` writes it


def make_decoder(settings: Settings, config: ModelConfig) -> Decoder:
    """Return the decoder, ready for its first stream. Raises: LanguageModelError, which is a ModelError."""
    path = language_model_path(settings)
    if settings.decoder == "greedy" or (settings.decoder == "auto" and path is None):
        return GreedyDecoder(config.vocabulary, config.frame_s)
    return _beam(config, settings.beams, path)


def language_model_path(settings: Settings) -> Path | None:
    """The language model that the settings name, else the shipped one if there is one; None for none."""
    if settings.lm == "off":
        return None
    if settings.lm is not None:
        return settings.lm
    return SHIPPED_LM if SHIPPED_LM.exists() else None


def weights_path(path: Path) -> Path:
    """Where the weights that were tuned for a language model lie: beside it."""
    return path.with_name(path.name.partition(".")[0] + WEIGHTS_SUFFIX)


def _beam(config: ModelConfig, beams: int, path: Path | None) -> BeamDecoder:
    """Load the language model with the weights that were tuned for it, and compile what streams will run."""
    lm = None if path is None else LanguageModel.load(path)
    decoder = BeamDecoder(config.vocabulary, config.frame_s, beams=beams, lm=lm, weights=_weights(path))
    decoder.warm_up()
    return decoder


def _weights(path: Path | None) -> DecodingWeights:
    """What was tuned for this language model; without that, or without a model, the defaults."""
    tuned = None if path is None else weights_path(path)
    return DecodingWeights() if tuned is None or not tuned.exists() else DecodingWeights.load(tuned)
