"""The scripts of lab/tutti_asr_lab/training/recipes: a header, and only programs, commands and options that exist.

They run in a copy of their folder with stubs for the programs, which record how they are called.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from server.cli import app

ROOT = Path(__file__).parents[3]
FOLDER = Path("lab/tutti_asr_lab/training/recipes")
SCRIPTS = sorted(path.name for path in (ROOT / FOLDER).glob("*.sh") if path.name != "common.sh")
STUB = '#!/bin/bash\necho "${0##*/} ${*@Q}" >> "$CALLS"\ncat > /dev/null\n'


def calls(script: str, checkout: Path) -> list[list[str]]:
    """The calls of programs by a script and those that it runs, in order."""
    shutil.copytree(ROOT / FOLDER, checkout / FOLDER)
    programs = checkout / "programs"
    programs.mkdir()
    for name in ("tutti", "python", "npm", "curl", "tar", "sha256sum"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    (checkout / "build/lm").mkdir(parents=True)
    (checkout / "build/lm/text.txt").touch()
    environment = {**os.environ, "BIN": str(programs), "PATH": f"{programs}:{os.environ['PATH']}"}
    environment["CALLS"] = str(checkout / "calls")
    done = subprocess.run(
        [checkout / FOLDER / script],
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in (checkout / "calls").read_text().splitlines()]


def options(command: list[str]) -> Iterator[tuple[str, bool]]:
    """The options of a call of `tutti`, each with whether the command has it."""
    found = typer.main.get_command(app)
    words = iter(command[1:])
    while (commands := getattr(found, "commands", None)) is not None:
        found = commands[next(words)]
    known = {name for parameter in found.params for name in parameter.opts}
    yield from ((word, word in known) for word in words if word.startswith("--"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_recipe_says_what_it_makes_and_calls_what_exists(script: str, tmp_path: Path) -> None:
    text = (ROOT / FOLDER / script).read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert [key for key in ("Makes", "Takes", "Needs") if f"\n# {key}:  " not in text] == []
    assert "\nset -euo pipefail\n" in text
    found = calls(script, tmp_path)
    assert found
    for program, *words in found:
        if program == "tutti":
            assert [name for name, exists in options([program, *words]) if not exists] == [], words
        elif program == "python" and words[0] == "-m" and words[1] != "pip":
            assert importlib.util.find_spec(words[1]) is not None, words
        for word in words:
            if word.endswith(".json"):
                assert (ROOT / word).exists(), word


def test_the_page_of_the_recipes_lists_all_scripts() -> None:
    page = (ROOT / FOLDER / "README.md").read_text(encoding="utf-8")
    assert [script for script in SCRIPTS if f"`{script}`" not in page] == []
