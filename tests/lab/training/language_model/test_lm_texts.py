"""Text extraction from packages: a small example of each kind of archive."""

from __future__ import annotations

import json
import lzma
import struct
import zlib
from pathlib import Path

import pytest
from pocketsphinx import NGramModel

from model.errors import LanguageModelError
from model.lm.arpa import read_arpa
from tutti_asr_lab.training.language_model.gathering import extract
from tutti_asr_lab.training.language_model.gathering.reading import DIGIT_STRINGS, DIGITS, to_read
from tutti_asr_lab.training.language_model.gathering.sources import (
    FILES,
    MANIFESTS,
    MODEL_FILE,
    PACKAGES,
    PAIR_COUNTS,
    TextFiles,
    TextSource,
)
from tutti_asr_lab.training.language_model.gathering.texts import Overlap, fetched, gather, pair_counts, read_files

MODEL_ARPA = """\\data\\
ngram 1=4
ngram 2=1

\\1-grams:
-1.0\t<unk>\t0.0
-99\t<s>\t-0.3
-0.7\t</s>\t0.0
-0.5\twhale\t-0.2

\\2-grams:
-0.3\t<s> whale

\\end\\
"""


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_apostrophes_are_restored_in_messages_of_conversations(tmp_path: Path) -> None:
    talk = {"id": {"messages": [[{"text": "Im fine"}, {"text": "dont u know"}], [{"text": "the drum isn't"}]]}}
    put(tmp_path / "chitchat_dataset" / "dataset.json", json.dumps(talk))
    assert list(extract.chitchat(tmp_path)) == ["i'm fine", "don't you know", "the drum isn't"]


def test_only_prose_of_country_profiles_is_taken(tmp_path: Path) -> None:
    profile = {
        "Introduction": {"Background": {"text": "An island (since 1900); it is small."}},
        "Economy": {"Public debt": {"text": "12% of GDP"}},
    }
    put(tmp_path / "europe" / "xx.json", json.dumps(profile))
    assert list(extract.factbook(tmp_path)) == ["An island. it is small."]


def test_definitions_and_examples_are_split(tmp_path: Path) -> None:
    line = '00001740 03 n 01 entity 0 000 | that which is (perceived); "it was full of entities"\n'
    put(tmp_path / "usr/share/wordnet/data.noun", "  1 licence text\n" + line)
    assert [text for text in extract.wordnet(tmp_path) if len(text) > 1] == [
        "that which is.",
        "it was full of entities.",
    ]


def test_verses_are_read_from_compressed_blocks_without_notes(tmp_path: Path) -> None:
    blocks = [b"<verse/>In the <note>a note</note>beginning.", b"The <b>end</b>."]
    packed = [zlib.compress(block) for block in blocks]
    index = struct.pack("<6I", 0, len(packed[0]), len(blocks[0]), len(packed[0]), len(packed[1]), len(blocks[1]))
    put(tmp_path / "modules" / "nt.bzs", index)
    put(tmp_path / "modules" / "nt.bzz", b"".join(packed))
    assert list(extract.sword(tmp_path)) == ["In the beginning.", "The end ."]


def test_lines_of_character_vectors_are_read_from_r_data(tmp_path: Path) -> None:
    lines = ["It is a truth", "universally acknowledged.", "", "Next paragraph."]
    body = b"X\n\0\0\0\2" + b"".join(struct.pack(">II", 0x00040009, len(line)) + line.encode() for line in lines)
    chunk = struct.pack(">I", len(body)) + zlib.compress(body)
    put(tmp_path / "data" / "Rdata.rdb", chunk + chunk)
    assert list(extract.r_strings(tmp_path)) == ["It is a truth\nuniversally acknowledged.", "Next paragraph."] * 2


def test_counts_of_words_come_before_those_of_pairs(tmp_path: Path) -> None:
    put(tmp_path / "frequency_bigramdictionary_en.txt", "\ufeffof the 9")
    put(tmp_path / "frequency_dictionary_en.txt", "the 20\nof 10\n")
    assert pair_counts(tmp_path) == "the 20\nof 10\nof the 9\n"


def test_sources_are_pinned_and_none_is_the_development_set() -> None:
    names = [source.name for source in (*PACKAGES, PAIR_COUNTS, *FILES)]
    assert len({*names, *MANIFESTS}) == len(names) + len(MANIFESTS)
    assert all(source.version and source.license for source in (*PACKAGES, PAIR_COUNTS))
    assert "dev" not in {manifest for manifests in MANIFESTS.values() for manifest in manifests}


def test_a_package_is_fetched_once_and_a_partial_fetch_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], folder: Path) -> None:
        commands.append(command)
        if command[0] == "npm":
            put(folder / "archive.tgz", "packed")
        else:
            assert command[:2] == ["tar", "-xzf"]
            put(Path(command[-1]) / "package" / "data" / "a.txt", "Some text.")

    monkeypatch.setattr("tutti_asr_lab.training.language_model.gathering.texts._run", run)
    source = TextSource("speeches", "npm", "@x/speeches", "1.0", "public domain", extract.plain_files)
    for _ in range(2):
        assert list(source.paragraphs(fetched(source, tmp_path / "work"))) == ["Some text."]
    assert [command[0] for command in commands] == ["npm", "tar"]
    assert commands[0][-1] == "@x/speeches@1.0"


def put_all(folder: Path, monkeypatch: pytest.MonkeyPatch, *, speeches: list[str], development: list[str]) -> None:
    """Write a small example of every kind of source, all with the same speeches."""
    source = TextSource("speeches", "npm", "x", "1", "public domain", lambda _: iter(speeches))
    monkeypatch.setattr("tutti_asr_lab.training.language_model.gathering.texts.PACKAGES", (source,))
    monkeypatch.setattr(
        "tutti_asr_lab.training.language_model.gathering.texts.FILES",
        (TextFiles("tales", ("a.xz", "b.xz"), "x", "CC0"),),
    )
    monkeypatch.setattr("tutti_asr_lab.training.language_model.gathering.texts.MANIFESTS", {"said": ("one",)})
    monkeypatch.setattr("tutti_asr_lab.training.language_model.gathering.texts._GENERATED", 5)
    monkeypatch.setattr("tutti_asr_lab.training.language_model.gathering.texts.fetched", lambda source, work: folder)
    for name, texts in (("one", speeches), ("dev", development)):
        rows = [json.dumps({"audio": f"{n}.ogg", "text": text, "speaker": "x"}) for n, text in enumerate(texts)]
        put(folder / "data" / f"{name}.jsonl", "\n".join(rows))
    put(folder / "text" / "a.xz", lzma.compress("\n".join(speeches).encode()))
    put(folder / "text" / "b.xz", lzma.compress(b"another file\n"))
    put(folder / "model.arpa", MODEL_ARPA)
    (folder / MODEL_FILE).parent.mkdir(parents=True)
    NGramModel.readfile(str(folder / "model.arpa")).write(str(folder / MODEL_FILE))


def test_gathered_texts_are_spelled_and_long_repeats_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boiler = "This very same long sentence is everywhere. Yes."
    put_all(tmp_path, monkeypatch, speeches=[boiler, boiler, "In 1984."], development=["one two"])
    gather(tmp_path / "out", tmp_path / "data", tmp_path / "text", tmp_path / "work")
    lines = (tmp_path / "out" / "speeches.txt").read_text().splitlines()
    assert lines == ["this very same long sentence is everywhere", "yes", "yes", "in nineteen eighty four"]
    assert (tmp_path / "out" / "said.txt").read_text().splitlines()[-1].startswith("this very same")
    assert (tmp_path / "out" / "tales.txt").read_text().splitlines()[-1] == "another file"
    assert len((tmp_path / "out" / "commands.txt").read_text().splitlines()) == 5
    assert "whale" in read_arpa(tmp_path / "out" / "general.arpa.gz").words


def test_no_text_shares_six_words_in_a_row_with_the_development_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a sentence of two words or more; a single digit may stay. Checked in every file that is written."""
    development = ["it was late when they had come to the river", "good evening", "seven", "Mr. Ox paid 5 or 6 of us"]
    speeches = ["When they had come, to the river, they rested.", "Seven.", "Good evening!", "Good evening to you."]
    speeches += ["When they had come there at last.", "And mister ox paid five or six in all."]
    put_all(tmp_path, monkeypatch, speeches=speeches, development=development)
    gather(tmp_path / "out", tmp_path / "data", tmp_path / "text", tmp_path / "work")
    files = sorted((tmp_path / "out").glob("*.txt"))
    assert [file.stem for file in files] == ["commands", "said", "speeches", "tales"]
    for file in files:
        lines = file.read_text().splitlines()
        joined = [f" {line} " for line in lines]
        for run in ("when they had come to the", "they had come to the river", "mister ox paid five or six"):
            assert not any(f" {run} " in line for line in joined), (file, run)
        assert "good evening" not in lines
    kept = {"seven", "good evening to you", "when they had come there at last"}
    assert kept <= set((tmp_path / "out" / "tales.txt").read_text().splitlines())


def test_the_mixture_is_tuned_on_part_a_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one speaker, part A has every second recording."""
    put_all(tmp_path, monkeypatch, speeches=["x"], development=["one", "two", "three", "four"])
    gather(tmp_path / "out", tmp_path / "data", tmp_path / "text", tmp_path / "work")
    assert len((tmp_path / "out" / "held-out.text").read_text().splitlines()) == 2


@pytest.mark.parametrize("line", ["a b c d e f", "x a b c d e f", "b c d e f g y"])
def test_six_words_in_a_row_anywhere_are_an_overlap(line: str) -> None:
    assert line in Overlap(["a b c d e f g"])
    assert line.replace("d", "q") not in Overlap(["a b c d e f g"])


def test_the_error_names_a_missing_text_and_its_origin(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match=r"se_books.*Standard Ebooks.*--text"):
        list(read_files(FILES[0], tmp_path))


def test_sentences_for_neural_voices_are_short_and_known_and_not_in_the_development_set(tmp_path: Path) -> None:
    development = ["she went down to the old house by the river"]
    fits = ["the captain was very glad", "they went to the old house again"]
    offered = [
        *fits,
        "too short",
        "the word zzyzxq is in no lexicon",
        "and down to the old house by the river",
        "so " * 14,
    ]
    put(tmp_path / "dev.jsonl", "".join(json.dumps({"audio": "a.ogg", "text": text}) + "\n" for text in development))
    for name in (name for files in FILES for name in files.files):
        put(tmp_path / name, lzma.compress("\n".join(offered).encode()))
    lines = list(to_read(tmp_path, tmp_path))
    assert lines == list(to_read(tmp_path, tmp_path))
    novels, prompts = FILES[0].files, FILES[1].files
    assert sorted(lines[: 2 * (len(novels) + len(prompts))]) == sorted((len(novels) + len(prompts)) * fits)
    assert all(word in DIGITS for line in lines[-DIGIT_STRINGS:] for word in line.split())
    assert {*DIGITS} <= {*lines}, "each digit occurs alone too"
