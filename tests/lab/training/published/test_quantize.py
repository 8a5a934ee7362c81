"""`tutti quantize` for published models: scales that a server loads, a report, and refusals by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from onnxruntime.quantization import quantize_dynamic
from typer.testing import CliRunner

from model.published.published_model import PublishedModel
from model.published.rows import check_rows
from model.published.scales import FILE
from server.cli import app
from tests.support.networks.compiled import SEARCH, SIZES
from tests.support.networks.probes import make_probe
from tutti_asr_lab.training.published import quantize as tool

SAMPLES = Path(__file__).parents[4] / "model" / "samples"
runner = CliRunner()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Return the folder of a FastConformer with the nodes of a released one."""
    return Path(make_probe("nemo-ctc", tmp_path_factory.mktemp("published"), hidden=64).folder)


@pytest.fixture
def folder(published, tmp_path):
    """Return a copy of the published model."""
    return Path(shutil.copytree(published, tmp_path / "model"))


def run(folder, *options):
    return runner.invoke(app, ["quantize", str(folder), *map(str, options)])


def test_the_scales_are_used_by_auto_and_int8_and_not_by_fp32(folder: Path) -> None:
    done = run(folder, "--audio", SAMPLES / "demo.flac", "--force")
    assert done.exit_code == 0, done.output
    assert f"{FILE}: " in done.output
    report = json.loads((folder / FILE).read_text())["report"]
    assert 0.5 < report["equal_symbols"] <= 1
    assert report["least_snr_db"] > 20
    assert report["products"] < report["of"], "the output layer stays in floats"
    auto, int8, floats = (
        PublishedModel.load(folder, device="cpu", precision=each) for each in ("auto", "int8", "fp32")
    )
    assert (auto.precision, int8.precision, floats.precision) == ("int8", "int8", "fp32")
    assert auto.digest == int8.digest != floats.digest
    assert check_rows(int8, int8.tokens.blank).dependent_bits == ()


def test_transcripts_give_error_rates_with_intervals(folder, tmp_path):
    rows = [{"audio": str(SAMPLES / "demo.flac"), "text": "some words", "source": "s", "speaker": "x", "duration": 9.0}]
    manifest = tmp_path / "speech.jsonl"
    manifest.write_text("\n".join(json.dumps(row) for row in rows * 2))
    done = run(folder, "--manifest", manifest, "--force")
    assert done.exit_code == 0, done.output
    assert "word error rate in floats: " in done.output
    assert "word error rate in int8: " in done.output
    assert "95 % interval" in done.output


def test_nothing_is_written_if_the_texts_differ_and_no_force_is_given(folder, monkeypatch):
    monkeypatch.setattr(tool, "MOST_DIFFERENT", -1.0)
    done = run(folder, "--audio", SAMPLES / "demo.flac")
    assert done.exit_code == 1
    assert "nothing was written: " in done.output
    assert "--force" in done.output
    assert not (folder / FILE).exists()


def test_force_writes_the_scales_although_the_texts_differ(folder, monkeypatch):
    monkeypatch.setattr(tool, "MOST_DIFFERENT", -1.0)
    done = run(folder, "--audio", SAMPLES / "demo.flac", "--force")
    assert done.exit_code == 0, done.output
    assert f"wrote {folder / FILE}: " in done.output
    assert PublishedModel.load(folder, device="cpu").precision == "int8"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "--audio: a published model needs recordings"),
        (("--audio", "x.wav", "--draws", 3), "--draws: does not apply to a published model"),
        (("--audio", "x.wav", "--out", "y"), "--out: does not apply to a published model"),
        (("--audio", "x.wav", "--validation", "y"), "--validation: does not apply to a published model"),
        (("--audio", "x.wav", "--seed", 1), "--seed: does not apply to a published model"),
        (("--manifest", "missing.jsonl"), "cannot read missing.jsonl"),
        (("--audio", "missing.wav"), "missing.wav: no such file or folder"),
    ],
)
def test_wrong_options_are_refused_by_name(folder, options, text):
    done = run(folder, *options)
    assert done.exit_code in {1, 2}
    assert text in done.output
    assert not (folder / FILE).exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--manifest", "m", "--out", "o", "--audio", "a.wav"), "--audio: does not apply to a checkpoint"),
        (("--manifest", "m", "--out", "o", "--force"), "--force: does not apply to a checkpoint"),
        (("--manifest", "m"), "--out: needed to quantize a checkpoint"),
        (("--out", "o"), "--manifest: needed to quantize a checkpoint"),
    ],
)
def test_options_of_published_models_are_refused_for_checkpoints(tmp_path, options, text):
    done = run(tmp_path / "a.safetensors", *options)
    assert done.exit_code == 2
    assert text in done.output


def test_recordings_shorter_than_a_step_are_refused(folder, tmp_path):
    (tmp_path / "short").mkdir()
    for number in range(120):
        soundfile.write(tmp_path / "short" / f"{number}.wav", np.full(400, 9_000, np.int16), 16_000)
    done = run(folder, "--audio", tmp_path / "short", "--force")
    assert done.exit_code == 1
    assert "the recordings are too short for a step of the model; give longer ones" in done.output
    assert not (folder / FILE).exists()


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(16_000, np.int16),
        np.zeros(480_000, np.int16),
        np.full(160_000, np.nan, np.float32),
        np.full(160_000, 9, np.int16),
    ],
    ids=["1 s", "30 s", "not a number", "a step of level"],
)
def test_silence_gives_no_scales(folder, tmp_path, samples, force):
    (folder / FILE).write_text("scales of speech")
    subtype = "FLOAT" if samples.dtype == np.float32 else "PCM_16"
    soundfile.write(tmp_path / "silent.wav", samples, 16_000, subtype=subtype)
    done = run(folder, "--audio", tmp_path / "silent.wav", *force)
    assert done.exit_code == 1
    assert "8-bit scales need at least 2 s of speech" in done.output
    assert (folder / FILE).read_text() == "scales of speech"


def quantized(**report):
    return tool.Quantized(None, {"words": 400, "wer_to_floats": 0.0} | report)


@pytest.mark.parametrize(
    ("report", "objection"),
    [
        ({}, None),
        ({"words": 0}, "the model finds 0 words in the recordings, too few to compare (at least 20)"),
        ({"words": 19, "wer_to_floats": 0.0}, "the model finds 19 words in the recordings, too few"),
        ({"wer_to_floats": 0.19}, "19.00% of the words differ from those in floats, more than 2%"),
        ({"wer_to_floats": 0.19, "wer_floats": {"wer": 0.8166}, "wer_int8": {"wer": 0.8110}}, None),
        ({"wer_to_floats": 0.19, "wer_floats": {"wer": 0.30}, "wer_int8": {"wer": 0.31}}, "the word error rate rises"),
        ({"wer_to_floats": 0.01, "wer_floats": {"wer": 0.30}, "wer_int8": {"wer": 0.31}}, None),
    ],
)
def test_error_rates_to_the_transcripts_decide_where_words_differ(report, objection):
    judged = quantized(**report)
    assert judged.acceptable is (objection is None)
    assert objection is None or judged.objection.startswith(objection)


def test_models_that_cannot_be_quantized_are_refused_with_the_reason(tmp_path):
    pcm = SAMPLES / "demo.flac"
    narrow = make_probe("nemo-ctc", tmp_path / "integers", quantized=True).folder
    assert (
        "model.int8.onnx cannot be quantized: 2 heads of 8 numbers are not supported"
        in run(narrow, "--audio", pcm).output
    )
    samples = make_probe("t-one-ctc", tmp_path / "samples").folder
    assert "model.onnx cannot be quantized: there is none for t-one-ctc" in run(samples, "--audio", pcm).output


def test_a_released_file_in_8_bits_is_a_source_of_weights(published, tmp_path):
    folder = tmp_path / "released"
    folder.mkdir()
    shutil.copy(published / "tokens.txt", folder)
    quantize_dynamic(published / "model.onnx", folder / "model.int8.onnx")
    done = run(folder, "--audio", SAMPLES / "demo.flac", "--force")
    assert done.exit_code == 0, done.output
    assert "running model.int8.onnx as released" in done.output
    assert "wer_of_floats_to_released" in json.loads((folder / FILE).read_text())["report"]
    model = PublishedModel.load(folder, device="cpu")
    assert model.scales is not None
    assert check_rows(model, model.tokens.blank).dependent_bits == ()


@pytest.mark.parametrize("kind", ["nemo-transducer", "zipformer2-transducer"])
def test_scales_of_a_transducer_include_its_decoder_and_joiner(kind: str, tmp_path: Path) -> None:
    make_probe(kind, tmp_path, **SIZES[kind])
    done = run(tmp_path, "--audio", SAMPLES / "demo.flac", "--force")
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / FILE).read_text())
    named = [name for name in (*document["products"], *document["left_out"]) if name.startswith(SEARCH)]
    expected = {"nemo-transducer": 7, "zipformer2-transducer": 3}
    assert len(named) == len(set(named)) == expected[kind]
    assert "joiner scores" in named
    model = PublishedModel.load(tmp_path, device="cpu")
    assert model.graph_search == ""
    assert check_rows(model, model.tokens.blank).dependent_bits == ()


def test_without_rewriting_a_model_is_not_quantized(folder, monkeypatch):
    monkeypatch.setenv("TUTTI_GRAPH_REWRITING", "off")
    done = run(folder, "--audio", SAMPLES / "demo.flac")
    assert done.exit_code == 1
    assert "TUTTI_GRAPH_REWRITING=off: 8-bit scales need a compiled step; use auto" in done.output


def test_scales_are_refused_without_a_compiled_step_and_for_other_files(folder, monkeypatch):
    assert run(folder, "--audio", SAMPLES / "demo.flac", "--force").exit_code == 0
    monkeypatch.setenv("TUTTI_GRAPH_REWRITING", "off")
    done = runner.invoke(app, ["model", "check", str(folder)])
    assert done.exit_code == 1
    assert "model.onnx has no compiled step (TUTTI_GRAPH_REWRITING=off), which tutti-int8.json is for" in done.output
    with (folder / "tokens.txt").open("a") as tokens:
        tokens.write("\n")
    done = runner.invoke(app, ["model", "check", str(folder)])
    assert done.exit_code == 1
    assert "tutti-int8.json was written for other files; run `tutti quantize` again" in done.output
