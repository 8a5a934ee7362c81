"""Comparison with pocketsphinx: scoring, tables, and the message if it is not installed."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from loadtest.benchmarks.pocketsphinx import __main__ as pocketsphinx
from loadtest.benchmarks.pocketsphinx import words as pocketsphinx_words
from loadtest.benchmarks.pocketsphinx.__main__ import (
    Peer,
    WithOurs,
    markdown,
    pooled,
    read_kept,
    read_ours,
    rows,
    write,
)
from loadtest.errors import BadManifest, PeerMissing
from loadtest.reports.environment import describe
from model.evaluation.scoring import by_source, report
from tests.support.audio.speech import SAMPLES, samples
from tests.support.needs import need_package, need_programs

RATES = report(by_source([("x", "a b", "a c"), ("y", "a", "a")]))
OURS = report(by_source([("x", "a b", "a b"), ("z", "a", "b")]))


def peer(**ours: object) -> Peer:
    return Peer("pocketsphinx", "command", {"samprate": 16_000}, pooled(RATES), 0.25, ours, describe(0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoken", "text"),
    [("Mr. O'Neil", "mr o'neil"), ("a well-known place", "a well known place"), ("[NOISE]", "noise")],
)
def test_its_texts_are_normalized_like_references(spoken: str, text: str) -> None:
    assert pocketsphinx.spelled(spoken) == text


def test_a_missing_pocketsphinx_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> object:
        if name == "pocketsphinx":
            raise ModuleNotFoundError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(PeerMissing, match="pip install pocketsphinx"):
        pocketsphinx.measure([SAMPLES], 1, None, "command")
    assert not list(tmp_path.iterdir())


class Adapting:
    """Fake of pocketsphinx, which adapts to a stream: its text depends on earlier recordings."""

    def __init__(self) -> None:
        self._spoken = self._bytes = 0

    def reinit_feat(self) -> None:
        self._spoken = 0

    def start_utt(self) -> None:
        self._spoken += 1

    def process_raw(self, pcm: bytes, *, full_utt: bool) -> None:
        self._bytes = len(pcm)

    def end_utt(self) -> None: ...

    def hyp(self) -> SimpleNamespace:
        return SimpleNamespace(
            hypstr=f"{'again ' * (self._spoken - 1)}{self._bytes:b}".replace("0", "a").replace("1", "b")
        )


def test_a_text_does_not_depend_on_earlier_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pocketsphinx._state, "decoder", Adapting())
    paths = [u.audio for u in samples()[:3]]
    forwards = [pocketsphinx._recognize(path) for path in paths]
    assert forwards == [pocketsphinx._recognize(path) for path in reversed(paths)][::-1]
    assert "again" not in " ".join(forwards)
    assert len(set(forwards)) == 3


def test_it_recognizes_a_shipped_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    need_package("pocketsphinx")
    monkeypatch.setattr(pocketsphinx, "_state", {})
    pocketsphinx._load({})
    (yes,) = [u.audio for u in samples() if u.audio.stem == "yes"]
    assert pocketsphinx._recognize(yes) == "yes"


def test_the_table_has_our_figures_by_source(tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    combinations = [{**OURS, "precision": "bf16", "decoder": name} for name in ("greedy", "beam")]
    path.write_text("a table first\n" + json.dumps({**combinations[0], "combinations": combinations}) + "\n")
    ours = read_ours(path)
    assert list(ours) == ["tutti greedy bf16", "tutti beam bf16"]
    found = peer(**ours)
    assert rows(found) == [
        ("x", "1", "0.500", "0.000", "0.000"),
        ("y", "1", "0.000", "–", "–"),  # a source without figures of ours
        ("all", "2", "0.333", "0.333", "0.333"),
    ]
    assert "| x | 1 | 0.500 | 0.000 | 0.000 |" in markdown(found)


def test_its_rates_with_our_language_model_have_a_column_and_word_counts(tmp_path: Path) -> None:
    found = msgspec.structs.replace(
        peer(), with_our_language_model=WithOurs(pooled(OURS), 0.5, pocketsphinx_words.Words(40, 10, 1))
    )
    assert rows(found)[0] == ("x", "1", "0.500", "0.000")
    page = markdown(found)
    assert "pocketsphinx with our language model" in page
    assert "40 in its dictionary, 10 pronounced by" in page
    write(found, tmp_path)
    assert read_kept(tmp_path, "pocketsphinx", None) == found


def test_our_language_model_is_converted_to_its_files(tmp_path: Path) -> None:
    need_package("pocketsphinx")
    need_programs("espeak-ng")
    arpa = tmp_path / "small.arpa.gz"
    words = ("seven", "seventh", "zyx'lo", "<s>", "</s>", "<unk>")
    lines = [f"-1\t{word}\t0" for word in words]
    with gzip.open(arpa, "wt", encoding="utf-8") as file:
        file.write("\\data\\\nngram 1=6\n\n\\1-grams:\n" + "\n".join(lines) + "\n\n\\end\\\n")
    found = pocketsphinx_words.write(arpa, pocketsphinx.dictionary(), tmp_path / "files")
    assert found == pocketsphinx_words.Words(dictionary=2, pronounced=1, left_out=0)
    spelled = (tmp_path / "files" / "words.dict").read_text().splitlines()
    assert [line.split()[0] for line in spelled] == ["seven", "seventh", "zyx'lo"]
    assert spelled[0].split()[1:] == ["S", "EH", "V", "AH", "N"]


def test_every_phone_of_our_words_has_an_equivalent() -> None:
    need_package("pocketsphinx")
    with pocketsphinx.dictionary().open(encoding="utf-8") as file:
        known = {phone for line in file for phone in line.split()[1:]}
    assert {phone for phones in pocketsphinx_words.ARPABET.values() for phone in phones.split()} <= known


def test_a_document_with_one_combination_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({**OURS, "precision": "fp32", "decoder": "beam"}))
    assert read_ours(path)["tutti beam fp32"].wer == OURS["wer"]


@pytest.mark.parametrize("content", [None, "", "no json", '{"precision": "fp32"}'])
def test_an_invalid_file_of_our_figures_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ours.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadManifest, match=r"ours\.json"):
        read_ours(path)


def test_a_kept_result_can_be_combined_with_new_figures_of_ours(tmp_path: Path) -> None:
    write(peer(), tmp_path)
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({**OURS, "precision": "fp32", "decoder": "beam"}))
    options = ["--kept", "--folder", str(tmp_path), "--ours", str(path)]
    command = typer.Typer()
    command.command()(pocketsphinx.main)
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    assert "tutti beam fp32" in (tmp_path / "pocketsphinx.md").read_text()
    assert read_kept(tmp_path, "pocketsphinx", None).rates == pooled(RATES)
    assert CliRunner().invoke(command, [*options, "--manifest", "x.jsonl"]).exit_code == 1
    (tmp_path / "pocketsphinx.json").unlink()
    assert CliRunner().invoke(command, options).exit_code == 1
