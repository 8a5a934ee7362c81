"""Commands of the documents: those in shell blocks, one by one, and those between backticks."""

from __future__ import annotations

import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
PAST = re.compile(r"`[^`]*` at [0-9a-f]{8}\b")  # a command that existed at a commit
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?")
SHELL = ("sh", "bash", "shell", "console")
OPERATORS = ";&|()<>"
PROMPT = "$ "
KEYWORDS = {"do", "then", "else", "until", "while", "if", "!"}
OURS = re.compile(r"^(?:\.venv/bin/)?(?:tutti [a-z]|python3? (?:-m |deploy/)[a-z])")
RECORDS = ("CHANGELOG.md", "LOG.md")  # of their time


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a shell block, as it stands: a line with its continuations, a here-document, or a loop."""

    document: str
    line: int
    text: str

    @property
    def where(self) -> str:
        """Document and line."""
        return f"{self.document}:{self.line}"

    @property
    def plain(self) -> str:
        """The text without comments and line breaks."""
        return " ".join(" ".join(words) for words in simple(self.text))


@cache
def documents() -> tuple[str, ...]:
    """Return all Markdown files of the repository that describe its present state."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(
        name
        for name in listed.stdout.split()
        if not name.endswith(RECORDS) and not name.startswith("loadtest/results/")
    )


def blocks(document: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind (`sh`, `json`, …) and dedented text of each block."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        kind = found[2].split()[0] if found[2].split() else ""
        yield text.count("\n", 0, found.start()) + 2, kind, textwrap.dedent(found[3])


@cache
def commands() -> tuple[Command, ...]:
    """Return all commands of all shell blocks, and those after a prompt in other blocks, in order."""
    return tuple(
        Command(document, line + offset, text)
        for document in documents()
        for line, kind, block in blocks(document)
        for offset, text in (divided(block) if kind in SHELL else _prompted(block))
    )


def _prompted(block: str) -> Iterator[tuple[int, str]]:
    """Yield the commands that stand above their output."""
    lines = enumerate(block.splitlines())
    return ((number, line.removeprefix(PROMPT)) for number, line in lines if line.startswith(PROMPT))


def divided(block: str) -> list[tuple[int, str]]:
    """Return the commands of a block, with the number of their first line, from 0."""
    found: list[tuple[int, str]] = []
    gathered: list[str] = []
    for number, line in enumerate(block.splitlines()):
        gathered.append(line)
        text = "\n".join(gathered)
        if not _complete(text):
            continue
        if any(simple(text)):
            found.append((number - len(gathered) + 1, text))
        gathered = []
    if gathered:
        raise ValueError(f"a block ends within a command: {gathered[0]}")
    return found


def _complete(text: str) -> bool:
    lines = text.splitlines()
    if not lines:
        return True
    if here := HEREDOC.search(lines[0]):
        return lines[-1] == here[1]
    if lines[0].startswith("for "):
        return lines[-1].startswith("done")
    return not lines[-1].endswith("\\")


def simple(text: str) -> list[list[str]]:
    """Return the words of each simple command within a command, without redirections and comments."""
    joined = text.replace("\\\n", " ")
    lines = joined.splitlines()[:1] if HEREDOC.search(joined.partition("\n")[0]) else joined.splitlines()
    return [words for line in lines for words in _words(line) if words]


def _words(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=OPERATORS)
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for token in lexer:
        if set(token) <= set(OPERATORS):
            redirected = bool(set(token) & set("<>"))
            if not redirected:
                yield words
                words = []
        elif redirected:
            redirected = False
        elif words or token not in KEYWORDS:
            words.append(token)
    yield words


def inline() -> Iterator[tuple[str, str]]:
    """Yield place and text of each command of ours between backticks."""
    for document in documents():
        text = BLOCK.sub(lambda found: "\n" * found[0].count("\n"), (ROOT / document).read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            yield from (
                (f"{document}:{number}", span) for span in INLINE.findall(PAST.sub("", line)) if OURS.match(span)
            )
