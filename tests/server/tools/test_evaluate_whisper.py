"""`tutti evaluate --against whisper:DIR` without a real model; with one: tests/ecosystem/whisper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from model.errors import CheckpointError
from model.recordings import Utterance
from model.whisper import Whisper, WhisperReading
from server.cli import app
from server.tools import evaluate_whisper
from server.tools.evaluate import evaluate
from server.tools.evaluate_whisper import Against, WhisperTranscriber
from tests.server.tools.test_evaluate import figures, line_of, printed
from tests.support.audio.speech import SAMPLES


class Reader:
    """Says how many samples it received."""

    def __init__(self, *languages: str) -> None:
        self.languages = list(languages)
        self.received: list[tuple[int, str]] = []

    def has_language(self, tag: str) -> bool:
        return tag in self.languages

    def read(self, pcm: np.ndarray[Any, Any], language: str) -> WhisperReading:
        self.received.append((len(pcm), language))
        return WhisperReading("some words", 1.0, 1.0)


def transcribed(transcriber: WhisperTranscriber, samples: int) -> list[Any]:
    async def pcm() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield np.zeros(samples // 2, "<i2").tobytes()

    async def run() -> list[Any]:
        return [message async for message in transcriber.stream(pcm())]

    return asyncio.run(run())


@pytest.mark.parametrize("rate", [16_000, 8_000])
def test_a_recording_is_read_as_a_whole_at_sixteen_kilohertz(rate: int) -> None:
    reader = Reader("en")
    (final,) = transcribed(WhisperTranscriber(reader, "en", rate), 2 * rate)  # type: ignore[arg-type]
    assert reader.received == [(32_000, "en")]
    assert (final.is_final, final.text, final.duration) == (True, "some words", 2.0)


def loaded(monkeypatch: pytest.MonkeyPatch, reader: Reader, *languages: str) -> Against:
    monkeypatch.setattr(Whisper, "load", lambda *_: reader)
    return Against.load(Path("dir"), languages)


def test_the_language_is_the_first_of_our_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(monkeypatch, Reader("en", "zh"), "zh", "en").language == "zh"
    assert loaded(monkeypatch, Reader("en")).language == "en"
    with pytest.raises(CheckpointError, match="does not have the language 'zh'"):
        loaded(monkeypatch, Reader("en"), "zh")
    with pytest.raises(CheckpointError, match="language of our model is not known; set --language"):
        loaded(monkeypatch, Reader("en", "zh"))


def test_the_processor_time_is_that_of_the_recognition(monkeypatch: pytest.MonkeyPatch) -> None:
    opener = loaded(monkeypatch, Reader("en"), "en").opener(None)
    recording = Utterance(SAMPLES.parent / "yes.flac", "yes", "x", "s", 2.0)
    readings = iter([10.0, 13.0])
    found = asyncio.run(evaluate([recording], opener, 1, core_clock=lambda: next(readings)))
    assert (found.core_s, found.figures()["core_s_per_hour"]) == (3.0, 5_400.0)
    assert asyncio.run(evaluate([recording], opener, 1)).figures()["core_s_per_hour"] is None


def test_the_table_has_a_column_of_it() -> None:
    ours = figures("one two", "three", precision="int8", decoder="beam", partials={"shown_words": 3})
    text = printed(ours, figures("one", "three", against="whisper:tiny.en"))
    assert "whisper:tiny.en" in text
    assert line_of(text, "WER x") == ["0.000 (0.000–0.000)", "0.333 (0.000–0.500)"]
    assert line_of(text, "words shown in partials") == ["3", "–"]


@pytest.mark.parametrize(
    ("options", "status", "named"),
    [
        (["--against", "tiny.en"], 2, "--against tiny.en: must be whisper:DIR"),
        (["--against", "whisper:x", "--url", "ws://127.0.0.1:9"], 2, "--against: cannot be combined with --url"),
        (["--against", "whisper:absent"], 1, "--against whisper:absent needs faster_whisper: pip install "),
    ],
)
def test_what_cannot_be_compared_is_refused(
    options: list[str], status: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.errors.find_spec", lambda _: None)
    monkeypatch.setattr(evaluate_whisper, "Against", None)
    done = CliRunner().invoke(app, ["evaluate", "--manifest", str(SAMPLES), *options])
    assert (done.exit_code, named in done.stderr) == (status, True), done.stderr
