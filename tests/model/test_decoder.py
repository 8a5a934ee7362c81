"""Choice of the decoder, its language model and weights from names and files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from model import decoder as decoders
from model.ctc.beam import BeamDecoder
from model.ctc.greedy import GreedyDecoder
from model.ctc.tokens import Tokens
from model.ctc.weights import PHONES_WEIGHTS, DecodingWeights
from model.decoder import decoder_of, language_model_path, weights_path
from model.errors import LexiconError, ModelError, VocabularyError
from model.facts import ModelFacts
from model.lexicon.lexicon import write_lexicon
from model.lm.language_model import LanguageModel
from model.machine.device import CPU
from model.published.timing import PublishedDescription
from server.settings import Settings
from tests.support.servers.recognizers.spelling import CONFIG

ARPA = """\\data\\
ngram 1=5

\\1-grams:
-1.0\t<unk>
-99\t<s>
-0.5\t</s>
-0.7\tkite
-0.9\tflew

\\end\\
"""


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.arpa"
    path.write_text(ARPA)
    return path


PIECES = Tokens.of(["▁KI", "TE", "▁FLEW", "<unk>", "<blk>"], 4)


def published(tokens: Tokens) -> ModelFacts:
    description = PublishedDescription("", "", "", (), 16_000, window=3, shift=1, frames_per_step=1, frame_s=0.04)
    return ModelFacts(description, "", "", CPU, tokens)


@pytest.fixture
def nothing_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(decoders, "SHIPPED_LM", tmp_path / "absent.arpa")


@pytest.mark.parametrize("publisher", ["own", "others"])
@pytest.mark.parametrize(
    ("decoder", "lm", "kind"),
    [
        ("auto", None, GreedyDecoder),
        ("auto", "off", GreedyDecoder),
        ("auto", "arpa", BeamDecoder),
        ("greedy", "arpa", GreedyDecoder),
        ("beam", None, BeamDecoder),
        ("beam", "off", BeamDecoder),
        ("beam", "arpa", BeamDecoder),
    ],
)
def test_beam_search_is_used_with_a_language_model_or_on_request(
    *, publisher: str, decoder: str, lm: str | None, kind: type, arpa: Path, request: pytest.FixtureRequest
) -> None:
    if publisher == "own":
        request.getfixturevalue("nothing_shipped")
    facts = ModelFacts.own(CONFIG) if publisher == "own" else published(PIECES)
    made = decoder_of(facts, decoder=decoder, lm=arpa if lm == "arpa" else lm, beams=3)
    assert type(made) is kind
    if isinstance(made, BeamDecoder):
        assert made.beams == 3
        assert (made.lm is not None) == (lm == "arpa")
        plain = DecodingWeights() if publisher == "own" or lm == "arpa" else DecodingWeights(word_bonus=0.0)
        assert made.weights == plain


def test_the_shipped_model_is_the_default_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch, arpa: Path) -> None:
    monkeypatch.setattr(decoders, "SHIPPED_LM", arpa)
    assert language_model_path(None) == arpa
    assert language_model_path("off") is None
    assert isinstance(decoder_of(ModelFacts.own(CONFIG), beams=1), BeamDecoder)


def test_tuned_weights_are_next_to_the_model(arpa: Path) -> None:
    tuned = DecodingWeights(lm_weight=0.25)
    tuned.save(weights_path(arpa))
    made = decoder_of(ModelFacts.own(CONFIG), lm=arpa, beams=2)
    assert isinstance(made, BeamDecoder)
    assert made.weights == tuned
    weights_path(arpa).write_text('{"lm_weight": "much"}')
    with pytest.raises(ModelError, match="weights"):
        decoder_of(ModelFacts.own(CONFIG), lm=arpa, beams=2)


def test_weights_tuned_for_one_acoustic_model_are_used_only_with_it(arpa: Path) -> None:
    tuned, own = DecodingWeights(lm_weight=0.25), DecodingWeights(lm_weight=0.75)
    tuned.save(weights_path(arpa))
    own.save(weights_path(arpa, acoustic_model="larger"))
    for name, expected in (("larger", own), ("smaller", tuned)):
        made = decoder_of(ModelFacts.own(dataclasses.replace(CONFIG, name=name)), lm=arpa, beams=2)
        assert isinstance(made, BeamDecoder)
        assert made.weights == expected


HEARS_PHONES = dataclasses.replace(CONFIG, phones=("æ", "b", "t"))


def test_a_model_with_phones_is_searched_in_phones_with_the_lexicon_next_to_the_language_model(arpa: Path) -> None:
    words = dict.fromkeys(LanguageModel.load(arpa).words[3:], (("b", "æ"),))
    write_lexicon(arpa.with_name(f"{arpa.stem}.lexicon.gz"), HEARS_PHONES.phones, words)
    made = decoder_of(ModelFacts.own(HEARS_PHONES), lm=arpa, beams=2)
    assert isinstance(made, BeamDecoder)
    assert made.vocabulary == ("", "æ", "b", "t")
    assert made.weights == PHONES_WEIGHTS
    tuned = DecodingWeights(lm_weight=0.25)
    tuned.save(weights_path(arpa, HEARS_PHONES.phones))
    again = decoder_of(ModelFacts.own(HEARS_PHONES), lm=arpa, beams=2)
    assert isinstance(again, BeamDecoder)
    assert again.weights == tuned
    assert again.digest != made.digest
    letters = decoder_of(ModelFacts.own(CONFIG), lm=arpa, beams=2)
    assert isinstance(letters, BeamDecoder)
    assert letters.vocabulary == CONFIG.vocabulary


def test_without_a_language_model_letters_are_read() -> None:
    made = decoder_of(ModelFacts.own(HEARS_PHONES), decoder="beam", lm="off", beams=2)
    assert isinstance(made, BeamDecoder)
    assert made.vocabulary == CONFIG.vocabulary
    rows = np.full((1, 3, HEARS_PHONES.outputs), -2.0, np.float32)
    made.advance([made.start(0)], rows)
    greedy = decoder_of(ModelFacts.own(HEARS_PHONES), decoder="greedy")
    greedy.advance([greedy.start(0)], rows)


def test_a_lexicon_without_the_language_models_words_is_rejected(arpa: Path) -> None:
    write_lexicon(arpa.with_name(f"{arpa.stem}.lexicon.gz"), ("x",), {"zzz": (("x",),)})
    with pytest.raises(LexiconError, match="pronunciation"):
        decoder_of(ModelFacts.own(HEARS_PHONES), lm=arpa, beams=2)


def test_a_missing_language_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.arpa"):
        decoder_of(ModelFacts.own(CONFIG), lm=tmp_path / "absent.arpa")


@pytest.mark.parametrize("options", [{"decoder": "flashlight"}, {"beams": 0}, {"beams": 1_025}])
def test_a_setting_outside_its_range_is_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**options)


def test_published_symbols_reject_a_language_model_with_other_letters(arpa: Path) -> None:
    cyrillic = Tokens.of(["<blk>", "▁да"], 0)
    assert isinstance(decoder_of(published(cyrillic), decoder="beam"), BeamDecoder)
    with pytest.raises(VocabularyError, match="language model"):
        decoder_of(published(cyrillic), lm=arpa)
