"""Reading of text files: encodings, byte order marks, compression, line ends, and errors in one sentence."""

import gzip
import lzma

import pytest

from model.ctc.tokens import Tokens
from model.errors import LanguageModelError, ManifestError, PublishedModelError
from model.lm.arpa import read_arpa
from model.recordings import read_manifest
from model.text.files import read_lines
from server.access.keys import read_secrets
from server.configuration.models_file import read_models
from server.errors import SettingsError
from tutti_asr_lab.training.acoustic.recipe import RECIPES, read_recipe
from tutti_asr_lab.training.language_model.pair_counts import read_counts
from tutti_asr_lab.training.language_model.train import read_lines as read_sentences

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-be-bom", "utf-32")
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-1\t</s>\n-0.5\tcafé\n\n\\end\\\n"
DIGEST = "a" * 64


def encoded(text, encoding, end="\n"):
    text = text.replace("\n", end)
    return b"\xfe\xff" + text.encode("utf-16-be") if encoding == "utf-16-be-bom" else text.encode(encoding)


READERS = {  # by kind of file: its text, and a reader with a comparable result
    "manifest": ('{"audio": "a.wav", "text": "é"}\n', lambda path: [u.text for u in read_manifest(path)]),
    "tokens": ("<blk> 0\né 1\n", lambda path: Tokens.read(path, 2).symbols),
    "arpa": (ARPA, lambda path: read_arpa(path).words),
    "sentences": ("one\ntwo\n", read_sentences),
    "as written": ("ñandú\n", lambda path: read_sentences(path, as_written=True)),
    "counts": ("ñ 3\nñ ñ 2\n", read_counts),
    "recipe": ((RECIPES / "small.json").read_text(), read_recipe),
    "keys": (f"# é\n{DIGEST} one\n", lambda path: [line for _, line in read_secrets("key", (), path)]),
    "models": ('[[model]]\nname = "a"\npath = "/a"\nlanguages = ["es"]\n', read_models),
}  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", READERS)
def test_every_reader_accepts_byte_order_marks_utf_16_and_windows_line_ends(tmp_path, kind, encoding, end):
    text, read = READERS[kind]
    plain, other = tmp_path / "plain.arpa", tmp_path / "other.arpa"
    plain.write_bytes(text.encode())
    other.write_bytes(encoded(text, encoding, end))
    assert read(other) == read(plain) or kind == "manifest"
    assert str(read(other)).replace("other", "plain") == str(read(plain))


@pytest.mark.parametrize("kind", READERS)
def test_latin_1_is_refused_in_one_sentence_with_file_and_line(tmp_path, kind):
    text, read = READERS[kind]
    path = tmp_path / "old.txt"
    path.write_bytes(text.encode() + "caf\xe9 1\n".encode("latin-1"))
    if kind == "arpa":  # the words of a model are decoded one by one
        path.write_bytes(text.encode("latin-1"))
    errors = (ManifestError, PublishedModelError, LanguageModelError, SettingsError)
    with pytest.raises((*errors, Exception)) as refused:
        read(path)
    line = {"arpa": 8}.get(kind, text.count("\n") + 1)
    assert f"old.txt:{line}: " in str(refused.value)
    assert "UTF-8" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_lines_end_only_at_line_feeds(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("a\u2028b\x85c\x0bd\x1ce\r\nf\rg\n\nh".encode())
    assert read_lines(path, ManifestError) == ["a\u2028b\x85c\x0bd\x1ce", "f\rg", "", "h"]


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_compression_is_detected_by_the_first_bytes(tmp_path, compress):
    path = tmp_path / "text"
    path.write_bytes(compress("\ufeffé\r\nb\n".encode()))
    assert read_lines(path, ManifestError) == ["é", "b"]
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(ManifestError, match="cannot read"):
        read_lines(path, ManifestError)


def test_utf_16_without_its_mark_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("ab\n".encode("utf-16-le"))
    with pytest.raises(ManifestError, match=r"text:1: not a text file .*byte order mark"):
        read_lines(path, ManifestError)


def test_the_error_names_a_missing_file_or_a_folder(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ManifestError, match=f"cannot read {path}: "):
            read_lines(path, ManifestError)


def test_a_token_that_is_a_space_of_another_script_is_kept(tmp_path):
    path = tmp_path / "tokens.txt"
    path.write_text("<blk> 0\n\u3000 1\n\u2028 2\n\x85 3\n 4\n", encoding="utf-8")
    assert Tokens.read(path, 5).symbols == ("<blk>", "\u3000", "\u2028", "\x85", " ")


def test_a_line_separator_in_a_json_string_does_not_split_a_manifest(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"audio": "a\u2028\x85.wav", "text": "a"}\n{"audio": "b.wav", "text": "b"}\n', encoding="utf-8")
    assert [u.text for u in read_manifest(path)] == ["a", "b"]
