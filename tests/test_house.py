"""Figures of the house, by the table in docs/decisions/size.md: none may exceed its limit, nor fall far below it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from loadtest.trace_message import trace, usual_message
from server.settings import Settings

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "decisions" / "size.md"
VAGUE = {"found", "each", "place", "kept", "asked", "given", "here", "shown"}
SLACK = 0.97  # a figure that has fallen below this share of its limit takes the limit with it


@cache
def sources(part: str) -> list[Path]:
    """Python files of the product, of the lab or of the tests, as git lists them."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    return [path for path in paths if (path.parts[0] if path.parts[0] in {"lab", "tests"} else "product") == part]


def lines(part: str) -> int:
    return sum((ROOT / path).read_text(encoding="utf-8").count("\n") for path in sources(part))


@cache
def nodes() -> list[ast.AST]:
    trees = (ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in sources("product"))
    return [node for tree in trees for node in ast.walk(tree)]


def vague_names() -> int:
    names = (
        node.id if isinstance(node, ast.Name) else node.arg for node in nodes() if isinstance(node, ast.Name | ast.arg)
    )
    return sum(name in VAGUE for name in names)


def repeated_classes() -> int:
    names = Counter(node.name for node in nodes() if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    return sum(count > 1 for count in names.values())


def session_members() -> int:
    tree = ast.parse((ROOT / "server/recognition/session.py").read_text(encoding="utf-8"))
    (session,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Session")
    names = {node.name for node in session.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(session):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return sum(not name.startswith("_") for name in names)


FIGURES = {
    "lines of the product": lambda: lines("product"),
    "modules of the product": lambda: len(sources("product")),
    "lines of the lab": lambda: lines("lab"),
    "lines of the tests": lambda: lines("tests"),
    "settings": lambda: len(Settings.model_fields),
    "bytes of README.md": lambda: len((ROOT / "README.md").read_bytes()),
    "bytes of ARCHITECTURE.md": lambda: len((ROOT / "ARCHITECTURE.md").read_bytes()),
    "public members of `Session`": session_members,
    "class names that stand more than once": repeated_classes,
    "values named found, each, place, kept, asked, given, here or shown": vague_names,
}
TRACED = ("calls of one message", "files of one message")


def limits() -> dict[str, int]:
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: int(limit.replace(",", "")) for name, limit in rows}


def check(name: str, figure: int) -> None:
    limit = limits()[name]
    assert figure <= limit, f"{figure} {name}, at most {limit}: remove as much, or say in {PAGE.name} why it rises"
    assert figure >= SLACK * limit, f"only {figure} {name}: lower the limit of {limit} in {PAGE.name}"


def test_the_page_has_a_limit_for_each_figure() -> None:
    assert set(limits()) == {*FIGURES, *TRACED}


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_is_at_its_limit(name: str) -> None:
    check(name, FIGURES[name]())


def test_one_message_costs_no_more_calls_and_files() -> None:
    calls = usual_message(trace([]))
    for name, figure in zip(TRACED, (len(calls), len({file for file, _ in calls})), strict=True):
        assert figure <= limits()[name], f"{figure} {name}: `python -m loadtest.trace_message --calls` shows them"
