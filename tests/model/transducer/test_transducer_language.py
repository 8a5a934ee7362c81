"""Words of a language model in the beam search of transducers: exact scores, the same bits in any batch, refusals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.tokens import Tokens
from model.ctc.weights import DecodingWeights
from model.decoder import decoder_of, rewind_of
from model.errors import LanguageModelError, PublishedModelError
from model.lm.language_model import LanguageModel
from model.transducer.beam import MAX_BEAMS, TransducerBeamDecoder
from model.transducer.language import WEIGHTS, PieceLanguage, letters_of
from tests.model.transducer.test_transducer_beam import all_sequences
from tests.model.transducer.test_transducer_decoder import CONFUSED, KINDS, TEXT, biases, decoded, outputs_of
from tests.support.decoding.toy_transducer import FRAME_S, SYMBOLS, ToyNetworks, pieces_of, spoken, text_of
from tests.support.networks.published import model_of

TINY = ("<blk>", "▁a", "▁b")
ARPA = """\\data\\
ngram 1={unigrams}
ngram 2={bigrams}

\\1-grams:
{ones}

\\2-grams:
{twos}

\\end\\
"""


def written(folder, words, pairs=()):
    """File of a language model: log-probabilities to base 10 of words, and of pairs of words."""
    ones = ["-2\t<unk>", "-9\t<s>\t-0.3", "-2\t</s>", *(f"{score}\t{word}\t-0.2" for word, score in words)]
    twos = [f"{score}\t{pair}" for pair, score in pairs]
    text = ARPA.format(unigrams=len(ones), bigrams=len(twos), ones="\n".join(ones), twos="\n".join(twos))
    path = folder / "words.arpa"
    path.write_text(text)
    return path


@pytest.fixture
def words(tmp_path):
    """A language model that knows the words of `TEXT`, and its file."""
    path = written(tmp_path, [(word, -1) for word in TEXT.split()], [("bado kelu", -0.2)])
    return LanguageModel.load(path), path


def beam_decoder(lm, weights=WEIGHTS, beams=4, **options):
    networks = ToyNetworks(**options)
    language = PieceLanguage(lm, networks.tokens, weights)
    return TransducerBeamDecoder(networks, FRAME_S, "toy", beams=beams, language=language)


@pytest.mark.parametrize(("most", "count"), [(1, 2), (2, 1)])
def test_scores_are_those_of_all_alignments_and_of_the_model_where_nothing_is_dropped(most, count, tmp_path):
    lm = LanguageModel.load(written(tmp_path, [("a", -0.5), ("b", -1.5)], [("a b", -0.1), ("<s> b", -0.7)]))
    weights = DecodingWeights(lm_weight=0.7, word_bonus=0.4)
    decoder = beam_decoder(lm, weights, MAX_BEAMS, symbols=TINY, symbols_per_frame=most)
    frames = np.random.default_rng(3).standard_normal((count, 3)).astype(np.float32)
    state = decoder.start(0)
    decoder.advance([state], frames[None])
    found = {}
    for one in state.hypotheses:
        found[one.symbols] = one.total + decoder.language.ending(one.language, NO_BIAS)
    expected = {}
    for symbols, probability in all_sequences(decoder.networks, frames, most).items():
        text = [TINY[symbol][1:] for symbol in symbols]
        expected[symbols] = math.log(probability) + 0.7 * sum(lm.score(text, eos=False)) + 0.4 * len(text)
    assert set(found) == set(expected)
    best = max(expected, key=expected.get)
    for symbols, score in found.items():
        assert score - found[best] == pytest.approx(expected[symbols] - expected[best], abs=1e-4)
    assert [word.text for word in decoder.take(state)] == [TINY[symbol][1:] for symbol in best]


def test_a_word_of_the_model_wins_over_one_that_sounds_a_little_likelier(words):
    decoder, frames = beam_decoder(words[0]), spoken(TEXT, confused=CONFUSED)
    assert text_of(TransducerBeamDecoder(ToyNetworks(), FRAME_S), frames, NO_BIAS) == "bado keru miro nasi"
    for split in (None, 1, 3):
        assert text_of(decoder, frames, NO_BIAS, split) == TEXT
    nothing = DecodingWeights(lm_weight=0.0, word_bonus=0.0, unknown_cost=0.0, unknown_letter_cost=0.0)
    assert text_of(beam_decoder(words[0], nothing), frames, NO_BIAS) == "bado keru miro nasi"


@pytest.mark.parametrize("word", ["ta", "tavemo"])
def test_a_clear_word_that_the_model_does_not_know_stays(words, word):
    assert text_of(beam_decoder(words[0]), spoken(f"bado {word} miro"), NO_BIAS) == f"bado {word} miro"


def test_a_word_of_a_key_term_costs_nothing_where_the_model_does_not_know_it(words):
    decoder, frames = beam_decoder(words[0]), spoken(TEXT, confused=CONFUSED)
    assert text_of(decoder, frames, Bias.of([("keru", 0.4)])) == "bado keru miro nasi"
    assert text_of(decoder, frames, Bias.of([("keru", -0.4)])) == TEXT


def test_the_score_of_a_text_does_not_depend_on_its_pieces(words):
    """Also where key terms change within a word: what was counted for it is taken back in full."""
    lm, _ = words
    language, bias = PieceLanguage(lm, Tokens.of(SYMBOLS, 0)), Bias.of([("kero", 1.0)])
    for text, changes in itertools.product(("bado kelu", "kero miro", "bado bado kero"), (False, True)):
        state, total = language.after(()), 0.0
        for number, piece in enumerate(pieces_of(text)):
            state, score = language.follow(state, piece, bias if not changes or number % 2 == 0 else NO_BIAS)
            total += score
        total += language.ending(state, bias)
        expected = WEIGHTS.lm_weight * sum(
            score for word, score in zip(text.split(), lm.score(text.split(), eos=False), strict=True) if word in lm
        )
        assert total == pytest.approx(expected + WEIGHTS.word_bonus * len(text.split()), abs=1e-5)


def test_words_are_compared_by_their_letters():
    assert [letters_of(text) for text in ("Don’t,", "4.", "Ñandú", "▁", "—")] == ["don't", "4", "ñandú", "", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_the_same_bits_alone_in_company_saved_and_copied(kind, tmp_path):
    model = model_of(kind)
    if model.networks.rows.dependent:
        pytest.skip("the graphs of this processor depend on the batch")
    texts = [name.removeprefix("▁") for name in model.tokens.symbols]
    known = sorted({first + second for first in texts[2:20] for second in texts[9:30] if (first + second).isalpha()})
    path = written(tmp_path, [(word.lower(), -1.5) for word in dict.fromkeys(map(str.lower, known))])
    decoder, plain = decoder_of(model.facts, lm=path), decoder_of(model.facts, decoder="beam")
    frames, each = outputs_of(kind, rows=3, frames=16), biases(model, 3)
    together = decoded(decoder, [decoder.start(2, bias) for bias in each], frames, 8)
    assert together != decoded(plain, [plain.start(2, bias) for bias in each], frames, 8)
    for row, bias in enumerate(each):
        state = decoder.start(2, bias)
        decoded(decoder, [state], frames[row : row + 1, :9], 3)
        for again in (state, decoder.copy(state), decoder.load(decoder.save(state), bias)):
            assert decoded(decoder, [again], frames[row : row + 1, 9:], 1)[0] == together[row]
    assert decoder.digest != plain.digest
    with pytest.raises(ValueError, match="damaged"):
        plain.load(decoder.save(state), each[-1])


def test_taken_text_is_searched_again_with_the_model(words):
    made, frames = rewind_of(beam_decoder(words[0])), spoken(TEXT, confused=CONFUSED)
    state = made.start(0)
    made.advance([state], frames)
    assert " ".join(word.text for word in made.take(state)) == TEXT
    found = made.rewind(state, 0.0, Bias.of([("keru", 1.0)]))
    assert [word.text for word in found.words] == ["bado", "keru", "miro", "nasi"]


def test_weights_next_to_the_model_count(words):
    (lm, path), facts = words, model_of(KINDS[0]).facts
    before = decoder_of(facts, lm=path)
    DecodingWeights(lm_weight=0.9).save(path.with_name("words.weights.json"))
    assert decoder_of(facts, lm=path).digest != before.digest
    assert before.lm_digest == lm.digest


def test_models_that_do_not_fit_are_refused_by_name(words, tmp_path):
    path, facts = words[1], model_of(KINDS[0]).facts
    with pytest.raises(PublishedModelError, match="greedy search has no language model: leave out --lm, or --decoder"):
        decoder_of(facts, decoder="greedy", lm=path)
    (tmp_path / "other").mkdir()
    foreign = written(tmp_path / "other", [("привет", -1)])
    with pytest.raises(LanguageModelError, match=r"--lm .*words.arpa cannot be used with .*: no symbol of the model"):
        decoder_of(facts, lm=foreign)
    bytes_of_text = Tokens.of(("<blk>", "▁ƌ", "Ƃ"), 0)
    assert bytes_of_text.spelling == "byte-level BPE"
    with pytest.raises(LanguageModelError, match="byte-level BPE"):
        PieceLanguage(words[0], bytes_of_text)
