"""Curve of word error rate against beams: decoding, pooling, timing and output."""

import json
import re
from pathlib import Path

import pytest

from model.recordings import Utterance
from tests.support.audio.speech import SAMPLES
from tests.support.decoding.beam_toys import PLAIN, decoder
from tests.support.decoding.ctc_symbols import log_probs, spell
from tutti_asr_lab.training.evaluation.beam_curve import draw, main, markdown, measure
from tutti_asr_lab.training.evaluation.outputs import RecordingOutput


@pytest.fixture
def outputs():
    """Three recordings of two speakers; the last differs from its transcript."""
    said = [("one", "ann", "ab a", "ab_ a_"), ("one", "ben", "ba", "_ba_"), ("two", "ann", "cab", "aa__")]
    return [
        RecordingOutput(
            Utterance(Path(f"{n}.wav"), text, source, speaker, 1.0), log_probs(spell(symbols), certainty=0.99)
        )
        for n, (source, speaker, text, symbols) in enumerate(said)
    ]


def points(outputs, rounds=2):
    decoders = {(name, beams): decoder(beams, lm=False, weights=PLAIN) for name in ("x", "y") for beams in (1, 8)}
    return measure(decoders, outputs, rounds, 0.04)


def test_rates_are_pooled_by_source_and_by_part(outputs):
    found = points(outputs)
    assert [(point.lm, point.beams) for point in found] == [("x", 1), ("x", 8), ("y", 1), ("y", 8)]
    for point in found:
        assert point.wer["all"] == pytest.approx(1 / 4)
        assert (point.wer["one"], point.wer["two"]) == (0.0, 1.0)
        assert {"part A", "part B"} <= set(point.wer)
        assert point.times_real_time == pytest.approx(0.04 / point.us_a_frame * 1e6, rel=0.05)


def test_each_decoder_decodes_all_recordings_in_each_round(outputs, monkeypatch):
    read = []
    monkeypatch.setattr(
        "tutti_asr_lab.training.evaluation.beam_curve.text_of", lambda made, item: read.append((made.beams, item)) or ""
    )
    points(outputs, rounds=3)
    assert [beams for beams, _ in read] == [1, 1, 1, 8, 8, 8, 1, 1, 1, 8, 8, 8] * 3


def test_the_table_has_a_row_for_each_point_and_the_facts(outputs):
    found = points(outputs)
    text = markdown(found, {"processor": "abacus"})
    assert len(re.findall(r"^\| [xy] \|", text, re.MULTILINE)) == 4
    assert "- processor: abacus" in text
    assert "| part A | part B |" in text


def test_the_plot_is_deterministic(outputs, tmp_path):
    found = points(outputs)
    for name in ("a.svg", "b.svg"):
        draw(found, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_letters_are_searched_next_to_phones(tmp_path):
    few = tmp_path / "few.jsonl"
    lines = [json.loads(line) for line in SAMPLES.read_text().splitlines()[:2]]
    few.write_text("".join(json.dumps(line | {"audio": str(SAMPLES.parent / line["audio"])}) + "\n" for line in lines))
    main(manifest=[few], out=tmp_path / "curve", rounds=1, beams="8", letters=True)
    kept = json.loads((tmp_path / "curve.json").read_text())["points"]
    assert [(point["lm"], point["beams"]) for point in kept] == [("tutti-words", 8), ("tutti-words, letters", 8)]
    assert kept[0]["wer"] != kept[1]["wer"]
