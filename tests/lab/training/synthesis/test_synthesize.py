"""Synthetic speech by the real synthesizers. Without them the tests are skipped; in CI they fail."""

import numpy as np
import pytest
import soundfile

from model.errors import LanguageModelError, SynthesizerError
from model.recordings import read_manifest
from tests.support.needs import need_programs
from tutti_asr_lab.training.synthesis import voices
from tutti_asr_lab.training.synthesis.synthesize import Texts, synthesize

PROGRAMS = ("espeak-ng", "flite")


@pytest.fixture
def synthesizers():
    need_programs(*PROGRAMS)


@pytest.mark.usefixtures("synthesizers")
def test_a_corpus_is_playable_labeled_and_deterministic(tmp_path):
    manifests = [synthesize(tmp_path / name, hours=0.001, seed=5, jobs=2) for name in ("one", "two")]
    first, second = (read_manifest(path) for path in manifests)
    assert len(first) == 200  # one batch of work
    assert [(u.text, u.speaker, u.duration_s) for u in first] == [(u.text, u.speaker, u.duration_s) for u in second]
    assert len({u.speaker for u in first}) > 20
    for one, two in list(zip(first, second, strict=True))[::20]:
        samples, rate = soundfile.read(one.audio, dtype="int16")
        assert rate == 16_000
        assert len(samples) / rate == pytest.approx(one.duration_s, abs=1e-3)
        assert np.abs(samples).max() > 1_000
        assert np.array_equal(samples, soundfile.read(two.audio, dtype="int16")[0])


def test_the_error_names_a_missing_synthesizer_and_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr(voices.shutil, "which", lambda _: None)
    with pytest.raises(SynthesizerError, match="apt-get install espeak-ng flite"):
        synthesize(tmp_path, hours=0.001, seed=1, jobs=1)


@pytest.mark.usefixtures("synthesizers")
def test_given_texts_are_spoken_in_the_voice_of_their_language(tmp_path):
    (tmp_path / "texts.txt").write_text("el niño  come\n\nmañana\n", encoding="utf-8")
    manifest = synthesize(tmp_path / "out", 0.001, seed=5, jobs=2, texts=Texts(tmp_path / "texts.txt", "es"))
    rows = read_manifest(manifest)
    assert {row.text for row in rows} == {"el niño come", "mañana"}
    assert len({row.speaker for row in rows}) > 20
    assert all(row.speaker.startswith("espeak-ng-es+") for row in rows)


@pytest.mark.usefixtures("synthesizers")
@pytest.mark.parametrize(("content", "said"), [(None, "cannot read"), ("\n \n", "has no sentences")])
def test_a_missing_or_empty_text_is_refused(tmp_path, content, said):
    path = tmp_path / "texts.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LanguageModelError, match=said):
        synthesize(tmp_path / "out", 0.001, seed=5, jobs=1, texts=Texts(path, "es"))
