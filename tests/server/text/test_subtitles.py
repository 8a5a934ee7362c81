"""Subtitles of words at any times: limits of cues and lines, read by real parsers."""

import io
import json
import subprocess
from itertools import pairwise

import av
import pytest
import srt
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.words import Word, joined
from server.text.formatting import FormattedWord
from server.text.subtitles import LINE_COLUMNS, SubtitleFormat, columns, cues, subtitles
from tests.support.audio.speech import ROOT
from tests.support.needs import need_programs


def said(text: str, *, each_s: float = 0.3, start_s: float = 0.0, gap_s: float = 0.0) -> list[FormattedWord]:
    """Words of `each_s` seconds, one after another."""
    times = [start_s + at * (each_s + gap_s) for at in range(len(text.split()))]
    return [FormattedWord(Word(w, at, at + each_s, 0.9), w) for w, at in zip(text.split(), times, strict=True)]


def parsed(words: list[FormattedWord], label: str = "") -> list[srt.Subtitle]:
    return list(srt.parse(subtitles(SubtitleFormat.SRT, cues(words, label))))


def read_vtt(text: str) -> list[tuple[int, int, str]]:
    """Start and duration in ms, and text of each cue, by FFmpeg."""
    with av.open(io.BytesIO(text.encode()), format="webvtt") as opened:
        return [(p.pts, p.duration, bytes(p).decode()) for p in opened.demux() if p.size]


TEXTS = st.one_of(
    st.text("abcdefgh'é", min_size=1, max_size=12),
    st.text("天气很好中国人", min_size=1, max_size=60),
    st.text("abc天", min_size=30, max_size=200),
)
SPOKEN = st.lists(st.tuples(TEXTS, st.floats(0, 1.5), st.floats(0, 2)), max_size=60)


def timed(spoken: list[tuple[str, float, float]]) -> list[FormattedWord]:
    """Words of texts, pauses before them and lengths."""
    words, now_s = [], 0.0
    for text, pause_s, long_s in spoken:
        start_s, now_s = round(now_s + pause_s, 3), round(now_s + pause_s + long_s, 3)
        words.append(FormattedWord(Word(text, start_s, now_s, 0.5), text))
    return words


@given(SPOKEN, st.sampled_from(["", "Caller: "]))
def test_every_cue_can_be_read(spoken, label):
    words = timed(spoken)
    found = parsed(words, label)
    text = joined(cue.content.removeprefix(label.strip()).strip() for cue in found)
    assert "".join(text.split()) == "".join("".join(word.text for word in words).split())
    for cue in found:
        assert (cue.end - cue.start).total_seconds() >= 0.5
        assert len(cue.content.splitlines()) <= 2
        assert all(columns(line) <= LINE_COLUMNS for line in cue.content.splitlines())
        assert cue.content.startswith(label.strip())
    assert all(cue.end <= after.start for cue, after in pairwise(found))


def test_words_without_length_are_shown_half_a_second():
    one, rest = parsed([*said("one", each_s=0.0, start_s=14.24), *said("wait no longer", each_s=0.0, start_s=30.0)])
    assert (one.start.total_seconds(), one.end.total_seconds()) == (14.24, 14.74)
    assert (rest.content, rest.end.total_seconds()) == ("wait no longer", 30.5)


def test_a_short_cue_joins_its_neighbor():
    words = [*said("yes", each_s=0.05), *said("I am here", start_s=0.46)]
    assert [cue.content for cue in parsed(words)] == ["yes I am here"]


def test_a_word_with_a_late_end_does_not_delay_the_next_cue():
    late = FormattedWord(Word("l" * 40, 1.0, 1900.0, 0.9), "l" * 40)
    found = parsed([*said("any possible chance"), late, *said("x" * 40 + " which", start_s=3.0)])
    assert [cue.start.total_seconds() for cue in found] == [0.0, 1.0, 3.0]
    assert found[1].end.total_seconds() == 3.0


def test_long_speech_is_divided_evenly():
    found = parsed(said("seventeen characters of text in every line of this sentence without any pause " * 3))
    assert len(found) == 4
    assert all(len(cue.content.splitlines()) == 2 for cue in found)


@pytest.mark.parametrize("word", ["天" * 50, "Donaudampfschifffahrtsgesellschaftskapitän" * 3])
def test_a_word_longer_than_a_line_is_cut_with_its_time(word):
    found = parsed([FormattedWord(Word(word, 1.0, 5.0, 0.9), word)])
    assert "".join(cue.content for cue in found).replace("\n", "") == word
    assert (found[0].start.total_seconds(), found[-1].end.total_seconds()) == (1.0, 5.0)


def test_webvtt_is_escaped_and_speakers_overlap():
    caller, agent = cues(said("AT&T <b> -->"), "Caller: "), cues(said("one moment", start_s=0.3), "Agent: ")
    text = subtitles(SubtitleFormat.VTT, [*agent, *caller])
    assert read_vtt(text) == [(0, 900, "Caller: AT&amp;T &lt;b&gt; --&gt;"), (300, 600, "Agent: one moment")]


def test_no_words_are_an_empty_file():
    assert (subtitles(SubtitleFormat.SRT, []), subtitles(SubtitleFormat.VTT, [])) == ("", "WEBVTT\n\n")


@given(SPOKEN)
@settings(max_examples=5)
def test_the_page_makes_the_same_subtitles(spoken):
    need_programs("node")
    words = timed(spoken)
    given_words = [{"text": word.text, "start": word.word.start_s, "end": word.word.end_s} for word in words]
    script = (
        f"import {{ subtitles }} from '{ROOT}/server/web/subtitles.js';"
        "const words = JSON.parse(process.argv[1]);"
        "console.log(JSON.stringify(['srt', 'vtt'].map((form) => subtitles(words, form))));"
    )
    arguments = ["node", "--input-type=module", "-e", script, json.dumps(given_words)]
    made = json.loads(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    assert made == [subtitles(form, cues(words)) for form in SubtitleFormat]
