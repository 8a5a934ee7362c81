"""`tutti evaluate`: combinations, the printed report, and stability of partials."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rich.console import Console
from typer.testing import CliRunner

from model.evaluation.stability import Stability
from model.recordings import Utterance
from server.cli import app
from server.cli.evaluate import combinations
from server.settings import Settings
from server.tools.evaluate import Evaluation, Watch
from server.tools.evaluate_report import document, print_report
from tests.support.audio.speech import SAMPLES
from tests.support.servers.spelling import silence, spell
from tutti_asr_client.messages import Alternative, Channel, Results, StepTimings, Word
from tutti_asr_client.transcript import Transcript

runner = CliRunner()
NOTHING = dict.fromkeys(("precision", "decoder", "beams", "lm", "model", "device"))


def utterance(text, source, seconds=2.0):
    return Utterance(Path(f"{source}.wav"), text, source, "s", seconds)


def figures(precision, decoder, *, text="one two", stability=None, **facts):
    spoken = [utterance("one two", "x"), utterance("three", "y")]
    evaluation = Evaluation(spoken, (text, "three"), 0.5, stability)
    return {**evaluation.figures(), "precision": precision, "decoder": decoder, **facts}


def printed(*combinations):
    console = Console(width=120)
    with console.capture() as capture:
        print_report(combinations, console)
    return capture.get()


def line_of(text, name):
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    (row,) = [row for row in rows if row[0] == name]
    return row[1:]


def test_every_precision_is_run_with_every_decoder():
    asked = combinations({**NOTHING, "precision": "fp32,bf16", "decoder": "greedy,beam", "beams": 8}, 4)
    assert [(s.precision, s.decoder, s.beams, s.max_batch) for s in asked] == [
        ("fp32", "greedy", 8, 4),
        ("fp32", "beam", 8, 4),
        ("bf16", "greedy", 8, 4),
        ("bf16", "beam", 8, 4),
    ]


def test_without_options_one_combination_is_run_with_the_server_defaults():
    (only,) = combinations(NOTHING, 4)
    default = Settings()
    assert (only.precision, only.decoder, only.beams, only.lm) == (
        default.precision,
        default.decoder,
        default.beams,
        default.lm,
    )


def test_an_unknown_decoder_is_named():
    result = runner.invoke(app, ["evaluate", "--manifest", str(SAMPLES), "--decoder", "greedy,guess"])
    assert result.exit_code == 2
    assert result.stderr.startswith("tutti: --decoder guess: must be ")


def test_options_determined_by_the_server_are_rejected_with_url():
    result = runner.invoke(app, ["evaluate", "--manifest", str(SAMPLES), "--url", "ws://127.0.0.1:9", "--beams", "4"])
    assert result.exit_code == 2
    assert "--beams" in result.output


def test_the_document_has_the_first_combinations_keys_and_all_combinations():
    first, second = figures("fp32", "greedy"), figures("bf16", "beam", text="one")
    both = document([first, second])
    assert both["wer"] == first["wer"] == 0.0
    assert both["precision"] == "fp32"
    assert [one["wer"] for one in both["combinations"]] == [0.0, 0.3333]
    assert json.loads(json.dumps(both)) == both


def test_the_table_has_a_column_for_each_combination():
    gap = {"largest": 2.25, "likely": 0.5}
    text = printed(figures("fp32", "greedy"), figures("bf16", "beam", text="one", log_prob_difference_to_fp32=gap))
    assert line_of(text, "WER") == ["0.0000 (0.0000–0.0000)", "0.3333 (0.0000–0.5000)"]
    assert line_of(text, "WER x") == ["0.000", "0.500"]
    assert line_of(text, "largest Δ log-prob to fp32") == ["–", "2.25"]
    assert line_of(text, "real-time factor") == ["0.125", "0.125"]
    assert "changed later" not in text


def test_partials_are_rows_of_the_same_table():
    found = Stability(shown=4, changed=1, finals=2, shown_to_stable_s=[0.1, 0.3], end_to_stable_s=[0.5, 0.5])
    text = printed(figures("fp32", "beam", stability=found))
    assert line_of(text, "share of them changed later") == ["0.25"]
    assert line_of(text, "shown to stable, mean ms") == ["200"]
    assert printed(figures("fp32", "beam", stability=Stability())).count("–") >= 3  # no partials: no figure, not zero


def results(cursor_s, text, *, stable=None, final=False):
    words = tuple(Word(word, 0.0, cursor_s) for word in text.split())
    timings = StepTimings(stable_words=stable) if stable is not None else None
    channel = Channel((Alternative(text, words=words),))
    return Results(channel, duration=cursor_s, is_final=final, tutti=timings)


def test_a_watch_keeps_recordings_apart():
    watch, shown = Watch(), Transcript()
    watch.results(Path("a"), results(1.0, "one", stable=0), shown)
    watch.results(Path("b"), results(1.0, "two", stable=1), shown)
    watch.results(Path("a"), results(3.0, "won", final=True), shown)
    watch.results(Path("b"), results(4.0, "two", final=True), shown)
    found = watch.stability()
    assert (found.shown, found.changed, found.finals) == (3, 1, 2)
    assert sorted(found.shown_to_stable_s) == [0.0, 0.0]


def test_partials_of_a_running_server_are_measured_too(live_server, tmp_path):
    soundfile.write(tmp_path / "hello.wav", np.concatenate([spell("hello there"), silence(0.5)]), 16_000)
    manifest = tmp_path / "list.jsonl"
    manifest.write_text(json.dumps({"audio": "hello.wav", "text": "hello where", "duration": 1.0}))
    options = ["--url", f"ws://{live_server().host}", "--partials", "--json", "--texts", str(tmp_path / "texts.jsonl")]
    result = runner.invoke(app, ["evaluate", "--manifest", str(manifest), *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["wer"] == 0.5
    assert found["partials"]["final_words"] == found["partials"]["shown_words"] == 2
    assert found["partials"]["stable_words_changed"] == 0
    assert json.loads((tmp_path / "texts.jsonl").read_text())["text"] == "hello there"


def test_the_report_has_rates_of_both_parts():
    spoken = [Utterance(Path(f"{name}.wav"), "one two", "x", name, 2.0) for name in ("ann", "ben")]  # B and A
    figures = Evaluation(spoken, ("one too", "one two"), 0.5).figures(by_part=True)
    assert {name: part["wer"] for name, part in figures["by_part"].items()} == {"A": 0.0, "B": 0.5}
    text = printed(figures)
    assert (line_of(text, "WER, part A"), line_of(text, "WER, part B")) == (["0.0000"], ["0.5000"])


def report_of(references, texts, normalization="basic"):
    evaluation = Evaluation([utterance(text, "x") for text in references], tuple(texts), 0.5)
    figures = evaluation.figures(normalization)
    return figures, printed(figures)


def test_the_report_says_how_texts_were_normalized():
    figures, text = report_of(["One, two.", "one two", " one  two "], ["ONE TWO"] * 3)
    assert (figures["wer"], figures["normalize"]) == (0.0, "basic")
    assert (figures["references_normalized"], figures["transcripts_normalized"]) == (1, 3)
    assert (
        "normalization: basic (lower case, no punctuation); it changed 1 of the 3 references and 3 of the transcripts"
        in text
    )
    assert "warning" not in text


def test_digits_on_one_side_get_a_warning_and_none_with_english():
    spoken = ["i am ten", "one two"], ["I'm 10.", "one two"]
    figures, text = report_of(*spoken)
    assert (figures["wer"], figures["one_sided"]["digits"]) == (0.6, {"references": 0, "transcripts": 1})
    assert (
        "warning: 0 of the 2 references have digits, and 1 of the transcripts: each difference counts as an error; "
        "--normalize english compares English texts without this difference" in text
    )
    figures, text = report_of(*spoken, "english")
    assert (figures["wer"], figures["normalize"], figures["one_sided"]) == (0.0, "english", {})
    assert "normalization: english (" in text
    assert "warning" not in text


def test_capitals_and_punctuation_on_one_side_get_a_warning_without_normalization():
    figures, text = report_of(["one two"], ["One, two"], "none")
    assert figures["wer"] == 0.5
    assert set(figures["one_sided"]) == {"capitals", "punctuation"}
    for kind in ("capitals", "punctuation"):
        assert f"warning: 0 of the 1 references have {kind}, and 1 of the transcripts" in text
    assert "--normalize basic compares without them" in text


def test_combinations_share_a_warning_or_have_their_own():
    spoken = [utterance("ten", "x"), utterance("two", "x")]
    runs = [Evaluation(spoken, texts, 0.5).figures() for texts in (("10", "two"), ("10", "two"), ("10", "2"))]
    text = printed(*runs)
    assert text.count("warning") == 2
    assert "changed 0 of the 2 references and 0 of the transcripts" in text


def test_a_reference_without_words_after_normalization_is_counted():
    figures, text = report_of(["um", "one two"], ["a", "one two"], "english")
    assert (figures["insertions"], figures["references_without_words"]) == (1, 1)
    assert "1 of the 2 references have no words after normalization" in text


def test_rates_have_intervals_in_the_table_and_in_the_document():
    figures, text = report_of(["one two"] * 8, ["one two"] * 4 + ["one too"] * 4)
    low, high = figures["wer_interval"]
    assert 0 < low < figures["wer"] == 0.25 < high < 0.5
    assert line_of(text, "WER") == [f"0.2500 ({low:.4f}–{high:.4f})"]
    assert line_of(text, "WER x") == [f"0.250 ({low:.3f}–{high:.3f})"]
    assert line_of(text, "words in the references") == ["16"]
    assert line_of(text, "substitutions") == ["4"]
    assert figures["bootstrap"] == {"confidence": 0.95, "resamples": 1000, "seed": 1}
    assert "in parentheses: 95% intervals, from 1,000 resamples of the recordings" in text
    assert json.loads(json.dumps(document([figures])))["cer_interval"] == figures["cer_interval"]


def test_chinese_references_are_compared_by_characters_and_the_report_says_so():
    figures, text = report_of(["今天天氣好。", "你好"], ["今天天气好", "你"])
    assert (figures["words"], figures["deletions"], figures["references_in_characters"]) == (7, 1, 2)
    assert line_of(text, "characters in the references") == ["7"]
    assert "2 of the 2 references are compared by characters: simplified, without punctuation and spaces" in text


@pytest.fixture
def listed(tmp_path):
    """Return a function that writes a manifest of one second of silence with this reference."""
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000, np.int16), 16_000)
    path = tmp_path / "list.jsonl"

    def write(text):
        path.write_text(json.dumps({"audio": "a.wav", "text": text, "duration": 1.0}))
        return path

    return write


def refused(path, *options):
    """Return the error of an evaluation that must not reach the server, where nothing listens."""
    result = runner.invoke(app, ["evaluate", "--manifest", str(path), "--url", "ws://127.0.0.1:9", *options])
    assert result.exit_code == 1
    return result.stderr


@pytest.mark.parametrize("name", ["none", "english"])
def test_normalizations_for_words_refuse_chinese_references(listed, name):
    problem = refused(listed("你好"), "--normalize", name)
    assert f"which --normalize {name} does not do; use --normalize basic" in problem


def test_a_missing_package_is_named_before_anything_is_recognized(listed, monkeypatch):
    monkeypatch.setattr("model.errors.find_spec", lambda _: None)
    assert "--normalize english needs whisper_normalizer" in refused("absent.jsonl", "--normalize", "english")
    assert "scoring Chinese text needs opencc" in refused(listed("你好"))


def test_an_unknown_normalization_is_named():
    result = runner.invoke(app, ["evaluate", "--manifest", str(SAMPLES), "--normalize", "french"])
    assert result.exit_code == 2
    assert result.stderr.startswith("tutti: Invalid value for '--normalize': 'french' is not one of")
