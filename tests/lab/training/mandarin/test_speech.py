"""Manifests of Mandarin speech: syllables for training, characters for evaluation, separate speakers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.errors import ManifestError
from tutti_asr_lab.training.mandarin.speech import is_held_out, write

LINE = {"audio": "a.opus", "source": "aishell_sample", "duration": 1.0}


def fill(folder: Path, name: str, rows: list[dict[str, str]]) -> None:
    (folder / f"{name}.jsonl").write_text(
        "".join(json.dumps({**LINE, **row}, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_training_texts_are_syllables_and_held_out_speakers_are_separate(tmp_path: Path) -> None:
    held_out = next(name for name in map(str, range(100)) if is_held_out(name))
    other = next(name for name in map(str, range(100)) if not is_held_out(name))
    fill(tmp_path, "aishell_sample", [{"text": "你好", "pinyin": "ni3 hao3", "speaker": "x"}])
    fill(tmp_path, "cmn_words", [{"text": "i p p", "pinyin": "i p p", "speaker": "y"}])
    fill(tmp_path, "cmn_syllables", [{"text": "", "pinyin": "a1", "speaker": "z"}])
    fill(tmp_path, "mandarin_cv", [{"text": "你好。", "speaker": held_out}, {"text": "你，好", "speaker": other}])
    fill(tmp_path, "mandarin_dev", [{"text": "臺灣", "pinyin": "tai2 wan1", "speaker": "s", "kind": "news"}])
    out = tmp_path / "out"
    counts = write(tmp_path, out)
    assert counts == {
        "train-aishell_sample": 1,
        "train-cmn_words": 0,
        "train-cmn_syllables": 1,
        "train-mandarin_cv": 1,
        "dev": 2,
        "dev-tuned": len(read(out / "dev-tuned.jsonl")),
        "dev-syllables": 2,
    }
    (cv,) = read(out / "train-mandarin_cv.jsonl")
    assert (cv["text"], cv["characters"], cv["speaker"]) == ("ni3 hao3", "你，好", other)
    assert [(row["text"], row["source"]) for row in read(out / "dev.jsonl")] == [
        ("台湾", "zh_news"),
        ("你好", "mandarin_cv"),
    ]
    assert all(Path(row["audio"]) == (tmp_path / "a.opus").resolve() for row in read(out / "dev.jsonl"))


def test_the_error_names_a_missing_source(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"aishell_sample\.jsonl"):
        write(tmp_path, tmp_path / "out")
