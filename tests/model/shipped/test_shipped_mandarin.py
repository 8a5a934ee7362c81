"""The shipped Mandarin model end to end: files, sessions, engine, decoding; alone, and together with English."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from model import checkpoint
from model.errors import CheckpointError
from model.recordings import Utterance, read_manifest
from server.settings import Settings
from server.tools.evaluate import evaluate
from server.tools.local import open_local
from tests.support.audio.speech import ROOT, samples
from tests.support.needs import need_package

MODEL = checkpoint.shipped_for("zh")
SPOKEN = read_manifest(ROOT / "model" / "samples" / "mandarin.jsonl")
DIGITS = [utterance for utterance in SPOKEN if utterance.audio.stem == "mandarin_digits"]
BEIJING = [utterance for utterance in SPOKEN if utterance.audio.stem == "mandarin_beijing"]


def texts(utterances: list[Utterance], model: Path = MODEL, **query: object) -> list[str]:
    settings = Settings(model=model, max_batch=8)
    return list(asyncio.run(evaluate(utterances, lambda: open_local(settings, **query), 8)).texts)


def test_its_recordings_are_transcribed_in_characters_without_spaces() -> None:
    assert len(SPOKEN) == 4
    said = [text.replace("它", "他") for text in texts(SPOKEN)]  # "it" and "he" are homophones
    assert said == [utterance.text for utterance in SPOKEN]


def test_key_terms_are_characters() -> None:
    """Two words that differ only in tones: the key term decides."""
    assert texts(BEIJING, keyterm="北京") == ["我们去北京"]
    assert texts(BEIJING, keyterm="背景") == ["我们去背景"]


def test_the_digits_grammar_writes_digits_alone() -> None:
    assert texts(DIGITS, grammar="digits") == [DIGITS[0].text]
    assert set("".join(texts(SPOKEN, grammar="digits"))) <= set("零一幺二三四五六七八九")


def test_the_alphanumeric_grammar_writes_a_code() -> None:
    spoken = [utterance for utterance in samples() if utterance.audio.stem in {"number", "seven"}]
    number, seven = sorted(texts(spoken, checkpoint.SHIPPED, grammar="alphanumeric", smart_format=True), key=len)[::-1]
    assert number.isalnum()
    assert number.endswith("062")
    assert seven == "7"


def test_the_english_digits_grammar_writes_digits_alone() -> None:
    spoken = [utterance for utterance in samples() if utterance.audio.stem in {"number", "seven", "name"}]
    words = " ".join(texts(spoken, checkpoint.SHIPPED, grammar="digits")).split()
    assert set(words) <= set("zero oh one two three four five six seven eight nine".split())  # noqa: SIM905 - eleven quotes
    assert "seven" in words


def test_shipped_models_are_found_by_language_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkpoint.shipped_for("zh-CN") == checkpoint.shipped_for("cmn") == checkpoint.named(Path("tutti-mandarin"))
    assert checkpoint.shipped_for("EN_us") == checkpoint.SHIPPED
    with pytest.raises(CheckpointError, match="'de' is shipped; there is en, zh"):
        checkpoint.shipped_for("de")
    assert checkpoint.named(Path("other")) == Path("other")
    assert {checkpoint.named(Path(name)) for name in ("gru", "tutti-gru", "small", "tutti-small")} == {checkpoint.GRU}
    monkeypatch.chdir(tmp_path)
    Path("tutti-gru").touch()
    assert checkpoint.named(Path("tutti-gru")) == Path("tutti-gru"), "a file of that name has precedence"


def test_its_texts_are_scored_in_simplified_characters() -> None:
    need_package("opencc")
    settings = Settings(model=MODEL, max_batch=8)
    found = asyncio.run(evaluate(DIGITS, lambda: open_local(settings), 8)).figures()
    assert (found["wer"], found["cer"]) == (0.0, 0.0)
