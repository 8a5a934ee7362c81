"""The decoder, chosen by name and language model, loaded and warm. Every entry point takes it from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import model
from model.acoustic import AcousticModel
from model.config import BEAMS, SECOND_BEAMS, ModelConfig
from model.ctc.beam import BeamDecoder
from model.ctc.greedy import GreedyDecoder, TransducerDecoder
from model.ctc.tokens import Tokens
from model.ctc.two_pass import TwoPassDecoder
from model.ctc.weights import DecodingWeights
from model.ctc.words import Decoder
from model.errors import PublishedModelError
from model.lm.language_model import LanguageModel
from model.published.published_model import PublishedModel

SHIPPED_LM = Path(model.__file__).parent / "weights" / "tutti-words.arpa.gz"
WEIGHTS_SUFFIX = ".weights.json"  # behind the model's name; `tutti lm tune` writes it

DecoderName = Literal["auto", "greedy", "beam"]
LanguageModelName = Path | Literal["off"] | None
"""A file; no language model; or the shipped one."""


@dataclass(frozen=True, slots=True)
class SecondSearch:
    """What decodes an ended segment again: hypotheses kept, and a language model, None for the first search's."""

    beams: int = SECOND_BEAMS
    lm: Path | None = None


def make_decoder(
    *,
    config: ModelConfig,
    decoder: DecoderName = "auto",
    beams: int = BEAMS,
    lm: LanguageModelName = None,
    second: SecondSearch | None = None,
) -> Decoder:
    """Return the decoder, ready for its first stream; greedy decoding has no `second` search.

    Raises: LanguageModelError, which is a ModelError.
    """
    if resolve_decoder(decoder, lm) == "greedy":
        return GreedyDecoder(config.vocabulary, config.frame_s)
    path = language_model_path(lm)
    weights = _weights(path)
    return _searches(config.vocabulary, config.frame_s, beams=beams, path=path, weights=weights, second=second)


def decoder_of(
    acoustic: AcousticModel,
    *,
    decoder: DecoderName = "auto",
    beams: int = BEAMS,
    lm: LanguageModelName = None,
    second: SecondSearch | None = None,
) -> Decoder:
    """Return the decoder of a loaded model, ready for its first stream. Raises: ModelError."""
    if not isinstance(acoustic, PublishedModel):
        return make_decoder(config=acoustic.config, decoder=decoder, beams=beams, lm=lm, second=second)
    frame_s = acoustic.config.frame_s
    if acoustic.transducer is None:
        return decoder_for(acoustic.tokens, frame_s, decoder=decoder, beams=beams, lm=lm, second=second)
    if decoder == "beam" or isinstance(lm, Path):
        raise PublishedModelError(
            f"{acoustic.config.name} is a transducer, which is searched greedily: leave out --decoder beam and --lm"
        )
    return TransducerDecoder(acoustic.tokens, frame_s)


def decoder_for(
    tokens: Tokens,
    frame_s: float,
    *,
    decoder: DecoderName = "auto",
    beams: int = BEAMS,
    lm: LanguageModelName = None,
    second: SecondSearch | None = None,
) -> Decoder:
    """Return the decoder of a published CTC model's symbols, ready for its first stream.

    The shipped language model, of English words, is used where its path is given alone; `auto` is beam search where a
    path is given. Raises: LanguageModelError, VocabularyError, which are ModelErrors.
    """
    path = lm if isinstance(lm, Path) else None
    if decoder == "greedy" or (decoder == "auto" and path is None):
        return GreedyDecoder(tokens, frame_s)
    weights = DecodingWeights(word_bonus=0.0) if path is None else _weights(path)  # the default is our own model's
    return _searches(tokens, frame_s, beams=beams, path=path, weights=weights, second=second)


def _searches(
    vocabulary: Sequence[str] | Tokens,
    frame_s: float,
    *,
    beams: int,
    path: Path | None,
    weights: DecodingWeights,
    second: SecondSearch | None,
) -> BeamDecoder | TwoPassDecoder:
    """Return the search, or both, warm: what streams will run is compiled. Raises: LanguageModelError."""
    language = None if path is None else LanguageModel.load(path)
    search = BeamDecoder(vocabulary, frame_s, beams=beams, lm=language, weights=weights)
    if second is None:
        search.warm_up()
        return search
    if second.lm is not None:
        language, weights = LanguageModel.load(second.lm), _weights(second.lm)
    again = BeamDecoder(vocabulary, frame_s, beams=second.beams, lm=language, weights=weights)
    both = TwoPassDecoder(search, again)
    both.warm_up()
    return both


def resolve_decoder(decoder: DecoderName, lm: LanguageModelName) -> Literal["greedy", "beam"]:
    """The decoder that a name comes to: `auto` is beam search where there is a language model for it."""
    if decoder != "auto":
        return decoder
    return "greedy" if language_model_path(lm) is None else "beam"


def language_model_path(lm: LanguageModelName) -> Path | None:
    """The language model's file: the one that is named, or the shipped one if there is one; None for none."""
    if lm == "off":
        return None
    if lm is not None:
        return lm
    return SHIPPED_LM if SHIPPED_LM.exists() else None


def weights_path(path: Path) -> Path:
    """Where the weights that were tuned for a language model lie: beside it."""
    return path.with_name(path.name.partition(".")[0] + WEIGHTS_SUFFIX)


def _weights(path: Path | None) -> DecodingWeights:
    """The weights that were tuned for this language model, or the defaults where there are none."""
    tuned = None if path is None else weights_path(path)
    return DecodingWeights() if tuned is None or not tuned.exists() else DecodingWeights.load(tuned)
