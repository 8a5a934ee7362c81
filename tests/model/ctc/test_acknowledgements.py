"""Acknowledgements by their sound: which segments are marked, equally for any split into steps and for copies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.acoustic import load_model
from model.ctc.acknowledgements import PARTS, AcknowledgementNetwork, AcknowledgingDecoder, features_of
from model.ctc.two_pass import TwoPassDecoder
from model.decoder import acknowledging_of, decoder_of
from model.errors import ModelError
from tests.support.decoding.beam_toys import LETTERS, decoder
from tests.support.decoding.ctc_symbols import log_probs, spell

FEATURES = (PARTS + 1) * len(LETTERS) + 1
A, B = LETTERS.index("a"), LETTERS.index("b")


def network() -> AcknowledgementNetwork:
    """Marks segments that have the letter a in the second quarter of their speech and b in the last one."""
    hidden = np.zeros((1, FEATURES + 1), np.int64)
    hidden[0, [len(LETTERS) + A, (PARTS - 1) * len(LETTERS) + B]] = 1
    return AcknowledgementNetwork(hidden, np.ones(1, np.int64), 400, "toy")


def toy() -> AcknowledgingDecoder:
    return AcknowledgingDecoder(decoder(), network())


def marks(made: AcknowledgingDecoder, text: str, sizes: list[int], *, copied: bool = False) -> list[tuple[str, bool]]:
    """Words of a text with _ for blanks, decoded in steps of these sizes, and whether each is marked."""
    rows, state, at = log_probs(spell(text), certainty=0.96)[None], made.start(0), 0
    for size in [*sizes, rows.shape[1]]:
        made.advance([state], rows[:, at : at + size])
        at += size
        if copied:
            state = made.copy(state)
    return [(word.text, word.acknowledges) for word in made.take(state)]


@given(sizes=st.lists(st.integers(1, 9), max_size=8), copied=st.booleans())
def test_a_short_segment_is_marked_by_its_sound_in_any_steps(sizes: list[int], *, copied: bool) -> None:
    quiet = "_" * 12
    assert marks(toy(), f"{quiet}aabb{quiet}", sizes, copied=copied) == [("ab", True)]
    assert marks(toy(), f"{quiet}bbaa{quiet}", sizes, copied=copied) == [("ba", False)], "the order of sounds counts"
    long = "a_" + "_" * 31 + "_b"
    assert not any(marked for _, marked in marks(toy(), f"{quiet}{long}{quiet}", sizes)), "more than 1.2 s"


def test_a_later_segment_is_judged_by_its_own_sound() -> None:
    made, quiet = toy(), "_" * 15
    state = made.start(0)
    for text, marked in (
        (f"{quiet}bbaa{quiet}", False),
        (f"{quiet}aabb{quiet}", True),
        (f"{quiet * 9}aabb{quiet}", True),
    ):
        made.advance([state], log_probs(spell(text), certainty=0.96)[None])
        assert [word.acknowledges for word in made.take(state)] == [marked]


def test_a_second_pass_marks_the_words_of_its_own_segment() -> None:
    made, quiet = TwoPassDecoder(decoder(8), decoder(32), acknowledgements=network()), "_" * 15
    state = made.start(0)
    for text, words in ((f"{quiet}bbaa{quiet}", [("ba", False)]), (f"{quiet * 9}aabb{quiet}", [("ab", True)])):
        made.advance([state], log_probs(spell(text), certainty=0.96)[None])
        again = made.second_pass(state, None)
        assert again is not None
        assert [(word.text, word.acknowledges) for word in again()] == words
        made.take(state)
    assert made.digest != TwoPassDecoder(decoder(8), decoder(32)).digest


def test_words_taken_before_the_segment_ends_are_not_marked() -> None:
    made = toy()
    state = made.start(0)
    made.advance([state], log_probs(spell("____aabb____ ab____"), certainty=0.96)[None])
    assert [word.acknowledges for word in made.take(state, 1)] == [False]


def test_features_are_the_highest_of_each_quarter_the_sums_and_the_length() -> None:
    rows = log_probs(spell("____aabb____"), certainty=0.96)
    found = features_of(rows)
    assert found is not None
    assert found.dtype == np.int64
    quarters = found[: PARTS * len(LETTERS)].reshape(PARTS, len(LETTERS))
    assert [quarters[part].argmax() for part in range(PARTS)] == [0, A, B, 0], "with a frame of silence on each side"
    assert found[-1] == 4 * 6
    assert features_of(log_probs(spell("______"), certainty=0.96)) is None


def test_the_shipped_model_has_a_network_and_its_digest_counts() -> None:
    facts = load_model().facts
    plain = decoder_of(facts)
    found = acknowledging_of(facts, plain)
    assert found is not None
    assert found.digest != plain.digest
    assert acknowledging_of(load_model(Path("tutti-gru")).facts, plain) is None, "it was learned from other outputs"
    assert acknowledging_of(facts, decoder_of(facts, decoder="greedy")) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "not a network of acknowledgements"), ('{"phones":["b"]}', "not a network of acknowledgements"),
     ('{"phones":["z"],"hidden":[],"output":[],"threshold":1}', "not for a model with these 1 phones"),
     (json.dumps({"phones": ["b"], "hidden": [[1, 2]], "output": [1], "threshold": 1}), "not for a model")],
)  # fmt: skip
def test_another_file_is_refused_by_its_path(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "tutti.acknowledgements.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=f"tutti.acknowledgements.json: {why}"):
        AcknowledgementNetwork.load(path, ["b"])
