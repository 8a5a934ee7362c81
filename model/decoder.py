"""Construction of decoders by name and language model, ready for their first stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import model
from model import checkpoint
from model.attention_config import AttentionConfig, OwnConfig
from model.config import BEAMS
from model.ctc.acknowledgements import SUFFIX as ACKNOWLEDGEMENTS_SUFFIX
from model.ctc.acknowledgements import AcknowledgementNetwork, AcknowledgingDecoder
from model.ctc.beam import BeamDecoder
from model.ctc.greedy import GreedyDecoder
from model.ctc.interface import Decoder
from model.ctc.phones import PhoneLexicon
from model.ctc.rewind import BeamRewind, RewindDecoder
from model.ctc.two_pass import TwoPassDecoder
from model.ctc.weights import PHONES_WEIGHTS, DecodingWeights
from model.digit_reader import NETWORK, DigitReader
from model.errors import LanguageModelError, LexiconError, PublishedModelError
from model.facts import ModelFacts, TransducerSource
from model.lexicon.lexicon import SUFFIX as LEXICON_SUFFIX
from model.lexicon.lexicon import Lexicon, kept_lexicon
from model.lm.language_model import LanguageModel
from model.moonshine.transcriber import SegmentTranscriber
from model.segment_model import reader_for
from model.transducer.beam import BEAMS as TRANSDUCER_BEAMS
from model.transducer.beam import MAX_BEAMS as MAX_TRANSDUCER_BEAMS
from model.transducer.beam import TransducerBeamDecoder
from model.transducer.decoder import TransducerDecoder
from model.transducer.language import WEIGHTS as TRANSDUCER_WEIGHTS
from model.transducer.language import PieceLanguage
from model.transducer.rewind import TransducerRewind

SHIPPED_LM = Path(model.__file__).parent / "weights" / "tutti-words.arpa.gz"
OTHER_LMS = {"zh": "tutti-characters.arpa.gz"}  # next to it, by language
GRAMMARS = SHIPPED_LM.with_name("grammars")  # LANGUAGE-NAME.arpa
GRAMMAR_SUFFIXES = (".arpa", ".arpa.gz")
_GRAMMAR_NAME = re.compile(r"[a-z]{2,3}-[A-Za-z0-9_.-]+")
WEIGHTS_SUFFIX = ".weights.json"  # after the model's name; `tutti lm tune` writes it
PHONES_WEIGHTS_SUFFIX = ".phones.weights.json"  # the same for searches over phones

SECOND_PASS_BEAMS = 512  # of accurate finals. Source: model/LOG.md
CONTEXT_LEAD_S = 0.5  # of a second pass that is only the network again, and of which more would be a large part

DecoderName = Literal["auto", "greedy", "beam"]
SecondPassName = Literal["context", "accurate"]
LanguageModelName = Path | Literal["off"] | None
"""A file; no language model; or the shipped one."""


@dataclass(frozen=True, slots=True)
class Language:
    """What a beam search knows of words: n-grams, their sounds for a model that hears phones, and weights."""

    lm: LanguageModel | None = None
    phone_lexicon: PhoneLexicon | None = None
    weights: DecodingWeights = DecodingWeights()  # noqa: RUF009 - frozen

    @classmethod
    def load(
        cls, path: Path | None, phones: Sequence[str] = (), language: str = "en", acoustic_models: Sequence[str] = ()
    ) -> Language:
        """Read a language model, the lexicon next to it or else the language's, and the weights tuned for it.

        `acoustic_models`: as in `tuned_weights`. Raises: LanguageModelError, LexiconError; ModelError for weights.
        """
        if path is None:
            return cls()
        lm, untuned = LanguageModel.load(path), PHONES_WEIGHTS if phones else DecodingWeights()
        weights = tuned_weights(path, phones, acoustic_models) or untuned
        return cls(lm, phone_lexicon_of(lm, path, phones, language) if phones else None, weights)


def phone_lexicon_of(lm: LanguageModel, path: Path, phones: Sequence[str], language: str = "en") -> PhoneLexicon:
    """The phones of a model's words, by the lexicon next to it or else the language's. Raises: LexiconError."""
    own = lexicon_path(path)
    shipped = lexicon_path(language_model_path(None, language) or SHIPPED_LM)
    try:
        lexicon = _shared_lexicon(shipped) if own == shipped or not own.exists() else kept_lexicon(own)
        return PhoneLexicon.of_model(phones, lexicon, lm, path)
    except ValueError as error:
        raise LexiconError(f"{path}: {error}") from error


@lru_cache(maxsize=2)
def _shared_lexicon(path: Path) -> Lexicon:
    """A language's lexicon, which the search and its grammars share. Raises: LexiconError."""
    return kept_lexicon(path)


def grammars_of(facts: ModelFacts, beams: int | None = None, folder: Path | None = None) -> dict[str, BeamDecoder]:
    """Searches for one kind of phrase, by the names that clients choose them by.

    They are n-grams `LANGUAGE-NAME.arpa` of the language: those that ship, and those of the operator's folder, which
    come first. Models that are published have none. Raises: LanguageModelError, LexiconError.
    """
    if facts.published:
        return {}
    searches = {}
    for name, language in read_grammars(facts.own_config, folder).items():
        searches[name] = own_search(facts.own_config, beams, language, keeps_blank=True)
        searches[name].warm_up()
    return searches


def read_grammars(config: OwnConfig, folder: Path | None) -> dict[str, Language]:
    """The n-grams of `grammars_of`, which need no weights. Raises: LanguageModelError, LexiconError."""
    begin = f"{config.language}-"
    paths = [*_grammar_files(GRAMMARS), *([] if folder is None else _grammar_files(folder))]
    named = {path.name.partition(".arpa")[0]: path for path in paths}
    own = {name.removeprefix(begin): path for name, path in named.items() if name.startswith(begin)}
    return {name: Language.load(path, config.phones, config.language) for name, path in sorted(own.items())}


def _grammar_files(folder: Path) -> list[Path]:
    """The grammars of a folder. Raises: LanguageModelError for no folder, and for a name that says no language."""
    if not folder.is_dir():
        raise LanguageModelError(f"--grammars {folder}: there is no such folder")
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(GRAMMAR_SUFFIXES))
    for path in paths:
        if not _GRAMMAR_NAME.fullmatch(path.name.partition(".arpa")[0]):
            raise LanguageModelError(
                f"--grammars: {path} is not named LANGUAGE-NAME.arpa or LANGUAGE-NAME.arpa.gz, such as en-digits.arpa"
            )
    if not paths:
        raise LanguageModelError(f"--grammars {folder}: it has no LANGUAGE-NAME.arpa or LANGUAGE-NAME.arpa.gz")
    return paths


def own_search(
    config: OwnConfig,
    beams: int | None,
    language: Language,
    *,
    limits: tuple[int, float] | None = None,
    **options: Any,
) -> BeamDecoder:
    """The beam search over one of our models' outputs: phones where both sides know them, else letters.

    `limits`: hypotheses, unless `beams` says how many, and the nats within which they lie; by default the model's.
    """
    width, reach = limits or config.search_limits
    return BeamDecoder(
        config.vocabulary,
        config.frame_s,
        outputs=config.outputs,
        beams=width if beams is None else beams,
        reach=reach,
        lm=language.lm,
        phone_lexicon=language.phone_lexicon,
        weights=language.weights,
        **options,
    )


def decoder_of(
    facts: ModelFacts,
    *,
    decoder: DecoderName = "auto",
    beams: int | None = None,
    lm: LanguageModelName = None,
    reproducible: bool = False,
) -> Decoder:
    """Return the decoder of a loaded model, ready for its first stream. Raises: ModelError.

    The shipped language model, of English words, is used for a published model where its path is given alone; `auto` is
    beam search where there is a language model. `reproducible`: no row of a transducer may depend on others.
    """
    config, tokens = facts.config, facts.tokens
    if facts.transducer is not None:
        return _transducer(facts, facts.transducer, decoder, beams, lm, alone=reproducible)
    if facts.published and lm is None:
        lm = "off"
    search: BeamDecoder | GreedyDecoder
    if resolve_decoder(decoder, lm) == "greedy":
        search = GreedyDecoder(tokens, config.frame_s)
    elif not facts.published:
        own = facts.own_config
        path = language_model_path(lm, own.language)
        tuned_for = own.trained_name, own.architecture
        search = own_search(own, beams, Language.load(path, own.phones, own.language, tuned_for))
    else:
        words = Language.load(lm) if isinstance(lm, Path) else Language(weights=DecodingWeights(word_bonus=0.0))
        beams = BEAMS if beams is None else beams
        search = BeamDecoder(tokens, config.frame_s, beams=beams, lm=words.lm, weights=words.weights)
    search.warm_up()
    return search


def _transducer(
    facts: ModelFacts,
    transducer: TransducerSource,
    decoder: DecoderName,
    beams: int | None,
    lm: LanguageModelName,
    *,
    alone: bool,
) -> TransducerDecoder:
    """Return the decoder of a transducer: greedy unless beam search or a language model is asked for.

    Raises: PublishedModelError, LanguageModelError; ModelError for the weights.
    """
    name, frame_s = facts.config.name, facts.config.frame_s
    path = lm if isinstance(lm, Path) else None
    if path is not None and decoder == "greedy":
        raise PublishedModelError(f"{name}: greedy search has no language model: leave out --lm, or --decoder greedy")
    if decoder != "beam" and path is None:
        return TransducerDecoder(transducer.load(), frame_s, transducer.digest, alone=alone)
    beams = TRANSDUCER_BEAMS if beams is None else beams
    if not 1 <= beams <= MAX_TRANSDUCER_BEAMS:
        raise PublishedModelError(
            f"{name} is a transducer, whose beam search has 1 to {MAX_TRANSDUCER_BEAMS} beams, not --beams {beams}"
        )
    language = None
    if path is not None:
        weights = tuned_weights(path, (), (name,)) or TRANSDUCER_WEIGHTS
        try:
            language = PieceLanguage(LanguageModel.load(path), facts.tokens, weights)
        except LanguageModelError as error:
            raise LanguageModelError(f"--lm {path} cannot be used with {name}: {error}") from error
    networks = transducer.load()
    return TransducerBeamDecoder(networks, frame_s, transducer.digest, beams=beams, alone=alone, language=language)


def rewind_of(decoder: Decoder) -> RewindDecoder | None:
    """Return the decoder whose taken text can be searched for key terms again, None if there is none."""
    if isinstance(decoder, BeamDecoder):
        return BeamRewind(decoder)
    return TransducerRewind(decoder) if isinstance(decoder, TransducerDecoder) and decoder.supports_bias else None


def acknowledging_of(facts: ModelFacts, decoder: Decoder) -> AcknowledgingDecoder | None:
    """Return the decoder that marks acknowledgements by their sound, None for models without a network for it.

    Raises: ModelError.
    """
    if facts.published or not isinstance(decoder, BeamDecoder) or decoder.phone_lexicon is None:
        return None
    path = SHIPPED_LM.with_name(facts.own_config.trained_name + ACKNOWLEDGEMENTS_SUFFIX)
    if not path.exists():
        return None
    return AcknowledgingDecoder(decoder, AcknowledgementNetwork.load(path, decoder.phone_lexicon.phones))


def second_passes_of(
    facts: ModelFacts, decoder: Decoder, lm: LanguageModelName = None, checkpoint: Path | None = None
) -> dict[SecondPassName, TwoPassDecoder]:
    """Decoders whose finished segments get a second pass, by the finals for which they are.

    `checkpoint`: file of the model, None for the shipped one. A network with `segment_context` processes the segment
    again: for `context` that is searched as the stream is, whose own search may then be narrower. For `accurate` the
    search is wider, and with the shipped n-grams an encoder-decoder network writes the segment as well; other networks
    would compute the stream's outputs again, which are kept, so it searches those. Empty for published models, for
    greedy decoding, and for a network with `segment_context` in floats. Raises: ModelError.
    """
    if facts.published or not isinstance(decoder, BeamDecoder):
        return {}
    config = facts.own_config
    if config.segment_context and facts.precision != "int8":
        return {}
    reader = reader_for(facts, checkpoint) if config.segment_context else None
    language = Language(decoder.lm, decoder.phone_lexicon, decoder.weights)
    writes = language_model_path(lm, config.language) == SHIPPED_LM
    writes = writes and config.sample_rate == SegmentTranscriber.sample_rate
    wide = own_search(config, SECOND_PASS_BEAMS, language)
    digits = digit_reader_of(config, language) if writes and isinstance(config, AttentionConfig) else None
    passes: dict[SecondPassName, TwoPassDecoder] = {
        "accurate": TwoPassDecoder(decoder, wide, reader, SegmentTranscriber() if writes else None, digits=digits)
    }
    if isinstance(config, AttentionConfig):
        width, _ = config.interim_limits
        narrow = own_search(config, min(width, decoder.beams), language, limits=config.interim_limits)
        marking = acknowledging_of(facts, decoder)
        sounds = None if marking is None else marking.network
        passes["context"] = TwoPassDecoder(
            narrow, decoder, reader, lead_s=CONTEXT_LEAD_S, acknowledgements=sounds, digits=digits
        )
    return passes


def digit_reader_of(config: OwnConfig, language: Language) -> DigitReader | None:
    """Return the reader of digits for the shipped language model, None for a network with other sounds."""
    network = checkpoint.read_config(checkpoint.named(NETWORK))
    if (network.phones, network.sample_rate) != (config.phones, config.sample_rate):
        return None
    weights = tuned_weights(SHIPPED_LM, network.phones, (network.trained_name, network.architecture))
    return DigitReader(own_search(network, None, replace(language, weights=weights or PHONES_WEIGHTS)))


def resolve_decoder(decoder: DecoderName, lm: LanguageModelName) -> Literal["greedy", "beam"]:
    """The decoder that a name comes to: `auto` is beam search where there is a language model for it."""
    if decoder != "auto":
        return decoder
    return "greedy" if language_model_path(lm) is None else "beam"


def language_model_path(lm: LanguageModelName, language: str = "en") -> Path | None:
    """The language model's file: the one that is named, or the shipped one if there is one; None for none."""
    if lm == "off":
        return None
    if lm is not None:
        return lm
    if language == "en":
        shipped = SHIPPED_LM
    elif language in OTHER_LMS:
        shipped = SHIPPED_LM.with_name(OTHER_LMS[language])
    else:
        return None
    return shipped if shipped.exists() else None


def lexicon_path(path: Path) -> Path:
    """Path of the pronunciations of a language model's words: next to it."""
    return path.with_name(path.name.partition(".")[0] + LEXICON_SUFFIX)


def weights_path(path: Path, phones: Sequence[str] = (), acoustic_model: str = "") -> Path:
    """Path of the weights tuned for a language model, for searches over letters or phones: next to it.

    With `acoustic_model`, a name or an architecture, those for it alone: `WORDS.MODEL.phones.weights.json`.
    """
    name = path.name.partition(".")[0] + (f".{acoustic_model.replace('/', '_')}" if acoustic_model else "")
    return path.with_name(name + (PHONES_WEIGHTS_SUFFIX if phones else WEIGHTS_SUFFIX))


def tuned_weights(path: Path, phones: Sequence[str], acoustic_models: Sequence[str]) -> DecodingWeights | None:
    """Weights tuned for a language model with one of these acoustic models, else for it alone. Raises: ModelError."""
    files = (weights_path(path, phones, name) for name in (*acoustic_models, ""))
    return next((DecodingWeights.load(file) for file in files if file.exists()), None)
