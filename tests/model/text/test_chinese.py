"""Normalization of written Mandarin, and comparison of transcripts."""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import pytest

from model.errors import LanguageModelError, ModelError
from model.evaluation.scoring import score
from model.text import chinese as text
from model.text.chinese import characters_of, sentences_of
from model.text.spelled import spoken
from tutti_asr_lab.training.mandarin.texts import SHARED, drawn, overlaps, without, write


def test_sentences_have_their_numbers_in_words_and_no_marks() -> None:
    assert sentences_of("我有3.5个苹果，1998年。占50%！") == ["我有三点五个苹果一九九八年", "占百分之五十"]
    assert sentences_of("臺灣大學") == ["台湾大学"]
    assert sentences_of("C语言。好") == ["好"]
    assert sentences_of("，。！") == []


def test_transcripts_are_compared_by_simplified_characters() -> None:
    assert characters_of(" 臺灣，幺 二ＡＢ。") == "台湾一二ab"
    found = score("幺二三 四。", "一 二三五")
    assert (found.word_errors, found.words, found.character_errors, found.characters) == (1, 4, 1, 4)
    assert score("打开空调", "").cer == 1.0
    assert score("turn it on", "turn it off").words == 3


def test_each_character_is_a_word_for_language_models() -> None:
    assert spoken("打开空调") == spoken("打 开 空 调") == "打 开 空 调"


def test_sentences_that_share_six_characters_with_a_held_out_text_are_left_out() -> None:
    runs = overlaps(["一二三四五六七"])
    assert list(without(["零一二三四五六", "一二三四五", "五六七一二三"], runs)) == ["一二三四五", "五六七一二三"]
    assert all(len(run) == SHARED for run in runs)


def test_texts_are_written_and_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    text, speech = tmp_path / "text", tmp_path / "speech"
    text.mkdir()
    speech.mkdir()
    (speech / "dev.jsonl").write_text('{"text": "今天天气很好啊"}\n', encoding="utf-8")
    (speech / "train-a.jsonl").write_text('{"text": "ni3 hao3", "characters": "你好"}\n', encoding="utf-8")
    with pytest.raises(LanguageModelError, match=r"has no \.txt\.xz"):
        write(tmp_path / "out", text, speech)
    (text / "a.txt.xz").write_bytes(lzma.compress("明天天气不好。\n我说今天天气很好。".encode()))
    counts = write(tmp_path / "out", text, speech)
    assert (tmp_path / "out" / "prompts.txt").read_text(encoding="utf-8") == "明 天 天 气 不 好\n"
    assert (tmp_path / "out" / "speech.txt").read_text(encoding="utf-8") == "你 好\n"
    assert counts["digits"] > 100_000


ARPA = """
\\data\\
ngram 1=4
ngram 2=1

\\1-grams:
-0.30103\t公司\t-0.30103
-0.60206\t貴\t0
-0.60206\tb\t0
-1.0\t很\t0

\\2-grams:
-0.30103\t公司 很

\\end\\
"""


def test_lines_are_drawn_from_a_model_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.arpa"
    path.write_text(ARPA, encoding="utf-8")
    lines = list(drawn(path, 20_000))
    assert lines == list(drawn(path, 20_000)), "deterministic"
    text = "".join(lines)
    assert 20_000 <= len(text) < 20_030
    assert not set(text) - set("公司很"), "a word with other characters is skipped"
    assert text.count("公司很") / text.count("公司") > 0.5, "by the probability of the pair, not of the words"


def test_a_model_without_chinese_words_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "words.arpa"
    path.write_text(ARPA.replace("公司", "a").replace("很", "d"), encoding="utf-8")
    with pytest.raises(LanguageModelError, match=r"words\.arpa has no Chinese words"):
        next(drawn(path))


def test_the_error_names_a_missing_package_and_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text._converter.cache_clear()
    monkeypatch.setitem(sys.modules, "opencc", None)
    with pytest.raises(ModelError, match=r"opencc: pip install .*\[mandarin\]"):
        characters_of("打开")
    assert characters_of("a 1") == "a1", "ASCII text does not need the package"
