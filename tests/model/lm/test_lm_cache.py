"""Cached models: equal to the ARPA file, written to the first writable folder, refused when damaged."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from model.errors import LanguageModelError
from model.lm.arpa import Ngrams
from model.lm.language_model import LanguageModel
from tests.support.audio.speech import ROOT
from tutti_asr_lab.training.language_model.arpa_writing import write_arpa
from tutti_asr_lab.training.language_model.counting import choose_vocabulary, count_ngrams, count_words, number_words
from tutti_asr_lab.training.language_model.kneser_ney import estimate

LINES = ["turn on the light", "turn off the light", "what is the time", "it's late"]


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    words = choose_vocabulary(count_words(LINES), None)
    tables = estimate(count_ngrams(number_words(LINES, words), len(words), 3))
    path = tmp_path / "models" / "small.arpa.gz"
    path.parent.mkdir()
    write_arpa(path, Ngrams(words, tuple(tables)))
    return path


def mapped_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.lm"))


def assert_same(one: LanguageModel, two: LanguageModel) -> None:
    assert (one.words, one.order, one.digest) == (two.words, two.order, two.digest)
    for a, b in zip(one.trie.arrays, two.trie.arrays, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    assert np.array_equal(one.characters.word, two.characters.word)
    for name in ("follows", "below", "best"):
        assert np.array_equal(getattr(one.characters.spelling, name), getattr(two.characters.spelling, name))


def test_the_second_load_reads_the_cache_of_the_first(arpa: Path) -> None:
    first = LanguageModel.load(arpa)
    (mapped,) = mapped_files(arpa.parent)
    made = mapped.stat().st_mtime_ns
    second = LanguageModel.load(arpa)
    assert mapped.stat().st_mtime_ns == made
    assert not second.trie.word.flags.writeable
    assert_same(first, second)
    assert_same(first, LanguageModel.load(mapped))
    assert first.score(LINES[0].split()) == second.score(LINES[0].split())


def test_a_changed_file_is_read_again(arpa: Path) -> None:
    before = LanguageModel.load(arpa)
    words = ("<unk>", "<s>", "</s>", "other")
    write_arpa(arpa, Ngrams(words, tuple(estimate(count_ngrams(number_words(["other"], words), 4, 2)))))
    after = LanguageModel.load(arpa)
    assert after.words == words
    assert after.digest != before.digest


def test_a_read_only_folder_is_skipped(arpa: Path, tmp_path: Path) -> None:
    blocked, cache = tmp_path / "file", tmp_path / "cache"
    blocked.write_text("not a folder")
    alone = LanguageModel.load(arpa, cache_dirs=[blocked / "x"])
    kept = LanguageModel.load(arpa, cache_dirs=[blocked / "x", cache])
    assert len(mapped_files(cache)) == 1
    assert mapped_files(arpa.parent) == []
    assert_same(alone, kept)


@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_a_damaged_cache_is_replaced_and_never_read(arpa: Path, damage: str) -> None:
    whole = LanguageModel.load(arpa)
    (mapped,) = mapped_files(arpa.parent)
    content = bytearray(mapped.read_bytes())
    if damage == "flipped":
        content[-100] ^= 0xFF
    mapped.unlink()
    mapped.write_bytes(content[:-64] if damage == "cut" else content if damage == "flipped" else b"other")
    with pytest.raises(LanguageModelError, match=r"damaged|not a cached language model"):
        LanguageModel.load(mapped)
    assert_same(whole, LanguageModel.load(arpa))
    assert_same(whole, LanguageModel.load(mapped))


def test_without_cache_folders_nothing_is_written(arpa: Path) -> None:
    LanguageModel.load(arpa, cache_dirs=[])
    assert mapped_files(arpa.parent) == []


@pytest.mark.parametrize("header", ["[]", '{"arrays": []}', '{"arrays": {"word": {}}}', "{"])
def test_a_malformed_header_counts_as_damage(tmp_path: Path, header: str) -> None:
    path = tmp_path / "other.lm"
    path.write_bytes(b"tuttilm1" + len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(LanguageModelError, match="damaged"):
        LanguageModel.load(path)


def test_a_missing_language_model_raises_language_model_error(tmp_path: Path) -> None:
    for name in ("none.arpa", "none.lm"):
        with pytest.raises(LanguageModelError, match="cannot read"):
            LanguageModel.load(tmp_path / name)


LOADER = """
import sys
from model.lm.language_model import LanguageModel
print("ready", flush=True)
sys.stdin.readline()
print(*[sum(LanguageModel.load(sys.argv[1]).score(sys.argv[2].split())) for _ in range(2)])
"""


def test_processes_may_load_at_the_same_time(arpa: Path) -> None:
    command = [sys.executable, "-c", LOADER, arpa, LINES[0]]
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        loaders = [stack.enter_context(subprocess.Popen(command, cwd=ROOT, **pipes)) for _ in range(4)]
        assert [loader.stdout.readline() for loader in loaders] == ["ready\n"] * 4
        for loader in loaders:
            loader.stdin.write("now\n")
            loader.stdin.flush()
        scores = [score for loader in loaders for score in loader.stdout.read().split()]
    assert len(scores) == 8
    assert len(set(scores)) == 1
    assert len(mapped_files(arpa.parent)) == 1
    assert list(arpa.parent.glob("*.part")) == []
