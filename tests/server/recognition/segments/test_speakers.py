"""Speakers of one channel: which words belong to which voice, live and over a whole recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from model.ctc.words import Speaker, Word
from server.recognition.events import Final, FinalReason, Partial
from server.recognition.results.pending_finals import PendingFinal
from server.recognition.segments.speaker_rules import SpeakerRules, others_in, without_others
from server.recognition.segments.speakers import Speakers, changes_at_pauses
from server.recognition.steps import Auxiliary, WindowTag

HZ, WINDOW = 16_000, 1_280


def word(text: str, start_s: float, end_s: float) -> Word:
    return Word(text, start_s, end_s, 0.9)


def result(voice: int | None) -> np.ndarray:
    row = np.zeros(257, np.float32)
    if voice is not None:
        row[0] = row[1 + voice] = 1.0
    return row


def followed(rules: SpeakerRules, voices: Sequence[int | None]) -> Speakers:
    """Return the speakers after one vector of each voice every 0.4 s, from 1.6 s on."""
    speakers = Speakers(rules)
    hear(speakers, voices)
    return speakers


def hear(speakers: Speakers, voices: Sequence[int | None], first: int = 0) -> None:
    for number, voice in enumerate(voices, start=first):
        end_sample = round((1.6 + 0.4 * number) * HZ)
        speakers.take(WindowTag(end_sample, Auxiliary.SPEAKERS), result(voice))
        speakers.follow(end_sample, end_sample / HZ)


def final(*words: Word) -> Final:
    return Final(0, 0.0, words[-1].end_s if words else 0.0, words, FinalReason.ENDPOINT)


def numbers(words: Sequence[Word]) -> list[int | None]:
    return [None if one.speaker is None else one.speaker.number for one in words]


TWO = [*[4] * 6, *[9] * 6]  # one voice to 3.6 s, then another
WORDS = (word("yes", 0.5, 0.9), word("no", 1.5, 1.9), word("well", 4.2, 4.6), word("so", 5.0, 5.2))


def test_words_get_the_speaker_at_their_middle() -> None:
    named = followed(SpeakerRules(), TWO).in_final(final(*WORDS))
    assert isinstance(named, Final)
    assert numbers(named.words) == [0, 0, 1, 1]
    assert all(one.speaker is not None and one.speaker.confidence > 0.9 for one in named.words)


def test_speakers_are_numbered_in_the_order_of_their_words() -> None:
    """A voice without words takes no number, and a restored stream goes by the same order."""
    speakers = followed(SpeakerRules(), [30, 30, 30, *TWO])
    later = [msgspec.structs.replace(one, start_s=one.start_s + 1.2, end_s=one.end_s + 1.2) for one in WORDS]
    restored = Speakers(SpeakerRules())
    named = speakers.in_final(final(*later[2:]))
    restored.restore(speakers.saved())
    assert isinstance(named, Final)
    assert numbers(named.words) == [0, 0]
    for each in (speakers, restored):
        partial = each.in_partial(Partial(0, 0.0, 7.0, tuple(later), 0))
        assert numbers(partial.words) == [1, 1, 0, 0]


def test_words_before_the_first_vector_are_of_the_last_speaker() -> None:
    speakers = Speakers(SpeakerRules())
    named = speakers.in_final(final(word("hi", 0.1, 0.3)))
    assert isinstance(named, Final)
    assert named.words[0].speaker == Speaker(0, 0.0)


def test_only_vectors_up_to_the_step_count() -> None:
    speakers = followed(SpeakerRules(), TWO)
    ahead = followed(SpeakerRules(), TWO)
    for number in range(12, 30):
        ahead.take(WindowTag(round((1.6 + 0.4 * number) * HZ), Auxiliary.SPEAKERS), result(77))
    assert ahead.in_final(final(*WORDS)) == speakers.in_final(final(*WORDS))
    assert not speakers.covers(100 * HZ)
    assert speakers.covers(round((1.6 + 0.4 * 11) * HZ) + WINDOW - 1)


def test_words_of_a_second_pass_get_the_speakers_of_the_step_that_closed_the_segment() -> None:
    speakers = followed(SpeakerRules(), TWO)
    pending = PendingFinal(final(*WORDS), lambda: WORDS[:3])
    assert speakers.in_final(pending) is pending
    hear(speakers, [200] * 40, first=12)  # what comes later is not of this segment
    assert numbers(pending.decode()) == [0, 0, 1]


def test_a_copy_and_a_restored_one_continue_alike_and_alone() -> None:
    speakers = followed(SpeakerRules(), TWO)
    speakers.in_final(final(*WORDS))
    twin, restored = speakers.copy(), Speakers(SpeakerRules())
    restored.restore(speakers.saved())
    assert restored.saved() == twin.saved() == speakers.saved()
    for each in (twin, restored):
        hear(each, [9, 4, 30, 30, 30], first=12)
    assert twin.saved() == restored.saved() != speakers.saved()


def test_bytes_that_are_no_state_are_refused() -> None:
    for damaged in (b"", b"x", Speakers(SpeakerRules()).saved()[:-3]):
        with pytest.raises(ValueError):
            Speakers(SpeakerRules()).restore(damaged)


@pytest.mark.parametrize(
    ("starts", "given", "expected"),
    [
        ([0.0, 0.4, 0.8, 1.25, 1.6], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]),  # the pause is one word later
        ([0.0, 0.4, 0.8, 2.6, 3.0], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]),  # too far
        ([0.0, 0.4, 0.8, 1.2, 1.6], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]),  # no pause is longer
        ([0.0, 0.4, 0.8, 1.2, 1.6], [0, 1, 0, 1, 1], [0, 1, 0, 1, 1]),  # no turn disappears
    ],
)
def test_a_change_is_moved_to_the_longest_pause_near_it(
    starts: list[float], given: list[int], expected: list[int]
) -> None:
    words = [word("a", start, start + 0.35) for start in starts]
    assert changes_at_pauses(words, given) == expected


def test_a_recording_is_clustered_as_a_whole() -> None:
    speakers = followed(SpeakerRules(at_end=True), TWO)
    assert speakers.in_final(final(*WORDS)) == final(*WORDS), "labelled at the end"
    found = speakers.whole(WORDS)
    assert [one.number for one in found] == [0, 0, 1, 1]
    assert all(one.confidence > 0.9 for one in found)
    assert [one.number for one in followed(SpeakerRules(maximum=1, at_end=True), TWO).whole(WORDS)] == [0] * 4
    assert Speakers(SpeakerRules(at_end=True)).whole(WORDS[:1]) == [Speaker(0, 0.0)]
    assert Speakers(SpeakerRules(at_end=True)).whole([]) == []


@pytest.mark.parametrize(
    ("rules", "others"),
    [
        (SpeakerRules(), [False] * 4),
        (SpeakerRules(listens=True), [False, False, True, True]),
    ],
)
@pytest.mark.parametrize("at_end", [False, True])
def test_words_of_other_voices_are_marked(rules: SpeakerRules, others: list[bool], at_end: bool) -> None:
    speakers = followed(replace(rules, at_end=at_end), TWO)
    if at_end:
        found = speakers.whole(WORDS)
    else:
        named = speakers.in_final(final(*WORDS))
        assert isinstance(named, Final)
        found = [one.speaker for one in named.words if one.speaker is not None]
    assert [one.other for one in found] == others


def test_words_of_other_voices_are_left_out_of_results() -> None:
    named = followed(SpeakerRules(listens=True), TWO).in_final(final(*WORDS))
    assert isinstance(named, Final)
    assert others_in(named.words) == 2
    assert without_others(named).words == named.words[:2]


@pytest.mark.parametrize(("voice", "others"), [(4, [0, 0, 1, 1]), (9, [1, 1, 0, 0]), (77, [1, 1, 1, 1])])
@pytest.mark.parametrize("at_end", [False, True])
def test_an_enrolled_voice_is_listened_to_whoever_speaks_first(voice: int, others: list[int], at_end: bool) -> None:
    rules = SpeakerRules(listens=True, voice=result(voice)[1:].tobytes(), at_end=at_end)
    speakers = followed(rules, TWO)
    if at_end:
        labels = speakers.whole(WORDS)
    else:
        restored = Speakers(rules)
        restored.restore(speakers.saved())
        for each in (speakers.copy(), restored):
            assert each.in_final(final(*WORDS)) == followed(rules, TWO).in_final(final(*WORDS))
        named = speakers.in_final(final(*WORDS))
        assert isinstance(named, Final)
        labels = [one.speaker for one in named.words if one.speaker is not None]
    assert [one.other for one in labels] == [bool(other) for other in others]
    assert [one.number for one in labels] == [0, 0, 1, 1], "numbers are those of the stream"


def test_a_change_to_another_voice_is_moved_to_a_pause() -> None:
    rules = SpeakerRules(listens=True, voice=result(4)[1:].tobytes())
    words = [word("a", at, at + 0.35) for at in (2.6, 3.0, 3.45, 3.8, 4.2)]  # the voice changes at 3.0 s
    named = followed(rules, TWO).in_final(final(*words))
    assert isinstance(named, Final)
    assert [one.speaker is not None and one.speaker.other for one in named.words] == [False, False, True, True, True]


def test_a_snapshot_and_a_text_of_the_rules_hold_no_vector_of_an_enrolled_voice() -> None:
    vector = np.random.default_rng(0).normal(size=256).astype(np.float32)
    vector /= np.linalg.norm(vector)
    rules = SpeakerRules(listens=True, voice=vector.tobytes())
    saved = followed(rules, TWO).saved()
    assert vector.tobytes()[:16] not in saved
    assert "voice" not in repr(rules)
