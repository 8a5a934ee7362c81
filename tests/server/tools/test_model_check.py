"""`tutti model check` and `tutti export`: true figures, an exit status that tells, our model for sherpa-onnx."""

from __future__ import annotations

import json
import re
import sys
from difflib import SequenceMatcher

import pytest
from typer.testing import CliRunner

from model.ctc.tokens import Tokens
from server.cli import app
from server.tools import model_check
from server.tools.model_check_report import lines
from server.tools.sherpa import Difference, as_shown, first_difference
from tests.support.audio.speech import SAMPLES
from tests.support.needs import need_package
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
def test_each_kind_is_described_and_has_the_tokens_of_sherpa_onnx(probe, kind):
    need_package("sherpa_onnx")
    made = probe(kind)
    code, found = checked(made.folder, "--audio", DEMO)
    assert (code, found["ok"], found["wrong"]) == (0, True, [])
    model = found["model"]
    assert (model["kind"], model["precision"], model["sample_rate"]) == (kind, "fp32", made.sample_rate)
    assert (model["symbols"], model["frame_ms"]) == (made.vocabulary, round(1000 * made.frame_s, 1))
    hop_ms = 10 if kind != "t-one-ctc" else 1000 / made.sample_rate
    assert (model["window_ms"], model["shift_ms"]) == (made.window * hop_ms, made.shift * hop_ms)
    assert found["rows"]["one_row"] == (kind == "wenet-ctc")
    assert found["audio"]["sherpa"]["equal"]
    assert found["audio"]["sherpa"]["tokens"] > 10
    assert found["audio"]["text"]
    assert set(found["speed"]["batch_ms"]) == {"1", "8", "32"}
    assert (found["speed"]["largest_batch"], found["speed"]["left_out"]) == (32, [128])
    assert found["speed"]["live_streams"] >= 1


def test_rows_that_depend_on_the_batch_are_wrong_and_said_in_words(probe):
    done = runner.invoke(app, ["model", "check", str(probe("zipformer2-ctc", quantized=True).folder)])
    assert done.exit_code == 1
    assert re.search(r"^kind +zipformer2-ctc, int8$", done.stdout, re.MULTILINE)
    assert "in batches of 2, 3, 8, 32 not to the bit" in done.stdout
    assert re.search(r"^wrong +streams in batches of .* have other symbols than alone", done.stdout, re.MULTILINE)


def test_other_tokens_of_sherpa_onnx_are_wrong_and_the_first_place_is_shown(probe, monkeypatch):
    need_package("sherpa_onnx")
    monkeypatch.setattr(model_check, "sherpa_tokens", lambda model, pcm: [" x"])
    document = model_check.check(
        model_check.Asked(probe("t-one-ctc").folder, DEMO, "cpu", "auto"), model_check.Settings()
    )
    assert not document["ok"]
    assert document["wrong"] == ["sherpa-onnx writes other tokens"]
    (line,) = [line for line in lines(document) if line.startswith("sherpa-onnx")]
    assert "token 0 is ' x' there, " in line


def test_our_own_model_answers_what_makes_sense_for_it():
    code, found = checked("--audio", DEMO)
    assert (code, found["ok"]) == (0, True)
    model = found["model"]
    assert (model["kind"], model["latency_ms"], model["spelling"]) == ("ctc-rnn", 400.0, "characters")
    assert found["rows"]["equal_bits"] == dict.fromkeys(("1", "2", "3", "8", "32"), True)
    assert set(found["speed"]["batch_ms"]) == {"1", "8", "32", "128"}
    assert "my account number is four seven one nine" in found["audio"]["text"]
    assert "tutti export" in found["audio"]["sherpa"]["left_out"]


def test_without_sherpa_onnx_the_text_alone_is_shown(probe, monkeypatch):
    monkeypatch.setattr(model_check, "sherpa_version", lambda: None)
    folder = probe("t-one-ctc").folder
    document = model_check.check(model_check.Asked(folder, DEMO, "cpu", "auto"), model_check.Settings())
    assert document["ok"]
    assert "not compared: it is not installed" in "\n".join(lines(document))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["."], "holds no .onnx file"),
        (["nowhere.onnx"], "nowhere.onnx does not exist"),
        (["--audio", "nowhere.wav"], "nowhere.wav: No such file"),
        (["--audio", __file__], "test_model_check.py: the body is not a supported recording"),
    ],
)
def test_what_cannot_be_loaded_or_decoded_is_one_sentence(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["model", "check", *arguments])
    assert (done.exit_code, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


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
def test_the_spelling_is_told_from_the_symbols(style, spelling):
    names = symbols("zipformer2-ctc", style, 320 if style == "bytes" else 60, seed=0)
    assert Tokens.of([name or " " for name in names], names.index("<blk>")).spelling == spelling


def test_tokens_are_compared_as_both_sides_show_them():
    assert as_shown(["▁a", "<0x6F>", "<0xD6>", "<unk>", " b"]) == [" a", "o", "<0xD6>", " b"]
    assert first_difference(["a", "b"], ["a", "b"]) is None
    assert first_difference(["a", "b"], ["a", "c"]) == Difference(1, "b", "c")
    assert first_difference(["a"], ["a", "c"]) == Difference(1, None, "c")


def test_our_model_exported_is_a_nemo_model_with_our_words_for_sherpa_onnx_and_for_us(tmp_path):
    need_package("onnx")
    need_package("sherpa_onnx")
    done = runner.invoke(app, ["export", str(tmp_path / "exported")])
    assert done.exit_code == 0, done.stderr
    assert "model.onnx" in done.stdout
    code, found = checked(tmp_path / "exported", "--audio", DEMO)
    assert (code, found["model"]["kind"], found["audio"]["sherpa"]["equal"]) == (0, "nemo-ctc", True)
    ours = checked("--audio", DEMO)[1]["audio"]["text"]
    theirs = found["audio"]["text"]  # greedy, letters, which spell by ear: "acoun't nomber"
    assert SequenceMatcher(None, ours, theirs).ratio() >= 0.8


def test_an_export_without_the_extra_names_the_command_that_adds_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    done = runner.invoke(app, ["export", str(tmp_path / "exported")])
    assert done.exit_code == 1
    assert "pip install" in done.stderr
    assert "[onnx]" in done.stderr
    assert not (tmp_path / "exported").exists()
