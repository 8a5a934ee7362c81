"""The hook on commit messages accepts the project's form, and says what is wrong with any other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[1] / ".githooks" / "commit-msg"
WHY = "\n\nBecause a reader asks.\n"


def refusal(message: str, folder: Path) -> str:
    """What the hook writes about a message, empty if it is accepted."""
    path = folder / "message"
    path.write_text(message)
    done = subprocess.run([HOOK, path], capture_output=True, text=True, check=False)
    assert bool(done.stderr) == bool(done.returncode)
    return done.stderr


@pytest.mark.parametrize(
    "message",
    [f"Answer HEAD as GET{WHY}", f"Feed silence{WHY}# a comment\n", "Merge branch 'main'\n", f"{'A' * 72}{WHY}"],
)
def test_a_message_of_the_form_is_accepted(message: str, tmp_path: Path) -> None:
    assert refusal(message, tmp_path) == ""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (f"{'A' * 73}{WHY}", "has 73 characters"),
        (f"answer HEAD as GET{WHY}", "capital letter"),
        (f"Answer HEAD as GET.{WHY}", "period"),
        (f"Added an answer{WHY}", "imperative"),
        (f"Adding an answer{WHY}", "imperative"),
        ("Answer HEAD as GET\nas load balancers ask\n", "second line"),
        ("Answer HEAD as GET\n", "says why"),
        ("Answer HEAD as GET\n\n# only a comment\n", "says why"),
    ],
)
def test_any_other_is_refused_with_the_reason(message: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(message, tmp_path)
