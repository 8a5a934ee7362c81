"""Error rates against a library that everyone uses."""

import jiwer
from hypothesis import given, settings
from hypothesis import strategies as st

from model.scoring import by_source, report, score

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
        "x": {"wer": 0.25, "cer": 0.1875, "utterances": 2},
        "y": {"wer": 1.0, "cer": 1.0, "utterances": 1},
    }
    assert pooled["wer"] == 0.4
