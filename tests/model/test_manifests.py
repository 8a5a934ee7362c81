"""Manifests: one message with file, line and key per bad row; NeMo's keys; texts in a vocabulary's symbols."""

import json

import numpy as np
import pytest
import soundfile

from model.config import ModelConfig
from model.errors import ManifestError, TrainingError
from model.recordings import check_audio, read_manifest
from model.text.normalization import comparable, plain
from tutti_asr_lab.training.acoustic.data.transcripts import changed, spelled
from tutti_asr_lab.training.acoustic.recipe import RECIPES, read_recipe

CONFIG = ModelConfig(name="tiny", conv_channels=32, hidden=64, layers=1, lookahead=2)


def written(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


GOOD = {"audio": "a.wav", "text": "one"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"audio": "a.wav"}, "text: missing"),
        ({"audio": "a.wav", "sentence": "one"}, "text: missing; .*rename its 'sentence' to 'text'"),
        ({**GOOD, "text": None}, "text: null is not a string"),
        ({**GOOD, "text": 9}, "text: 9 is not a string"),
        ({**GOOD, "text": ["one"]}, "text: .* is not a string"),
        ({**GOOD, "text": " \u00a0"}, "text: empty"),
        ({"text": "one"}, "audio: missing"),
        ({**GOOD, "audio": None}, "audio: null is not a path"),
        ({**GOOD, "audio": ""}, 'audio: "" is not a path'),
        ({**GOOD, "audio_filepath": "b.wav"}, "audio and audio_filepath"),
        ({**GOOD, "duration": float("nan")}, "duration: NaN"),
        ({**GOOD, "duration": float("inf")}, "duration: Infinity"),
        ({**GOOD, "duration": -1}, "duration: -1"),
        ({**GOOD, "duration": "2"}, 'duration: "2" is not a number'),
        ({**GOOD, "duration": True}, "duration: true"),
        ({**GOOD, "offset": 3.0}, "offset: 3.0: parts of a file are not supported"),
        ({**GOOD, "speaker": None}, "speaker: null"),
        ({**GOOD, "source": []}, "source: .* is not a string"),
        ("[1]\n", "not a JSON object"),
        ("{\n", "not JSON"),
        ("audio,text\n", "not JSON"),
    ],
)
def test_a_bad_row_is_rejected_with_file_line_and_key(tmp_path, row, said):
    with pytest.raises(ManifestError, match=rf"rows\.jsonl:2: {said}") as refused:
        read_manifest(written(tmp_path, GOOD, row))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_an_empty_manifest_is_rejected(tmp_path, content):
    with pytest.raises(ManifestError, match="no recordings; a manifest"):
        read_manifest(written(tmp_path, content))


def test_nemo_s_keys_are_read(tmp_path):
    (found,) = read_manifest(
        written(tmp_path, {"audio_filepath": "a.wav", "text": "one", "duration": 1.5, "offset": 0})
    )
    assert (found.audio, found.text, found.duration_s) == (tmp_path / "a.wav", "one", 1.5)
    (found,) = read_manifest(written(tmp_path, {"audio_filepath": "/x/a.wav", "text": "one"}))
    assert f"{found.audio}" == "/x/a.wav"


def test_noise_needs_no_text(tmp_path):
    assert read_manifest(written(tmp_path, {"audio": "a.wav"}), texts=False)[0].text == ""


def test_a_recording_without_samples_or_without_a_file_is_named_by_line(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(0, np.int16), 16_000)
    with pytest.raises(ManifestError, match=r"rows\.jsonl:1: audio: .*a\.wav has no samples"):
        check_audio(read_manifest(written(tmp_path, GOOD)))
    with pytest.raises(ManifestError, match=r"rows\.jsonl:1: audio: .*b\.wav does not exist"):
        check_audio(read_manifest(written(tmp_path, {**GOOD, "audio": "b.wav"})))


def test_training_texts_in_capitals_keep_their_letters_and_are_counted(tmp_path):
    rows = read_manifest(written(tmp_path, {**GOOD, "text": "WELL-KNOWN, It’s."}, GOOD))
    found = spelled(rows, CONFIG)
    assert [u.text for u in found] == ["well known it's", "one"]
    assert changed(rows, found) == 1


@pytest.mark.parametrize("text", ["room 42", "привет", "naïve", "..."])
def test_training_texts_that_the_vocabulary_cannot_spell_are_rejected_by_line(tmp_path, text):
    with pytest.raises(ManifestError, match=r"rows\.jsonl:1: text: "):
        spelled(read_manifest(written(tmp_path, {**GOOD, "text": text})), CONFIG)


@pytest.mark.parametrize(
    ("text", "compared"),
    [
        ("It’s 3.5, isn't IT?", "it's 3.5 isn't it"),
        ("'tis the dogs' 'home'", "'tis the dogs' home"),
        ("<s> one [UNK] two </s>", "one two"),
        ("Cafe\u0301", "café"),
        ("नमस्ते", "नमस्ते"),
        ("a <b> c", "a b c"),
    ],
)
def test_transcripts_are_compared_without_capitals_and_marks(text, compared):
    assert comparable(text) == compared


def test_marks_of_toolkits_and_forms_of_one_word_are_normalized_in_texts():
    assert plain("<s> cafe\u0301 <unk>\u200b [NOISE] </s>") == "café"
    assert plain("a < b") == "a < b"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"recipe": {"updats": 3}}, "'updats' is not a key of recipe; did you mean 'updates'"),
        ({"model": {"depth": 3}}, "'depth' is not a key of model. Valid keys: name, "),
        ({"recipes": {}}, "'recipes' is not a key of the recipe file"),
        ({"recipe": {"augmentation": {"nois": 1}}}, "'nois' is not a key of augmentation"),
        ({"recipe": {"updates": "many"}}, 'updates: "many"'),
        ({"recipe": []}, "recipe must be a JSON object, not []"),
        ([], "the recipe file must be a JSON object, not []"),
    ],
)
def test_a_recipe_names_a_bad_key_and_the_valid_ones(tmp_path, content, said):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TrainingError) as refused:
        read_recipe(path)
    assert said in str(refused.value)


def test_a_shipped_recipe_is_named_or_the_names_are_listed(tmp_path):
    assert read_recipe(tmp_path / "small") == read_recipe(RECIPES / "small.json")
    with pytest.raises(TrainingError, match=r"recipe .*none not found; .*medium.*small"):
        read_recipe(tmp_path / "none")
