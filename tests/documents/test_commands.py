"""Every command of the documents is accepted by its program's own parser, and names what exists."""

from __future__ import annotations

import re
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.documents.blocks import ROOT, SHELL, Command, blocks, commands, divided, documents, inline, simple
from tests.support.documents.programs import Unparsed, check, repository_paths

COMMAND_LINE = re.compile(r"^(?:\.venv/bin/)?(?:tutti [a-z]|python3? -m |make [a-z]|docker |kubectl |helm )")
MADE = ("deploy/compose/secrets/",)  # by commands of the documents


def test_commands_are_in_shell_blocks_or_after_a_prompt() -> None:
    """Others would have no test."""
    found = [
        f"{document}:{line + number}: {text}"
        for document in documents()
        for line, kind, block in blocks(document)
        if kind not in SHELL
        for number, text in enumerate(block.splitlines())
        if COMMAND_LINE.match(text)
    ]
    assert not found, "\n".join(["mark these blocks as sh:", *found])


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.where)
def test_a_command_of_ours_is_accepted_by_its_parser(command: Command) -> None:
    for words in simple(command.text):
        check(words)


def test_commands_named_in_a_text_exist_with_their_options() -> None:
    wrong = []
    for where, text in inline():
        try:
            for words in simple(text):
                check(words, whole=False)
        except Unparsed as error:
            wrong.append(f"{where}: {text}: {error}")
    assert not wrong, "\n".join(wrong)


def test_blocks_are_valid_shell() -> None:
    for document in documents():
        for line, kind, block in blocks(document):
            if kind in SHELL:
                done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{document}:{line}: {done.stderr}"


def test_files_that_commands_name_exist() -> None:
    for command in commands():
        names = {name for words in simple(command.text) for name in repository_paths(words)}
        absent = [name for name in names if not name.startswith(MADE) and not (ROOT / name).exists()]
        assert not absent, command.where


def test_options_of_programs_that_are_not_run_name_what_exists() -> None:
    """Targets of make and of the Dockerfile, compose files, extras of the package, names of wheels."""
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    stages = set(re.findall(r"^FROM .* AS (\w+)$", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = f"{project['name'].replace('-', '_')}-{project['version']}-py3-none-any.whl"
    seen = set()
    for command in commands():
        for words in simple(command.text):
            after = dict(pairwise(words))
            for name, known in (("make", targets), ("--target", stages)):
                if name in after and (name != "make" or words[0] == "make"):
                    seen.add(name)
                    assert after[name] in known, command.where
            for word in words:
                if word.endswith(".whl"):
                    seen.add("wheel")
                    assert Path(word).name == wheel, command.where
                if words[:2] == ["pip", "install"] and (extras := re.fullmatch(r"\.\[([\w,-]+)\]", word)):
                    seen.add("extras")
                    assert set(extras[1].split(",")) <= set(project["optional-dependencies"]), command.where
    assert seen == {"make", "--target", "wheel", "extras"}


# The reading of blocks itself


def test_a_block_is_divided_into_commands() -> None:
    block = """# first
tutti plan --streams 3   # three

python - <<'END'
x = "a | b"
END
for port in 1 2; do
  curl http://127.0.0.1:$port/ > out && sleep 1
done
tutti serve --model DIR \\
  --port 1 &
"""
    found = divided(block)
    assert [number for number, _ in found] == [1, 3, 6, 9]
    assert [simple(text) for _, text in found] == [
        [["tutti", "plan", "--streams", "3"]],
        [["python", "-"]],
        [["for", "port", "in", "1", "2"], ["curl", "http://127.0.0.1:$port/"], ["sleep", "1"], ["done"]],
        [["tutti", "serve", "--model", "DIR", "--port", "1"]],
    ]


@pytest.mark.parametrize("text", ["for x in 1; do\n  echo", "tutti serve \\", "cat <<'END'\nx"])
def test_a_block_that_ends_within_a_command_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="ends within a command"):
        divided(text)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tutti serv", "no command 'serv'"),
        ("tutti serve --prot 80", "--prot"),
        ("tutti serve --policy lazy", "'eager', 'deadline' or 'single'"),
        ("tutti transcribe", "Missing"),
        ("tutti evaluate x --manifest y", "x"),
        ("tutti loadtest --ruler wer", "must be one of"),
        ("TUTTI_MAX_STREAM=3 tutti serve", "TUTTI_MAX_STREAMS"),
        ("docker run -e TUTTI_MODLE=x tutti:cpu", "TUTTI_MODEL"),
        ("docker run tutti:cpu tutti model fatch x", "no command 'fatch'"),
        ("python -m tutti_asr_lab.trials storm --client 3", "--client"),
        ("python -m tutti_asr_lab.trials storms", "no command 'storms'"),
        ("python -m loadtest.storms", "no module"),
        ("python -m model.evaluation.digest --modle x", "unrecognized"),
        ("python -m deploy.helm.render all", "takes no arguments"),
        ("python -m examples.captions --dome", "--dome"),
        ("python -m pytest tests/nothing", "no such tests"),
    ],
)
def test_a_wrong_command_is_found(line: str, problem: str) -> None:
    with pytest.raises(Unparsed, match=re.escape(problem)):
        check(*simple(line))


@pytest.mark.parametrize("line", ["tutti evaluate --codec none", "tutti plan --cores", "tutti lm train … --order 4"])
def test_a_text_may_name_a_part_of_a_command(line: str) -> None:
    with pytest.raises(Unparsed):
        check(*simple(line.replace("…", "")))
    check(*simple(line), whole=False)
