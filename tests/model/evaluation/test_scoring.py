"""Error rates compared with the library jiwer."""

import jiwer
from hypothesis import given, settings
from hypothesis import strategies as st

from model.evaluation.scoring import aligned, by_source, edit_distance, report, score

texts = st.lists(st.sampled_from(["a", "bb", "ccc", "turn", "on"]), min_size=1, max_size=8).map(" ".join)


@given(texts, texts)
@settings(max_examples=200, deadline=None)
def test_rates_equal_jiwer(reference, hypothesis):
    ours = score(reference, hypothesis)
    assert abs(ours.wer - jiwer.wer(reference, hypothesis)) < 1e-12
    assert abs(ours.cer - jiwer.cer(reference, hypothesis)) < 1e-12


def test_sources_are_pooled_by_words_not_by_utterances():
    rows = [("x", "one", "two"), ("x", "one two three", "one two three"), ("y", "one", "")]
    pooled = report(by_source(rows))
    assert pooled["by_source"] == {
        "x": {
            "wer": 0.25,
            "cer": 0.1875,
            "utterances": 2,
            "words": 4,
            "insertions": 0,
            "deletions": 0,
            "substitutions": 1,
        },
        "y": {
            "wer": 1.0,
            "cer": 1.0,
            "utterances": 1,
            "words": 1,
            "insertions": 0,
            "deletions": 1,
            "substitutions": 0,
        },
    }
    assert pooled["wer"] == 0.4


@given(texts, texts)
def test_an_alignment_has_both_texts_and_costs_the_edit_distance(reference, hypothesis):
    expected, found = reference.split(), hypothesis.split()
    pairs = aligned(expected, found)
    assert [left for left, _ in pairs if left is not None] == expected
    assert [right for _, right in pairs if right is not None] == found
    assert sum(left != right for left, right in pairs) == edit_distance(expected, found)
