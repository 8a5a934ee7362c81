"""Reading and writing ARPA files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import LanguageModelError
from model.lm import arpa, arpa_rows
from model.lm.arpa import read_arpa
from model.lm.arpa_rows import LN10
from tests.support.decoding.lm_reference import as_dict, as_ngrams
from tutti_asr_lab.training.language_model.arpa_writing import write_arpa

GOOD = r"""any text may go first

\data\
ngram 1=5
ngram 2=3

\1-grams:
-99	<s>	-0.3
-1.0	</s>
-0.5	b	-0.2
-0.6	a	-0.1
-2	<UNK>

\2-grams:
-0.4	b </s>
-0.2	a b
-0.3	<s> a

\end\
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "model.arpa"
    path.write_text(text, encoding="utf-8")
    return path


def test_words_are_numbered_and_logs_are_natural(tmp_path: Path) -> None:
    model = read_arpa(written(tmp_path, GOOD))
    assert model.words == ("<unk>", "<s>", "</s>", "a", "b")
    entries = as_dict(model.tables)
    assert entries[4,] == pytest.approx((-0.5 * LN10, -0.2 * LN10))
    assert entries[1, 3] == pytest.approx((-0.3 * LN10, 0.0))
    assert entries[0,] == pytest.approx((-2 * LN10, 0.0))


def test_a_gzipped_file_reads_the_same_whatever_its_name(tmp_path: Path) -> None:
    plain = read_arpa(written(tmp_path, GOOD))
    zipped = tmp_path / "other.bin"
    zipped.write_bytes(gzip.compress(GOOD.encode()))
    assert as_dict(read_arpa(zipped).tables) == as_dict(plain.tables)


def test_an_unknown_word_of_a_model_without_unk_has_log10_probability_minus_100(tmp_path: Path) -> None:
    text = GOOD.replace("-2\t<UNK>\n", "").replace("ngram 1=5", "ngram 1=4")
    assert read_arpa(written(tmp_path, text)).tables[0].log_prob[0] == pytest.approx(-100 * LN10)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("ngram 1=5", "ngram 1=4", 12, "expected .*2-grams:, not"),
        ("ngram 1=5", "ngram 1=6", 14, "expected another 1-gram, as the header says"),
        ("ngram 2=3", "ngram 2=2", 17, "expected .*end"),
        ("ngram 2=3", "ngram 2=4", 19, "expected another 2-gram, as the header says"),
        ("ngram 2=3", "ngram 3=3", 5, "count of order 2"),
        ("ngram 1=5", "ngram 1=x", 4, "count of order 1"),
        ("\\2-grams:", "\\3-grams:", 14, "expected .*2-grams:, not"),
        ("-0.2\ta b", "-0.2\ta c", 16, "'c' is not among the unigrams"),
        ("-0.2\ta b", "x\ta b", 16, "not a number"),
        ("-0.2\ta b", "0.2\ta b", 16, "logarithm of a probability"),
        ("-0.2\ta b", "nan\ta b", 16, "logarithm of a probability"),
        ("-0.2\ta b", "-0.2\ta b c d", 16, "expected another 2-gram"),
        ("-0.6\ta\t", "-0.6\tb\t", 11, "duplicate word b"),
        ("\\end\\", "", 19, "ends early"),
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(LanguageModelError, match=rf"model\.arpa:{line}: .*{message}"):
        read_arpa(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match="cannot read"):
        read_arpa(tmp_path / "missing.arpa")
    with pytest.raises(LanguageModelError, match="ends early"):
        read_arpa(written(tmp_path, ""))


@pytest.mark.parametrize("lost", [90, 6], ids=["in the data", "in the checksum"])
def test_a_gzipped_file_that_was_cut_is_refused(tmp_path: Path, lost: int) -> None:
    cut = tmp_path / "cut.arpa.gz"
    cut.write_bytes(gzip.compress(GOOD.encode() * 99)[:-lost])
    with pytest.raises(LanguageModelError, match="cannot read"):
        read_arpa(cut)


LOG = st.floats(-8.0, 0.0).map(lambda value: round(value, 4))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_written_model_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    order = data.draw(st.integers(1, 3))
    model = {(w,): (data.draw(LOG), data.draw(LOG)) for w in range(6)}
    for n in range(2, order + 1):
        keys = st.tuples(*[st.integers(0, 5)] * n)
        weights = LOG if n < order else st.just(0.0)
        model |= data.draw(st.dictionaries(keys, st.tuples(LOG, weights), max_size=8))
    natural = {key: (LN10 * p, LN10 * b) for key, (p, b) in model.items()}
    natural = {key: value if len(key) < order else (value[0], 0.0) for key, value in natural.items()}
    path = tmp_path_factory.mktemp("arpa") / data.draw(st.sampled_from(["model.arpa", "model.arpa.gz"]))
    write_arpa(path, as_ngrams(natural, order))
    found = as_dict(read_arpa(path).tables)
    assert found.keys() == natural.keys()
    for key, value in natural.items():
        assert found[key] == pytest.approx(value, abs=1e-4)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    model = read_arpa(written(tmp_path, GOOD))
    for name in ("one.arpa.gz", "two.arpa.gz"):
        write_arpa(tmp_path / name, model)
    assert (tmp_path / "one.arpa.gz").read_bytes() == (tmp_path / "two.arpa.gz").read_bytes()
    assert np.isfinite(model.tables[0].log_prob).all()


def test_words_in_upper_case_are_read_in_lower_case(tmp_path: Path) -> None:
    capitals = GOOD.replace("\tb", "\tB").replace("\ta", "\tA").replace("a b", "A B").replace("b </s>", "B </s>")
    capitals = capitals.replace("A b", "A B").replace("<s> a", "<s> A")
    assert read_arpa(written(tmp_path, capitals)).words == ("<unk>", "<s>", "</s>", "a", "b")
    mixed = GOOD.replace("\tb\t", "\tB\t").replace("b </s>", "B </s>").replace("a b", "a B")
    assert read_arpa(written(tmp_path, mixed)).words == ("<unk>", "<s>", "</s>", "B", "a")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(99), "a KenLM binary"),
        (b"blmt 3 100\n", "an IRSTLM binary"),
        (b"\x7fELF\0\0\n", "a binary file"),
        (b"hello\n", "not an ARPA file"),
    ],
)
def test_the_error_names_the_format_of_a_binary_model(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "model.arpa"
    path.write_bytes(content)
    with pytest.raises(LanguageModelError, match=kind):
        read_arpa(path)


def test_composed_and_decomposed_forms_of_a_word_are_one(tmp_path: Path) -> None:
    text = GOOD.replace("\tb\t", "\tcafe\u0301\t").replace("b </s>", "caf\u00e9 </s>").replace("a b", "a cafe\u0301")
    model = read_arpa(written(tmp_path, text))
    assert model.words == ("<unk>", "<s>", "</s>", "a", "caf\u00e9")


NUMBERS = ("-1", "-.5", "-5.", "-0", "0", "+0", "-99", "-1000", "-inf", "-1e-3", "-1_0", "-0.12345678901234567")
GAPS = ("\t", " ", "  ", "\t ", "\v")


@settings(max_examples=60)
@given(st.data())
def test_rows_of_any_form_read_as_python_reads_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows, expected = [], []
    for _ in range(data.draw(st.integers(1, 12))):
        names = [data.draw(st.sampled_from(["a", "B", "<s>", "</s>", "<unk>", "<UNK>", "é"])) for _ in range(2)]
        probability, weight = (data.draw(st.sampled_from(NUMBERS)) for _ in range(2))
        weighted = data.draw(st.booleans())
        fields = [probability, *names, *([weight] if weighted else [])]
        gap, end = data.draw(st.sampled_from(GAPS)), data.draw(st.sampled_from(["\n", "\r\n", " \n", "\n\n", "\n \n"]))
        rows.append(data.draw(st.sampled_from(["", " "])) + gap.join(fields) + end)
        values = (max(float(each), -100.0) * LN10 for each in (probability, weight if weighted else "0"))
        expected.append((*(name.replace("UNK", "unk") for name in names), *np.float32(list(values)).tolist()))
    words = "".join(f"-1\t{word}\n" for word in ("a", "B", "<s>", "</s>", "<unk>", "é"))
    body = "".join(rows)
    text = f"\\data\\\nngram 1=6\nngram 2={len(rows)}\n\n\\1-grams:\n{words}\n\\2-grams:\n{body}\\end\\\n"
    folder = tmp_path_factory.mktemp("rows")
    path = folder / "model.arpa"
    path.write_bytes(text.encode())
    read = read_arpa(path)
    found = read.tables[1]
    names = [(read.words[first], read.words[second]) for first, second in found.ids.tolist()]
    logs = zip(found.log_prob.tolist(), found.backoff.tolist(), strict=True)
    assert [(*name, *log) for name, log in zip(names, logs, strict=True)] == expected


def test_a_file_of_several_blocks_and_calls_of_the_parser_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_arpa(written(tmp_path, GOOD))
    monkeypatch.setattr(arpa, "_BLOCK", 3)
    for rows in (arpa_rows.ROWS, 2):
        for module in (arpa, arpa_rows):
            monkeypatch.setattr(module, "ROWS", rows)
        assert as_dict(read_arpa(tmp_path / "model.arpa").tables) == as_dict(whole.tables)
    with pytest.raises(LanguageModelError, match=r"model\.arpa:16: 'c' is not among the unigrams"):
        read_arpa(written(tmp_path, GOOD.replace("-0.2\ta b", "-0.2\ta c", 1)))
