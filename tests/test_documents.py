"""Files, modules, programs and targets that documents, docstrings and comments name exist in this repository."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {name: ROOT / name for name in ("batching", "deploy", "examples", "loadtest", "model", "server", "tests")}
PACKAGES |= {"tutti_asr_client": ROOT / "clients" / "tutti_asr_client", "tutti_asr_lab": ROOT / "lab" / "tutti_asr_lab"}
COMMENTS = re.compile(r"(?:^|\s)(?:#|//|/\*|\*|<!--)\s(.*)")
COMMENTED = {".cfg", ".conf", ".css", ".js", ".lock", ".mjs", ".sh", ".toml", ".yaml", ".yml", "", ".in", ".html"}
NOT_OURS = {"build", "egg-info", "node_modules", "__pycache__"}

ENDING = r"(?:cfg|conf|css|flac|html|ini|js|json|lock|md|mjs|png|py|sh|svg|toml|txt|wav|yaml|yml)"
FILE = re.compile(r"`(\w+\.(?:js|md|mjs|py|sh))`")
PATH = re.compile(rf"(?<![\w/.:@-])((?:[\w.*<>{{}}…-]+/)+[\w.*<>{{}}…-]+\.{ENDING})(?![\w/])")
FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
MODULE = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?:\(\))?`")
PROGRAM = re.compile(r"python3? -m ([\w.]+)")
TARGET = re.compile(r"`make ([a-z][a-z0-9-]*)")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

EXCEPTED = re.compile(r"[<>{}…]|\bNAME\b|^build/")  # placeholders, and what a build leaves
OTHER_PROGRAMS = {"build", "pip", "pytest", "timeit", "venv"}
ELSEWHERE = {  # by the file that names them
    "docs/training.md": {"calls/0001.wav", "calls/0002.wav"},  # the reader's recordings
    "docs/models.md": {"model.onnx", "model.int8.onnx", "model.bin"},  # files of published models
    "lab/tutti_asr_lab/export_onnx.py": {"model.onnx", "model.int8.onnx"},  # files that it writes
    "server/protocols/vosk/adapter.py": {"websocket/asr_server.py"},  # of vosk-server's repository
    "tests/ecosystem/README.md": {"test.py"},  # of vosk-server's repository
}

PAST = re.compile(r"`[^`]*` at [0-9a-f]{8}\b")  # what existed at a commit

Named = tuple[int, str]


def texts(path: Path, source: str) -> Iterator[Named]:
    """Lines that a file says something in: all of Markdown, docstrings and comments of Python, comments elsewhere."""
    if path.suffix == ".md":
        history = r"\n## \[\d" if path.name == "CHANGELOG.md" else r"\Z"  # released versions: files of their time
        yield from enumerate(re.split(history, source)[0].splitlines(), 1)
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield from enumerate(node.value.value.splitlines(), node.lineno)
    else:
        for number, line in enumerate(source.splitlines(), 1):
            if found := COMMENTS.search(line):
                yield number, found[1]


def missing(path: Path, source: str) -> Iterator[Named]:
    """What the text of a file names that does not exist, with its line."""
    for number, text in texts(path, source):
        line = PAST.sub("", text) if path.suffix == ".md" else text
        names = {*PATH.findall(line), *FOLDER.findall(line)}
        if path.suffix == ".md":
            names |= {link.partition("#")[0] for link in LINK.findall(line) if "://" not in link}
        yield from ((number, name) for name in names if not EXCEPTED.search(name) and not is_file(path, name))
        yield from ((number, name) for name in FILE.findall(line) if name not in FILES)
        yield from ((number, name) for name in MODULE.findall(line) if not is_name(name.split(".")))
        yield from ((number, name) for name in PROGRAM.findall(line) if not is_program(name))
        yield from ((number, f"make {name}") for name in TARGET.findall(line) if name not in TARGETS)


def is_file(path: Path, name: str) -> bool:
    """From the root, or from the folder of the file that names it; of a wildcard, any file."""
    return any((base / name).exists() or ("*" in name and any(base.glob(name))) for base in (ROOT, path.parent))


def is_name(parts: list[str]) -> bool:
    """A module, or what one defines."""
    if parts[0] not in PACKAGES:
        return True  # what one of our modules imports from elsewhere
    here, rest = PACKAGES[parts[0]], parts[1:]
    while rest and (here / rest[0]).is_dir():
        here, rest = here / rest[0], rest[1:]
    source = here / "__init__.py"
    if rest and (here / f"{rest[0]}.py").exists():
        source, rest = here / f"{rest[0]}.py", rest[1:]
    return not rest or (source.exists() and defines(ast.parse(source.read_text()), rest))


def defines(scope: ast.AST, names: list[str]) -> bool:
    """Whether a module or class defines or imports a name, and that one the next."""
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.ImportFrom(module=str(module)) if names[0] in {alias.asname or alias.name for alias in node.names}:
                return is_name([*module.split("."), *names])
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found = {name}
            case ast.Assign(targets=targets):
                found = {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found = {name}
            case _:
                continue
        if names[0] in found:
            return len(names) == 1 or defines(node, names[1:])
    return False


def is_program(name: str) -> bool:
    """What `python -m` can run."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return name in OTHER_PROGRAMS
    file = PACKAGES[parts[0]].joinpath(*parts[1:])
    return file.with_suffix(".py").exists() or (file / "__main__.py").exists()


def documents() -> list[Path]:
    """Files of the repository, without those that tools generate."""

    def kept(path: Path) -> bool:
        return not any(part.startswith(".") or part.rpartition(".")[2] in NOT_OURS for part in path.parts)

    return sorted(path for path in ROOT.rglob("*") if kept(path.relative_to(ROOT)) and path.is_file())


DOCUMENTS = documents()
FILES = {path.name for path in DOCUMENTS}


def test_what_documents_docstrings_and_comments_name_exists() -> None:
    wrong = []
    for path in DOCUMENTS:
        if path.suffix in COMMENTED | {".md", ".py"}:
            place = path.relative_to(ROOT).as_posix()
            source = path.read_text(errors="replace")
            named = [(number, name) for number, name in missing(path, source) if name not in ELSEWHERE.get(place, ())]
            wrong += [f"{place}:{number}: {name}" for number, name in named]
    assert not wrong, "\n".join(["named, and not there:", *wrong])


def test_paths_of_tests_that_commands_of_the_makefile_name_exist() -> None:
    """pytest with several processes says of a missing path only that no tests ran."""
    targets = [target for target in sorted(TARGETS) if target.startswith("test")]
    commands = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, text=True, capture_output=True, check=True)
    paths = set(re.findall(r"(?<=[ =])tests/[\w./-]+", commands.stdout))
    assert {"tests/server/resume", "tests/lab"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_the_index_of_decisions_has_every_heading_in_order() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(
        r"^- \[(.+)\]\((\w[\w-]*\.md)#", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = list(dict.fromkeys(page for _, page in listed))
    assert {*pages, "README.md"} == {path.name for path in folder.glob("*.md")}
    headings = {
        page: re.findall(r"^## (.+)$", (folder / page).read_text(encoding="utf-8"), re.MULTILINE) for page in pages
    }
    assert listed == [(heading, page) for page in pages for heading in headings[page]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see tests/test_documents.py, [here](tests/test_layering.py#top), `server/http/` and `tests/test_d*.py`", []),
        ("see tests/test_nothing.py", ["tests/test_nothing.py"]),
        ("[there](docs/nothing.md) but [elsewhere](https://localhost/docs/nothing.md)", ["docs/nothing.md"]),
        (
            "`server/nothing/` and `nothing.py`, not `tests/NAME/` or build/nothing.json",
            ["nothing.py", "server/nothing/"],
        ),
        ("`batching.SlotPool`, `batching.pool.SlotPool.take()`, `server.http.page`", []),
        ("`server.nothing`, `batching.pool.SlotPool.nothing`", ["batching.pool.SlotPool.nothing", "server.nothing"]),
        ("`python -m loadtest.capacity`, `python -m server.cli`, `python -m pytest`", []),
        ("`make test-avx2`, `make nothing`, and make nothing of it", ["make nothing"]),
        (
            "python -m loadtest.nothing, python -m server.http, python -m nothing",
            ["loadtest.nothing", "nothing", "server.http"],
        ),
    ],
)
def test_a_name_that_does_not_resolve_is_found(text: str, found: list[str]) -> None:
    assert sorted(name for _, name in missing(ROOT / "README.md", text)) == found
