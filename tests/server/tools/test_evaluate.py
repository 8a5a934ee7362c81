"""`tutti evaluate`: combinations, the printed report, telephone codecs, unknown words, stability of partials."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from rich.console import Console
from structlog.testing import capture_logs
from typer.testing import CliRunner

from model.evaluation.stability import Stability
from model.recordings import Utterance
from server.cli import app
from server.cli.evaluate import combinations
from server.settings import Settings
from server.tools import evaluate_runs
from server.tools.evaluate import LINE_RATE, TABLES, CodedTranscriber, Evaluation, Watch, coded
from server.tools.evaluate_report import document, print_report
from tests.support.audio.speech import SAMPLES
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell
from tutti_asr_client.messages import Alternative, Channel, Results, StepTimings, Word
from tutti_asr_client.transcript import Transcript

NOTHING = dict.fromkeys(("precision", "decoder", "beams", "lm", "model", "device"))
REFERENCE = "turn the heating down"


def ran(*options: object) -> Any:
    return CliRunner().invoke(app, ["evaluate", *map(str, options)])


def spoken(*texts: str) -> list[Utterance]:
    return [Utterance(Path("x.wav"), text, "x", "s", 2.0) for text in texts]


def figures(*texts: str, references: Sequence[str] = ("one two", "three"), **facts: Any) -> dict[str, Any]:
    stability, by_part = facts.pop("stability", None), facts.pop("by_part", False)
    evaluation = Evaluation(spoken(*references), texts, 0.5, stability)
    return {**evaluation.figures(facts.pop("normalization", "basic"), by_part=by_part), **facts}


def printed(*combinations: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        print_report(combinations, console)
    return capture.get()


def line_of(text: str, name: str) -> list[str]:
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    (row,) = [row for row in rows if row[0] == name]
    return row[1:]


@pytest.fixture
def listed(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a manifest of one second of silence with this reference."""
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000, np.int16), 16_000)

    def write(text: str) -> Path:
        (tmp_path / "list.jsonl").write_text(json.dumps({"audio": "a.wav", "text": text, "duration": 1.0}))
        return tmp_path / "list.jsonl"

    return write


# Combinations and the report


def test_every_precision_is_run_with_every_decoder() -> None:
    asked = combinations({**NOTHING, "precision": "fp32,bf16", "decoder": "greedy,beam", "beams": 8}, 4)
    assert [(s.precision, s.decoder, s.beams, s.max_batch) for s in asked] == [
        *(("fp32", "greedy", None, 4), ("fp32", "beam", 8, 4)),
        *(("bf16", "greedy", None, 4), ("bf16", "beam", 8, 4)),
    ]
    (only,), default = combinations(NOTHING, 4), Settings()
    assert (only.precision, only.decoder, only.beams, only.lm) == (
        *(default.precision, default.decoder, default.beams, default.lm),
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--decoder", "greedy,guess"], "tutti: --decoder (TUTTI_DECODER): "),
        (["--normalize", "french"], "tutti: Invalid value for '--normalize': "),
        (["--url", "ws://127.0.0.1:9", "--beams", "4"], "tutti: --beams: cannot be combined with --url"),
        (["--url", "ws://127.0.0.1:9", "--codec", "mulaw"], "tutti: --codec: cannot be combined with --url"),
    ],
)
def test_options_without_a_meaning_are_refused(options: list[str], named: str) -> None:
    done = ran("--manifest", SAMPLES, *options)
    assert (done.exit_code, done.stderr.startswith(named)) == (2, True), done.stderr


def test_the_document_and_the_table_have_all_combinations() -> None:
    gap = {"largest": 2.25, "likely": 0.5}
    first = figures("one two", "three", precision="fp32", decoder="greedy")
    second = figures("one", "three", precision="bf16", decoder="beam", log_prob_difference_to_fp32=gap)
    both = json.loads(json.dumps(document([first, second])))
    assert (both["wer"], both["precision"]) == (0.0, "fp32")
    assert [one["wer"] for one in both["combinations"]] == [0.0, 0.3333]
    text = printed(first, second)
    assert line_of(text, "WER") == ["0.0000 (0.0000–0.0000)", "0.3333 (0.0000–0.5000)"]
    assert line_of(text, "WER x") == ["0.000 (0.000–0.000)", "0.333 (0.000–0.500)"]
    assert line_of(text, "largest Δ log-prob to fp32") == ["–", "2.25"]
    assert line_of(text, "real-time factor") == ["0.125", "0.125"]
    assert "fp32 greedy" in text
    assert "changed later" not in text


def test_rates_have_intervals_and_counts() -> None:
    found = figures(*["one two"] * 4, *["one too"] * 4, references=["one two"] * 8)
    low, high = found["wer_interval"]
    assert 0 < low < found["wer"] == 0.25 < high < 0.5
    text = printed(found)
    assert line_of(text, "WER") == [f"0.2500 ({low:.4f}–{high:.4f})"]
    assert (line_of(text, "words in the references"), line_of(text, "substitutions")) == (["16"], ["4"])
    assert found["bootstrap"] == {"confidence": 0.95, "resamples": 1000, "seed": 1}
    assert "in parentheses: 95% intervals, from 1,000 resamples of the recordings" in text


def test_the_report_has_rates_of_both_parts() -> None:
    both = [Utterance(Path(f"{name}.wav"), "one two", "x", name, 2.0) for name in ("ann", "ben")]  # B and A
    found = Evaluation(both, ("one too", "one two"), 0.5).figures(by_part=True)
    assert {name: part["wer"] for name, part in found["by_part"].items()} == {"A": 0.0, "B": 0.5}  # type: ignore[attr-defined]
    assert (line_of(printed(found), "WER, part A"), line_of(printed(found), "WER, part B")) == (["0.0000"], ["0.5000"])


REPORTS = {  # references, texts, normalization, word error rate, and sentences of the report
    "case": (["One, two.", "one two", " one  two "], ["ONE TWO"] * 3, "basic", 0.0, [
        "normalization: basic (lower case, no punctuation); it changed 1 of the 3 references and 3 of the transcripts"
    ]),
    "digits": (["i am ten", "one two"], ["I'm 10.", "one two"], "basic", 0.6, [
        "warning: 0 of the 2 references have digits, and 1 of the transcripts: each difference counts as an error; ",
        "--normalize english compares English texts without this difference",
    ]),
    "english": (["i am ten", "one two"], ["I'm 10.", "one two"], "english", 0.0, ["normalization: english ("]),
    "none": (["one two"], ["One, two"], "none", 0.5, [
        *(f"warning: 0 of the 1 references have {kind}, and 1 of the" for kind in ("capitals", "punctuation")),
        "--normalize basic compares without them",
    ]),
    "no words": (["um", "one two"], ["a", "one two"], "english", 1.0, [
        "1 of the 2 references have no words after normalization"
    ]),
    "chinese": (["今天天氣好。", "你好"], ["今天天气好", "你"], "basic", 0.1429, [
        "characters in the references",
        "2 of the 2 references are compared by characters: simplified, without punctuation and spaces",
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("references", "texts", "normalization", "wer", "sentences"), REPORTS.values(), ids=REPORTS)
def test_the_report_says_how_texts_were_compared(
    references: list[str], texts: list[str], normalization: str, wer: float, sentences: list[str]
) -> None:
    found = figures(*texts, references=references, normalization=normalization)
    text = printed(found)
    assert found["wer"] == wer
    assert [sentence for sentence in sentences if sentence not in text] == []
    assert ("warning" in text) == any("warning" in sentence for sentence in sentences)


def test_combinations_share_a_warning_or_have_their_own() -> None:
    runs = [figures(*texts, references=("ten", "two")) for texts in (("10", "two"), ("10", "two"), ("10", "2"))]
    assert printed(*runs).count("warning") == 2


@pytest.mark.parametrize("name", ["none", "english"])
def test_normalizations_for_words_refuse_chinese_references(listed: Callable[[str], Path], name: str) -> None:
    done = ran("--manifest", listed("你好"), "--url", "ws://127.0.0.1:9", "--normalize", name)
    assert (done.exit_code, f"--normalize {name} does not do; use --normalize basic" in done.stderr) == (1, True)


def test_a_missing_package_is_named_before_anything_is_recognized(
    listed: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.errors.find_spec", lambda _: None)
    url = ["--url", "ws://127.0.0.1:9"]
    error = ran("--manifest", "absent.jsonl", *url, "--normalize", "english").stderr
    assert "--normalize english needs whisper_normalizer" in error
    assert "scoring Chinese text needs opencc" in ran("--manifest", listed("你好"), *url).stderr


# Partials


def test_partials_are_rows_of_the_same_table() -> None:
    found = Stability(shown=4, changed=1, finals=2, shown_to_stable_s=[0.1, 0.3], end_to_stable_s=[0.5, 0.5])
    text = printed(figures("one two", "three", stability=found))
    assert line_of(text, "share of them changed later") == ["0.25"]
    assert line_of(text, "shown to stable, mean ms") == ["200"]
    assert printed(figures("one two", "three", stability=Stability())).count("–") >= 3  # no figure, not zero


def test_a_watch_keeps_recordings_apart() -> None:
    watch = Watch()
    for name, cursor_s, text, stable, final in (
        ("a", 1.0, "one", 0, False),
        ("b", 1.0, "two", 1, False),
        ("a", 3.0, "won", None, True),
        ("b", 4.0, "two", None, True),
    ):
        channel = Channel((Alternative(text, words=(Word(text, 0.0, cursor_s),)),))
        timings = None if stable is None else StepTimings(stable_words=stable)
        watch.results(Path(name), Results(channel, duration=cursor_s, is_final=final, tutti=timings), Transcript())
    found = watch.stability()
    assert (found.shown, found.changed, found.finals) == (3, 1, 2)
    assert sorted(found.shown_to_stable_s) == [0.0, 0.0]


@capture_logs()  # the server's own lines, which are in this process
def test_partials_of_a_running_server_are_measured_too(live_server: Callable[..., LiveServer], tmp_path: Path) -> None:
    soundfile.write(tmp_path / "hello.wav", np.concatenate([spell("hello there"), silence(0.5)]), 16_000)
    manifest, texts = tmp_path / "list.jsonl", tmp_path / "texts.jsonl"
    manifest.write_text(json.dumps({"audio": "hello.wav", "text": "hello where", "duration": 1.0}))
    done = ran("--manifest", manifest, "--url", f"ws://{live_server().host}", "--partials", "--json", "--texts", texts)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wer"] == 0.5
    assert found["partials"]["final_words"] == found["partials"]["shown_words"] == 2
    assert found["partials"]["stable_words_changed"] == 0
    assert json.loads(texts.read_text())["text"] == "hello there"


# Unknown words


@pytest.fixture
def evaluated(listed: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Evaluate a reference by a language model of some words, with a recognizer that returns empty texts."""

    async def evaluate(utterances: Any, *_: Any, **__: Any) -> Evaluation:
        return Evaluation(utterances, ("",) * len(utterances), 0.5)

    monkeypatch.setattr(evaluate_runs, "evaluate", evaluate)

    def run(reference: str, words: Sequence[str] | None, *options: str) -> tuple[str, Any]:
        lm: list[object] = []
        if words is not None:
            head = f"\\data\\\nngram 1={len(words) + 3}\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-1\t</s>\n"
            (tmp_path / "own.arpa").write_text(head + "".join(f"-1\t{word}\n" for word in words) + "\n\\end\\\n")
            lm = ["--lm", tmp_path / "own.arpa"]
        done = ran("--manifest", listed(reference), "--json", "--decoder", "beam", *lm, *options)
        assert done.exit_code == 0, done.output
        return done.stderr, json.loads(done.stdout.splitlines()[-1]).get("lm_unknown_words")

    return run


@pytest.mark.parametrize(
    ("words", "lacks", "share"),
    [
        (["yes", "no"], "lacks 4 of the 4 different words of the references (100% of all words)", 1.0),
        (["turn", "the"], "lacks 2 of the 4 different words of the references (50% of all words)", 0.5),
        (["turn", "the", "heating"], "", 0.25),
        (REFERENCE.split(), "", 0.0),
        (None, "", None),  # the shipped model
    ],
)
def test_a_language_model_without_most_of_the_words_is_reported(
    evaluated: Any, words: list[str] | None, lacks: str, share: float | None
) -> None:
    warned, unknown = evaluated("Turn the HEATING down!", words)
    assert unknown == share
    assert (f"own.arpa {lacks}: they cannot be recognized" in warned) if lacks else ("warning" not in warned)


def test_a_file_is_reported_once_for_all_combinations(evaluated: Any) -> None:
    assert evaluated(REFERENCE, ["yes"], "--model", "gru", "--precision", "fp32,int8")[0].count("warning") == 1


# Codecs


@pytest.mark.parametrize(("name", "subtype"), [("mulaw", "ULAW"), ("alaw", "ALAW")])
def test_samples_are_encoded_to_the_nearest_code(name: str, subtype: str) -> None:
    """Like libsndfile except for ties; all codes but the second zero survive a round trip."""
    table = TABLES[name]()
    pcm = np.arange(-32_768, 32_768).astype(np.int16)
    error = np.abs(table[coded(pcm, table)].astype(int) - pcm)
    inside = (np.abs(pcm.astype(int)) > 256) & (np.abs(pcm.astype(int)) < 32_000)
    assert (error[inside] / np.abs(pcm[inside].astype(float))).max() < 0.04
    file = io.BytesIO()
    soundfile.write(file, pcm, LINE_RATE, format="RAW", subtype=subtype)
    theirs = table[np.frombuffer(file.getvalue(), np.uint8)]
    assert (error <= np.abs(theirs.astype(int) - pcm)).all()
    assert np.array_equal(table[coded(table, table)], table)


def test_a_recording_is_coded_chunk_by_chunk() -> None:
    received: list[bytes] = []

    class Local:
        async def stream(self, pcm: AsyncIterator[bytes]) -> AsyncIterator[str]:
            async for chunk in pcm:
                received.append(chunk)
                yield "message"

    async def source() -> AsyncIterator[bytes]:
        for start in range(0, 1_000, 100):
            yield np.arange(start, start + 100, dtype="<i2").tobytes()

    async def run() -> list[str]:
        return [message async for message in CodedTranscriber(Local(), TABLES["mulaw"]()).stream(source())]  # type: ignore[arg-type]

    assert len(asyncio.run(run())) == 10
    samples = np.frombuffer(b"".join(received), "<i2")
    assert 0 < np.abs(samples - np.arange(1_000)).max() <= 32


def test_error_rates_with_and_without_a_codec_are_in_one_report(tmp_path: Path) -> None:
    lines = SAMPLES.read_text(encoding="utf-8").splitlines()
    few = [json.loads(line) for line in lines if "call_back" in line or '"yes.flac"' in line]
    manifest = tmp_path / "few.jsonl"
    manifest.write_text("".join(json.dumps({**u, "audio": str(SAMPLES.parent / u["audio"])}) + "\n" for u in few))
    options = ["--model", "gru", "--decoder", "greedy", "--precision", "fp32", "--codec", "none,mulaw", "--json"]
    done = ran("--manifest", manifest, *options)
    plain, telephone = json.loads(done.stdout.splitlines()[-1])["combinations"]
    assert (plain.get("codec"), telephone["codec"]) == (None, "mulaw")
    assert plain["texts_sha256"] != telephone["texts_sha256"], "the codec changes at least one word"
    assert "fp32 greedy mulaw" in done.stderr
