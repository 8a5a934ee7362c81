"""A Whisper model's folder, its languages, and how it is asked to read; with a real model: tests/ecosystem/whisper."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model.errors import CheckpointError, MissingPackage
from model.whisper import FILES, Whisper, check_folder, folder_of


class Model:
    """Writes a text for each window of a second."""

    supported_languages = ("en", "de")

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        symbols = [" twenty", " 20", "%", "½", "a"]
        self.hf_tokenizer = SimpleNamespace(get_vocab_size=lambda: len(symbols), decode=lambda ids: symbols[ids[0]])

    def transcribe(self, audio: np.ndarray[Any, Any], **asked: Any) -> tuple[list[Any], None]:
        self.asked = asked
        windows = range(len(audio) // 16_000)
        return [SimpleNamespace(text=f" {n}.", avg_logprob=-float(n), compression_ratio=n) for n in windows], None


def test_a_folder_is_given_with_a_prefix() -> None:
    assert folder_of("whisper:/a/b") == Path("/a/b")
    for given in ("/a/b", "whisper:", "vosk:/a"):
        with pytest.raises(ValueError, match="must be whisper:DIR"):
            folder_of(given)


def test_what_a_folder_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.errors.find_spec", lambda _: object())
    with pytest.raises(CheckpointError, match=r"^--x: .*/absent: no such folder"):
        check_folder(tmp_path / "absent", "--x")
    with pytest.raises(CheckpointError, match=r"has no model.bin, config.json, tokenizer.json, vocabulary.json or voc"):
        check_folder(tmp_path, "--x")
    for name in (*FILES, "vocabulary.txt"):
        (tmp_path / name).touch()
    check_folder(tmp_path, "--x")


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.errors.find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match=r"--x needs faster_whisper: pip install .*\[whisper\]"):
        Whisper.load(tmp_path, "--x")


def test_windows_are_one_text_that_depends_on_the_audio_alone() -> None:
    model = Model()
    reading = Whisper(model).read(np.full(48_000, 16_384, np.int16), "de-AT")  # type: ignore[arg-type]
    assert (reading.text, reading.repetition) == ("0. 1. 2.", 2)
    assert reading.confidence == pytest.approx(np.exp(-1.0))
    asked = {
        "language": "de",
        "beam_size": 1,
        "temperature": 0.0,
        "condition_on_previous_text": False,
        "without_timestamps": True,
        "suppress_tokens": [-1],
        "hotwords": None,
    }
    assert model.asked == asked
    assert Whisper(model).read(np.zeros(0, np.int16), "en").confidence == 0.0  # type: ignore[arg-type]


def test_numbers_in_words_suppress_symbols_with_digits_and_signs() -> None:
    model = Model()
    Whisper(model, in_words=True).read(np.zeros(0, np.int16), "en")  # type: ignore[arg-type]
    assert model.asked["suppress_tokens"] == [-1, 1, 2, 3]


def test_a_language_is_found_by_the_first_part_of_its_tag() -> None:
    whisper = Whisper(Model())  # type: ignore[arg-type]
    assert [whisper.has_language(tag) for tag in ("en", "en-US", "DE-de", "zh")] == [True, True, True, False]
