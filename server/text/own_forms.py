"""The operator's own written forms, `--written-forms FILE`: phrases as they are recognized, and how they are written.

A line of the file is a phrase, a tab, and its written form: `tutti a s r`, `Tutti ASR`. Blank lines and those that
begin with # are skipped. Each phrase of a segment is found by its longest match, from left to right, in time linear in
the words. Pure, except for `read_own_forms`.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from model.text.files import read_lines
from model.text.letters import ideographs_apart
from server.errors import SettingsError, of_setting
from server.text.line import Span

MAX_WORDS = 16  # of a phrase, each ideograph counts as one: a match reads no more words ahead
MAX_CHARACTERS = 200  # of a written form
MAX_FORMS = 100_000
SHOWN = 64  # characters of a line in an error
MARKS = ".,?!;:，。？！；："
"""Marks that may follow a recognized word. They end a phrase, and stay after its written form."""


@dataclass(slots=True, eq=False)
class _Node:
    """A place in phrases: the words that may follow, and the written form of the phrase that ends here."""

    following: dict[str, _Node] = field(default_factory=dict)
    written: str | None = None


class OwnForms:
    """Written forms of phrases. `digest` identifies the file that they come from; empty without one."""

    def __init__(self, forms: Mapping[tuple[str, ...], str], digest: str = "") -> None:
        """`forms`: written forms by the words of their phrases, as `phrase_words` returns them."""
        self._forms = forms
        self.digest = digest
        self._root = _Node()
        for phrase, written in forms.items():
            node = self._root
            for word in phrase:
                node = node.following.setdefault(word, _Node())
            node.written = written
        self._fewer: dict[int, OwnForms] = {}

    def __len__(self) -> int:
        """Return the number of phrases."""
        return len(self._forms)

    def with_fewer_digits(self, most: int) -> OwnForms:
        """Return those forms that write fewer digits than `most`, made once."""
        if most not in self._fewer:
            fewer = {phrase: text for phrase, text in self._forms.items() if sum(map(str.isdigit, text)) < most}
            self._fewer[most] = self if len(fewer) == len(self._forms) else OwnForms(fewer, self.digest)
        return self._fewer[most]

    def spans(self, texts: Sequence[str]) -> list[Span]:
        """Return the phrases among recognized words, in order, without overlap."""
        if not self._forms:
            return []
        words = _Words(texts)
        return [Span(begin, end, written + words.mark(end - 1)) for begin, end, written, _ in self._matches(words)
                if written is not None]  # fmt: skip

    def settled(self, texts: Sequence[str]) -> int:
        """Return the number of leading words that are written the same whatever words follow."""
        if not self._forms:
            return len(texts)
        return next((begin for begin, _, _, is_open in self._matches(_Words(texts)) if is_open), len(texts))

    def _matches(self, words: _Words) -> Iterator[tuple[int, int, str | None, bool]]:
        """Yield begin, end, written form and whether more words may make it longer; None: no phrase yet."""
        at = 0
        while at < len(words.plain):
            end, written, is_open = self._longest(words, at)
            if written is not None or is_open:
                yield at, end, written, is_open
            at = end

    def _longest(self, words: _Words, begin: int) -> tuple[int, str | None, bool]:
        """Return the end of the longest phrase at `begin`, or the next word; its form; whether it may become longer."""
        node, at, end, written = self._root, begin, begin + 1, None
        while at < len(words.plain) and (following := node.following.get(words.plain[at])) is not None:
            node, at = following, at + 1
            if node.written is not None:
                end, written = at, node.written
            if words.mark(at - 1):
                return end, written, False
        return end, written, at == len(words.plain) and bool(node.following) and node is not self._root


class _Words:
    """Recognized words as phrases have them, and the marks after them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self.plain = [_plain(text.rstrip(MARKS)) for text in texts]

    def mark(self, at: int) -> str:
        """Return the marks after a word."""
        text = self._texts[at]
        return text[len(text.rstrip(MARKS)) :]


NO_OWN_FORMS = OwnForms({})


def _plain(text: str) -> str:
    if text.isascii() and text.islower():
        return text
    return unicodedata.normalize("NFC", text).casefold().replace("’", "'")


def phrase_words(phrase: str) -> tuple[str, ...]:
    """Return the words of a phrase; an ideograph is a word."""
    return tuple(map(_plain, ideographs_apart(phrase).split()))


def own_forms_of(setting: Path | None) -> OwnForms:
    """Return the forms of the setting `written_forms`. Raises: SettingsError, which begins with its name."""
    if setting is None:
        return NO_OWN_FORMS
    with of_setting("written_forms"):
        return read_own_forms(setting)


def read_own_forms(path: Path) -> OwnForms:
    """Read a file of phrases and written forms. Raises: SettingsError, which names file, line and fault."""
    forms: dict[tuple[str, ...], str] = {}
    places: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(read_lines(path, SettingsError), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            phrase, written = _read_line(line)
            _check_new(phrase, places)
        except ValueError as error:
            raise SettingsError(f"{path}:{number}: {line[:SHOWN]!r}: {error}") from None
        forms[phrase], places[phrase] = written, number
    return OwnForms(forms, _digest(forms.items()))


def _check_new(phrase: tuple[str, ...], places: Mapping[tuple[str, ...], int]) -> None:
    """Raises: ValueError."""
    if phrase in places:
        raise ValueError(f"the phrase is in line {places[phrase]} already; remove one of the two")
    if len(places) == MAX_FORMS:
        raise ValueError(f"more than {MAX_FORMS:,} phrases")


def _digest(forms: Iterable[tuple[tuple[str, ...], str]]) -> str:
    """Return the digest of forms in any order; comments and spaces do not count."""
    lines = sorted(f"{' '.join(phrase)}\t{written}\n" for phrase, written in forms)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _read_line(line: str) -> tuple[tuple[str, ...], str]:
    """Return phrase and written form. Raises: ValueError."""
    parts = line.split("\t")
    if len(parts) != 2:
        raise ValueError(f"has {len(parts) - 1} tabs; expected a phrase, one tab, and its written form")
    phrase, written = phrase_words(parts[0]), unicodedata.normalize("NFC", parts[1].strip())
    if not phrase:
        raise ValueError("there is no phrase before the tab")
    if len(phrase) > MAX_WORDS:
        raise ValueError(f"the phrase has {len(phrase)} words; at most {MAX_WORDS}")
    marked = next((word for word in phrase if not word.strip(MARKS) or word[-1] in MARKS), None)
    if marked is not None:
        raise ValueError(f"{marked!r} has a mark at its end; words are compared without marks, leave it out")
    if not written:
        raise ValueError("there is no written form after the tab")
    if len(written) > MAX_CHARACTERS:
        raise ValueError(f"the written form has {len(written)} characters; at most {MAX_CHARACTERS}")
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in written):
        raise ValueError("the written form has a control character; leave it out")
    return phrase, written
