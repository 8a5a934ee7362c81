"""`tutti evaluate`: combinations, the printed report, and stability of partials."""

import json
from pathlib import Path

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
    assert result.stderr.startswith("tutti: --decoder guess: ")


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
    assert line_of(text, "WER") == ["0.0000", "0.3333"]
    assert line_of(text, "WER x") == ["0.000", "0.500"]
    assert line_of(text, "largest Δ log-prob to fp32") == ["–", "2.25"]
    assert line_of(text, "real-time factor") == ["0.125", "0.125"]
    assert "changed" not in text


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
    import numpy as np
    import soundfile

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
    evaluation = Evaluation(spoken, ("one too", "one two"), 0.5)
    parts = evaluation.by_part()
    assert {name: part["wer"] for name, part in parts.items()} == {"A": 0.0, "B": 0.5}
    text = printed({**evaluation.figures(), "by_part": parts})
    assert (line_of(text, "WER, part A"), line_of(text, "WER, part B")) == (["0.0000"], ["0.5000"])


def report_of(*references):
    spoken = [utterance(text, "x") for text in references]
    evaluation = Evaluation(spoken, ("one two",) * len(spoken), 0.5)
    return evaluation.figures(), printed(evaluation.figures())


def test_the_report_counts_normalized_references():
    figures, text = report_of("One, two.", "ONE TWO", "“one two”", "one two", "  one  two ")
    assert (figures["wer"], figures["references_normalized"]) == (0.0, 3)
    assert "capitals and punctuation of 3 of the 5 references are normalized before comparison" in text


def test_the_report_says_that_digits_in_references_count_as_errors():
    figures, text = report_of("1 two", "one two")
    assert (figures["wer"], figures["references_with_digits"]) == (0.25, 1)
    assert "1 of the 2 references have digits, but transcripts spell numbers as words: each counts as an error" in text
    assert "normalized" not in text


def test_references_without_normalization_or_digits_get_no_note():
    figures, text = report_of("one two", "one two")
    assert (figures["references_normalized"], figures["references_with_digits"]) == (0, 0)
    assert "normalized" not in text
    assert "digits" not in text
