"""Extraction of prose from an edition, and refusal of a book that contains an evaluation recording's text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from model.errors import TrainingError
from model.punctuation.marks import parse
from tutti_asr_lab.training.punctuation import books
from tutti_asr_lab.training.punctuation.ebooks import chapter, fetch, paragraphs
from tutti_asr_lab.training.punctuation.texts import refuse_shared

CHAPTER = """<?xml version="1.0" encoding="utf-8"?>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body><section>
<header><p>A heading</p></header>
<p>I saw <abbr epub:type="z3998:name-title">Mr.</abbr> Hall at 5 <abbr class="eoc">p.m.</abbr><a epub:type="noteref"
href="#n">1</a> It <i>was</i>
late.</p>
<blockquote epub:type="z3998:verse"><p><span>A line</span><br/><span>Another</span></p></blockquote>
<blockquote><p>A quotation.</p></blockquote>
<table><tr><td><p>A figure</p></td></tr></table>
</section></body></html>"""
SPOKEN = "in the middle of the long afternoon a single figure came slowly down the road"


def test_only_prose_is_extracted_with_abbreviations_in_full() -> None:
    assert list(chapter(CHAPTER)) == ["I saw Mister Hall at 5 p m. It was late.", "A quotation."]


def test_an_existing_repository_is_read_and_not_cloned(tmp_path: Path) -> None:
    text = tmp_path / "book" / "src" / "epub" / "text"
    text.mkdir(parents=True)
    (text / "chapter-1.xhtml").write_text(CHAPTER)
    (text / "colophon.xhtml").write_text(CHAPTER)
    git = ["git", "-C", str(tmp_path / "book"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "text"]):
        subprocess.run([*git, *command], check=True)
    assert len(list(paragraphs(fetch("book", tmp_path)))) == 2
    with pytest.raises(TrainingError, match="ls-tree"):
        list(paragraphs(tmp_path))


def test_a_book_with_the_text_of_an_evaluation_recording_is_refused() -> None:
    with pytest.raises(TrainingError, match="novel contains the text of an evaluation recording"):
        refuse_shared("novel", [parse(SPOKEN)], [SPOKEN])
    everyday = parse("for the first time in his life he laughed")
    refuse_shared("novel", [everyday], ["she saw it for the first time in his life then"])


def test_no_book_or_author_is_in_both_training_and_evaluation() -> None:
    assert len(books.UNSEEN) == 20
    learned = {name.partition("_")[0] for name in books.TRAINING}
    assert not learned & {name.partition("_")[0] for name in books.UNSEEN}
