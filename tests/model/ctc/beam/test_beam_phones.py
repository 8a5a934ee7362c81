"""Beam search over phones: the best words over all alignments; homophones, key terms, unfinished words."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc import beam
from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.phones import PhoneLexicon
from model.ctc.weights import DecodingWeights
from model.lexicon.lexicon import Lexicon
from model.lm.language_model import LanguageModel
from tests.support.decoding.beam_toys import LETTERS, penalised, random_log_probs, toy_lm
from tests.support.decoding.phone_toys import OUTPUTS, PHONES, SPOKEN, phone_decoder

WIDE = 2_000
WEIGHTS = DecodingWeights(lm_weight=0.7, word_bonus=0.3, unknown_cost=2.0, blank_penalty=0.4)


@pytest.fixture(autouse=True)
def wide_beams(monkeypatch):
    monkeypatch.setattr(beam, "MAX_BEAMS", WIDE)


def totals_of(log_probs):
    """Return the log-probability of each sequence of phones, summed over its alignments."""
    totals = {}
    for path in itertools.product(range(len(PHONES) + 1), repeat=len(log_probs)):
        kept = tuple(PHONES[c - 1] for c, before in zip(path, (0, *path), strict=False) if c not in {0, before})
        score = sum(float(row[c]) for row, c in zip(log_probs, path, strict=True))
        totals[kept] = np.logaddexp(totals.get(kept, -math.inf), score)
    return totals


def texts_of(phones):
    """Yield every segmentation of phones into words, with the cost of an unfinished last word."""
    if not phones:
        yield (), 0.0
    for word, variants in SPOKEN.items():
        for variant in variants:
            if phones[: len(variant)] == variant:
                yield from (((word, *rest), cost) for rest, cost in texts_of(phones[len(variant) :]))
    begun = {
        w: p for w, variants in SPOKEN.items() for p in variants if len(p) > len(phones) and p[: len(phones)] == phones
    }
    if begun and not any(phones in variants for variants in SPOKEN.values()):
        yield (max(begun, key=lambda word: toy_lm().score([word], bos=False, eos=False)[0]),), WEIGHTS.unknown_cost


def language(words):
    scores = toy_lm().score(list(words))
    return WEIGHTS.lm_weight * sum(scores) + WEIGHTS.word_bonus * len(words)


def found(made, log_probs, bias=NO_BIAS):
    rows = np.concatenate([np.full((len(log_probs), len(LETTERS)), -3, np.float32), log_probs], axis=1)
    state = made.start(0, bias)
    made.advance([state], rows[None])
    return tuple(word.text for word in made.take(state))


def spoken(text, certainty=0.97):
    """Return log-probs (T, OUTPUTS) of phones one after another, _ for blank."""
    rows = np.full((len(text), 1 + len(PHONES)), (1 - certainty) / len(PHONES))
    for row, phone in zip(rows, text, strict=True):
        row[1 + PHONES.index(phone) if phone != "_" else 0] = certainty
    return np.log(rows).astype(np.float32)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([0.3, 1.0, 3.0]))
@settings(max_examples=150, deadline=None)
def test_the_best_words_of_all(seed, frames, sharpness):
    log_probs = random_log_probs(seed, frames, 1 + len(PHONES), sharpness)
    made = phone_decoder(WIDE, weights=WEIGHTS, kept_share=1.0, reach=math.inf, merges=False)
    scored = {}
    for phones, total in totals_of(penalised(log_probs, WEIGHTS)).items():
        for words, cost in texts_of(phones):
            score = total + language(words) - cost
            scored[words] = max(score, scored.get(words, -math.inf))
    words = found(made, log_probs)
    assert scored[words] == pytest.approx(max(scored.values()), abs=1e-3)


def test_the_language_model_chooses_among_homophones():
    made = phone_decoder(weights=WEIGHTS)
    assert found(made, spoken("_x_y_")) == ("ab",)  # likelier at the beginning
    assert found(made, spoken("_x_x_y_")) == ("a", "ba")  # "a ba" is a bigram


def test_an_unfinished_word_is_the_likeliest_with_its_phones():
    assert found(phone_decoder(weights=WEIGHTS), spoken("_xy__z_x")) == ("ab", "a", "a")
    made = phone_decoder(weights=DecodingWeights(lm_weight=0.1, word_bonus=-4, unknown_cost=0.0))
    assert found(made, spoken("_xy__z_x")) == ("ab", "cab")


def test_a_word_of_a_key_term_alone_is_recognized_by_its_phones():
    made = phone_decoder(weights=WEIGHTS)
    rows = spoken("_x__y_y__x_y_")
    assert "kay" not in found(made, rows)
    assert found(made, rows, Bias.of([("kay", 1.5)])) == ("a", "kay", "ab")
    assert found(made, spoken("_xy_x_xy_"), Bias.of([("kay", 1.5)])) == found(made, spoken("_xy_x_xy_"))


def test_times_and_confidence_are_those_of_the_phones():
    made = phone_decoder(weights=WEIGHTS)
    state = made.start(0)
    rows = spoken("__x_y____x__")
    made.search([state], rows[None])
    first, second = made.take(state)
    assert (first.text, second.text) == ("ab", "a")
    assert (first.start_s, first.end_s) == pytest.approx((0.08, 0.2))
    assert (second.start_s, second.end_s) == pytest.approx((0.36, 0.4))
    assert first.confidence == pytest.approx(0.97, abs=0.01)


def test_the_letters_of_a_frame_change_nothing():
    made = phone_decoder(weights=WEIGHTS)
    rows = spoken("_x_y__x_")
    states = [made.start(0), made.start(0)]
    letters = np.log(np.random.default_rng(1).dirichlet(np.ones(len(LETTERS)), (2, len(rows)))).astype(np.float32)
    made.advance(states, np.concatenate([letters, np.stack([rows, rows])], axis=2))
    one, other = (made.take(state) for state in states)
    assert one == other
    assert [word.text for word in one] == ["ab", "a"]


def test_frames_of_another_width_are_rejected():
    made = phone_decoder()
    with pytest.raises(ValueError, match="log-probs of these streams must be"):
        made.advance([made.start(0)], np.zeros((1, 2, OUTPUTS + 1), np.float32))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), frames=st.integers(4, 60))
def test_with_the_blank_in_every_frame_other_speech_is_never_written_as_phones(seed, frames):
    """A frame keeps one symbol: without the blank hypotheses may only continue outside of the vocabulary."""
    rows = np.full((frames, len(PHONES) + 1), -9.0, np.float32)
    rows[np.arange(frames), np.random.default_rng(seed).integers(1, len(PHONES) + 1, frames)] = -0.001
    words = found(phone_decoder(8, kept_symbols=1, keeps_blank=True), rows)
    assert set(words) <= set(SPOKEN)


def test_a_frame_has_room_for_the_blank():
    with pytest.raises(ValueError, match="kept_symbols must be 1 to 62, not 63"):
        BeamDecoder(["", *map(chr, range(0x4E00, 0x4E00 + 80))], 0.04, kept_symbols=63, keeps_blank=True)


def test_all_homophone_characters_are_in_the_trie(tmp_path):
    """More than the eight of English: up to sixty characters share a Mandarin syllable."""
    characters = [chr(0x4E00 + i) for i in range(20)]
    lines = [f"{-1.5 - i / 10:.2f}\t{character}" for i, character in enumerate(characters)]
    head = ["\\data\\", f"ngram 1={len(lines) + 3}", "", "\\1-grams:", "-9\t<unk>", "-99\t<s>", "-1\t</s>"]
    path = tmp_path / "toy.arpa"
    path.write_text("\n".join([*head, *lines, "", "\\end\\", ""]), encoding="utf-8")
    lm = LanguageModel.load(path, cache_dirs=[tmp_path])
    lexicon = Lexicon(("i4",), dict.fromkeys(characters, (("i4",),)), "toy")
    assert PhoneLexicon.of_model(("i4",), lexicon, lm).trie.ranks == len(characters)
