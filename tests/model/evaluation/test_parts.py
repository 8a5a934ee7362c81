"""Parts A and B of a set of recordings: no speaker is in both; the split does not depend on the order."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from model.evaluation.parts import parts_of, selected
from model.recordings import Utterance

names = st.sampled_from([f"speaker {n}" for n in range(9)])
rows = st.lists(st.tuples(st.sampled_from(["x", "y"]), names), max_size=30)


def utterances(pairs):
    return [Utterance(Path(f"{n}.wav"), "", source, speaker, 1.0) for n, (source, speaker) in enumerate(pairs)]


@given(rows, st.randoms())
def test_speakers_are_in_one_part_each_and_halved_within_each_source(pairs, random):
    recordings = utterances(pairs)
    found = dict(zip(recordings, parts_of(recordings), strict=True))
    for source in {u.source for u in recordings}:
        parts = {part: {u.speaker for u in found if (u.source, found[u]) == (source, part)} for part in "AB"}
        if len(parts["A"] | parts["B"]) > 1:
            assert not parts["A"] & parts["B"]
            assert 0 <= len(parts["A"]) - len(parts["B"]) <= 1
    random.shuffle(recordings)
    assert dict(zip(recordings, parts_of(recordings), strict=True)) == found


def test_the_recordings_of_a_single_speaker_are_halved():
    recordings = utterances([("digits", "one")] * 9)
    assert sorted(parts_of(recordings)) == [*"AAAAABBBB"]


@given(rows)
def test_a_selection_keeps_the_order_and_the_parts_are_complete(pairs):
    recordings = utterances(pairs)
    a, b = selected(recordings, "A"), selected(recordings, "B")
    assert selected(recordings, "all") == recordings
    assert sorted([*a, *b], key=recordings.index) == recordings
    assert a == sorted(a, key=recordings.index)


def test_the_split_never_changes():
    """Part B must stay held out, so a recording must never move between the parts."""
    assert parts_of(utterances([("x", name) for name in ("ann", "ben", "cat", "dan", "eva")])) == [*"BAAAB"]
