"""`tutti model check` and `tutti export`: figures, exit status, and our model in sherpa-onnx."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from difflib import SequenceMatcher

import pytest
from typer.testing import CliRunner

from model.ctc.tokens import Tokens
from model.published.compiled.compiling import Verdict
from server.cli import app
from server.tools import model_check
from server.tools.model_check_report import lines
from server.tools.sherpa import Difference, as_shown, first_difference
from tests.support.audio.speech import SAMPLES
from tests.support.needs import need_package
from tests.support.networks.compiled import SIZES
from tests.support.networks.probes import KINDS, make_probe
from tests.support.networks.probes.tokens import symbols

DEMO = SAMPLES.parent / "demo.flac"
runner = CliRunner()


def checked(*arguments):
    done = runner.invoke(app, ["model", "check", "--json", *map(str, arguments)])
    assert done.stdout, done.stderr
    return done.exit_code, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    return lambda kind, **changes: make_probe(kind, tmp_path_factory.mktemp(kind), **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_described_with_the_same_tokens_as_sherpa_onnx(probe, kind):
    need_package("sherpa_onnx")
    made = probe(kind)
    code, found = checked(made.folder, "--audio", DEMO)
    assert (code, found["ok"], found["wrong"]) == (0, True, [])
    model = found["model"]
    assert (model["kind"], model["precision"], model["sample_rate"]) == (kind, "fp32", made.sample_rate)
    assert (model["symbols"], model["frame_ms"]) == (made.vocabulary, round(1000 * made.frame_s, 1))
    hop_ms = 10 if kind != "t-one-ctc" else 1000 / made.sample_rate
    assert (model["window_ms"], model["shift_ms"]) == (made.window * hop_ms, made.shift * hop_ms)
    assert model["context_ms"] == (5_600 if kind == "nemo-buffered-transducer" else 0)
    assert ("earlier audio, which every step computes again" in "\n".join(lines(found))) == (model["context_ms"] > 0)
    assert found["rows"]["one_row"] is False
    assert found["audio"]["sherpa"]["equal"]
    assert found["audio"]["sherpa"]["tokens"] > 10
    assert found["audio"]["text"]
    assert set(found["speed"]["batch_ms"]) == {"1", "8", "32"}
    assert (found["speed"]["largest_batch"], found["speed"]["left_out"]) == (32, [128])
    assert found["speed"]["live_streams"] >= 1


def test_rows_that_depend_on_the_batch_are_a_problem(probe):
    done = runner.invoke(app, ["model", "check", str(probe("zipformer2-ctc", quantized=True).folder)])
    assert done.exit_code == 1
    assert re.search(r"^kind +zipformer2-ctc, int8$", done.stdout, re.MULTILINE)
    assert "in batches of 2, 3, 8, 32 not bit-identical" in done.stdout
    assert re.search(r"^wrong +symbols in batches of .* differ from those alone", done.stdout, re.MULTILINE)


def test_compute_threads_are_shown_with_the_reason_where_batches_are_not_divided(probe):
    divided, whole = (probe("zipformer2-ctc", quantized=quantized).folder for quantized in (False, True))
    code, found = checked(divided, "--threads", 2)
    assert (code, found["speed"]["threads"], found["speed"]["undivided"]) == (0, 2, "")
    assert checked(divided, "--threads", 1)[1]["speed"]["threads"] == 1
    shown = runner.invoke(app, ["model", "check", str(divided), "--threads", "2"]).stdout
    assert re.search(r"^threads +2$", shown, re.MULTILINE)
    shown = runner.invoke(app, ["model", "check", str(whole), "--threads", "2"]).stdout
    reason = "batches are not divided among threads, because a row's bits depend on the number of rows"
    assert re.search(rf"^threads +1: {reason}$", shown, re.MULTILINE)


def test_different_tokens_of_sherpa_onnx_are_a_problem_with_their_first_position(probe, monkeypatch):
    need_package("sherpa_onnx")
    monkeypatch.setattr(model_check, "sherpa_tokens", lambda model, pcm: [" x"])
    document = model_check.check(
        model_check.Asked(probe("t-one-ctc").folder, DEMO, "cpu", "auto"), model_check.Settings()
    )
    assert not document["ok"]
    assert document["wrong"] == ["sherpa-onnx outputs different tokens"]
    (line,) = [line for line in lines(document) if line.startswith("sherpa-onnx")]
    assert "token 0 is ' x' in sherpa-onnx, " in line


def test_the_shipped_model_is_described_without_a_comparison():
    code, found = checked("--audio", DEMO)
    assert (code, found["ok"]) == (0, True)
    model = found["model"]
    assert (model["kind"], model["latency_ms"], model["spelling"]) == ("ctc-attention", 400.0, "characters")
    assert checked("fast")[1]["model"]["file_bytes"] == model["file_bytes"]
    assert "words in noise   dropped" in lines(found)
    assert found["rows"]["equal_bits"] == dict.fromkeys(("1", "2", "3", "8", "32"), True)
    assert set(found["speed"]["batch_ms"]) == {"1", "8", "32", "128"}
    assert "my account number is four seven one nine" in found["audio"]["text"]
    assert "tutti export" in found["audio"]["sherpa"]["left_out"]


def test_without_sherpa_onnx_only_the_text_is_shown(probe, monkeypatch):
    monkeypatch.setattr(model_check, "sherpa_version", lambda: None)
    folder = probe("t-one-ctc").folder
    document = model_check.check(model_check.Asked(folder, DEMO, "cpu", "auto"), model_check.Settings())
    assert document["ok"]
    assert "not compared: it is not installed" in "\n".join(lines(document))
    drop = "drop_words_in_noise = true in a file of models drops them"
    assert f"words in noise   kept; {drop}" in lines(document)


@pytest.fixture(scope="module")
def exported(probe):
    """Return the folder of a FastConformer with the nodes of a released one."""
    return probe("nemo-ctc", hidden=64).folder


def test_a_compiled_step_is_shown_with_the_times_of_the_graph_as_published(exported):
    code, found = checked(exported)
    assert code == 0
    assert found["compiled_step"]["applied"]
    assert found["as_published"]["precision"] == "fp32"
    assert set(found["as_published"]["batch_ms"]) == {"1", "8"}
    assert "int8" not in found
    shown = runner.invoke(app, ["model", "check", str(exported)]).stdout
    assert re.search(r"^compiled step +runs, largest difference (0|\d\.\de-\d\d) in floats$", shown, re.MULTILINE)
    for rows in (1, 8):
        assert re.search(rf"^ +batch of {rows}: [\d.]+ ms as published, [\d.]+ ms compiled$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (SIZES["nemo-transducer"], "decoder and joiner: compiled"),
        ({"hidden": 64}, "decoder and joiner: as published, the joiner is not a linear layer after ReLU or tanh"),
    ],
    ids=["exported", "another joiner"],
)
def test_it_is_shown_whether_the_search_of_a_transducer_is_compiled(probe, changes, line):
    code, found = checked(probe("nemo-transducer", **changes).folder)
    assert code == 0
    assert re.search(rf"^ +{re.escape(line)}$", "\n".join(lines(found)), re.MULTILINE)


def test_without_a_compiled_step_nothing_is_compared(exported, probe, monkeypatch):
    found = checked(probe("t-one-ctc").folder)[1]
    assert "as_published" not in found
    assert re.search("^compiled step +none: there is none for t-one-ctc$", "\n".join(lines(found)), re.MULTILINE)
    monkeypatch.setenv("TUTTI_GRAPH_REWRITING", "off")
    code, found = checked(exported)
    assert code == 0
    assert not {"compiled_step", "as_published", "int8"} & found.keys()


def test_one_of_several_graphs_is_compared_with_itself(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "several")
    shutil.copy(folder / "model.onnx", folder / "other.onnx")
    code, found = checked(folder / "other.onnx")
    assert code == 0
    assert found["as_published"]["batch_ms"]


def test_the_report_of_8_bit_scales_is_shown(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "quantized")
    manifest = tmp_path / "speech.jsonl"
    manifest.write_text(json.dumps({"audio": str(DEMO), "text": "some words"}))
    done = runner.invoke(app, ["quantize", str(folder), "--manifest", str(manifest), "--force"])
    assert done.exit_code == 0, done.output
    document = model_check.check(model_check.Asked(folder, None, "cpu", "auto"), model_check.Settings())
    assert document["model"]["precision"] == "int8"
    assert document["as_published"]["precision"] == "fp32"
    report = document["int8"]
    assert report["products"] + len(report["left_out"]) == report["of"]
    shown = "\n".join(lines(document))
    products = f"{report['products']} of {report['of']} products, {len(report['left_out'])} left in floats"
    assert re.search(rf"^int8 +{products}; scales from 8 s of audio$", shown, re.MULTILINE)
    assert f"symbols {report['equal_symbols']:.2%} equal to those in floats" in shown
    assert f"to the transcripts {report['wer_floats']['wer']:.2%} in floats" in shown
    assert re.search(r"batch of 8: [\d.]+ ms as published, [\d.]+ ms compiled$", shown, re.MULTILINE)


@pytest.mark.parametrize(("largest", "shown"), [(0.02, "2.0e-02"), (float("inf"), "not finite")])
def test_the_difference_of_a_step_that_is_not_used_is_shown(exported, monkeypatch, largest, shown):
    loaded = model_check.load_model(exported, device="cpu", precision="auto", threads=1, rewriting="off")
    verdict = Verdict(False, "the results differ", largest)
    monkeypatch.setattr(model_check, "load_model", lambda *_, **__: replace(loaded, verdict=verdict))
    document = model_check.check(model_check.Asked(exported, None, "cpu", "auto"), model_check.Settings())
    json.dumps(document, allow_nan=False)
    assert f"none: the results differ; largest difference {shown}" in "\n".join(lines(document))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["."], "has no .onnx file"),
        (["nowhere.onnx"], "nowhere.onnx does not exist"),
        (["--audio", "nowhere.wav"], "nowhere.wav: No such file"),
        (["--audio", __file__], "test_model_check.py: not a supported recording"),
    ],
)
def test_files_that_cannot_be_loaded_or_decoded_are_reported_in_one_line(arguments, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["model", "check", *arguments])
    assert (done.exit_code, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("style", "spelling"),
    [
        ("bpe", "pieces"),
        ("bytes", "pieces and bytes"),
        ("byte-bpe", "byte-level BPE"),
        ("characters", "characters"),
        ("chinese", "characters"),
    ],
)
def test_the_spelling_is_inferred_from_the_symbols(style, spelling):
    names = symbols("zipformer2-ctc", style, 320 if style == "bytes" else 60, seed=0)
    assert Tokens.of([name or " " for name in names], names.index("<blk>")).spelling == spelling


def test_tokens_are_compared_in_a_common_form():
    assert as_shown(["▁a", "<0x6F>", "<0xD6>", "<unk>", " b"]) == [" a", "o", "<0xD6>", " b"]
    assert first_difference(["a", "b"], ["a", "b"]) is None
    assert first_difference(["a", "b"], ["a", "c"]) == Difference(1, "b", "c")
    assert first_difference(["a"], ["a", "c"]) == Difference(1, None, "c")


def test_the_exported_model_is_a_nemo_model_with_the_same_words_here_and_in_sherpa_onnx(tmp_path):
    need_package("onnx")
    need_package("sherpa_onnx")
    done = runner.invoke(app, ["export", str(tmp_path / "exported")])
    assert done.exit_code == 0, done.stderr
    assert "model.onnx" in done.stdout
    code, found = checked(tmp_path / "exported", "--audio", DEMO)
    assert (code, found["model"]["kind"], found["audio"]["sherpa"]["equal"]) == (0, "nemo-ctc", True)
    ours = checked("--audio", DEMO)[1]["audio"]["text"]
    theirs = found["audio"]["text"]  # greedy, without a language model: "acoun't nomber"
    assert SequenceMatcher(None, ours, theirs).ratio() >= 0.8


def test_an_export_without_the_extra_shows_the_command_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    done = runner.invoke(app, ["export", str(tmp_path / "exported")])
    assert done.exit_code == 1
    assert "pip install" in done.stderr
    assert "[onnx]" in done.stderr
    assert not (tmp_path / "exported").exists()
