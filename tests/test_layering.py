"""Rules of dependency that import-linter's contracts in pyproject.toml cannot state, and a check of the contracts."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {name: ROOT / name for name in ("batching", "deploy", "examples", "loadtest", "model", "server")}
PACKAGES |= {"tutti_asr_client": ROOT / "clients" / "tutti_asr_client", "tutti_asr_lab": ROOT / "lab" / "tutti_asr_lab"}

THIRD_PARTIES = {  # that a package may import
    "batching": {"numpy"},
    "examples": {
        "fastapi", "matplotlib", "numpy", "pydantic", "safetensors", "torch", "typer", "uvicorn", "websockets",
    },
    "model": {
        "cn2an", "faster_whisper", "llvmlite", "matplotlib", "msgspec", "numba", "numpy", "onnx", "onnxruntime",
        "opencc", "pinyin_to_ipa", "pypinyin", "pyworld", "ray", "rich", "safetensors", "silero_vad", "soundfile",
        "soxr", "torch", "triton", "typer", "whisper_normalizer",
    },
    "tutti_asr_client": {
        "anyio", "httpx", "msgspec", "numpy", "rich", "sounddevice", "soundfile", "soxr", "typer", "websockets",
    },
}  # fmt: skip
HEAVY = {"torch", "numpy", "fastapi", "uvicorn", "matplotlib", "rich", "pydantic"}

PLANTED = {  # by contract: a file, and the import in it that must break the contract
    "Packages: audio goes one way": ("server/audio/pcm.py", "tutti_asr_lab.training.synthesis.sentences"),
    "Examples know batching and model alone": ("examples/serving.py", "server.settings"),
    "server: a folder imports only what stands below it": ("server/audio/pcm.py", "server.recognition.events"),
    "Protocols do not know one another": ("server/protocols/openai/items.py", "server.protocols.vosk.adapter"),
    "Twilio speaks Deepgram's form, and knows no other protocol": (
        "server/protocols/twilio/adapter.py", "server.protocols.openai.items",
    ),
    "Only the command line and the tools know clients and load tests": (
        "server/recognition/events.py", "tutti_asr_client.errors",
    ),
    "Recognition and audio know no web framework": ("server/text/numbers/numerals.py", "fastapi"),
    "The core computes by a slot model alone": ("batching/pool.py", "torch"),
    "8-bit arithmetic and the search need no torch": ("model/int8/features.py", "model.torch_network.network"),
    "No circles, in any folder": ("batching/errors.py", "batching.engine"),
}  # fmt: skip


def sources(package):
    return sorted(PACKAGES[package].rglob("*.py"))


def imported(path, *, top_level_only=False):
    """Names of the modules that a file imports; at its top level alone, or anywhere."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def packages_of(names):
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize(
    ("package", "path"),
    [(package, path) for package in PACKAGES for path in sources(package)],
    ids=lambda value: value if isinstance(value, str) else value.relative_to(ROOT).as_posix(),
)
def test_imports_are_absolute_and_third_parties_are_those_of_the_package(package, path):
    third = packages_of(imported(path)) - set(PACKAGES) - sys.stdlib_module_names - {"__future__"}
    assert third <= THIRD_PARTIES.get(package, third)


def test_every_package_has_modules():
    assert all(sources(package) for package in PACKAGES)


def test_batching_knows_no_event_loop_and_the_batcher_no_clock_or_thread():
    for path in sources("batching"):
        assert "asyncio" not in packages_of(imported(path)), path
    batcher = packages_of(imported(ROOT / "batching" / "batcher.py"))
    assert not {"time", "threading", "queue", "logging", "torch"} & batcher


@pytest.mark.parametrize("path", sorted((ROOT / "server" / "cli").glob("*.py")), ids=lambda path: path.stem)
def test_the_command_line_imports_nothing_heavy_before_a_command_runs(path):
    names = set(imported(path, top_level_only=True))
    assert not (HEAVY | set(PACKAGES) - {"server"}) & packages_of(names)
    light = ("server.cli", "server.configuration.variables")  # the names of variables, as texts
    assert all(name.startswith(light) for name in names if name.startswith("server"))


def test_packages_of_the_server_export_nothing():
    for path in PACKAGES["server"].rglob("__init__.py"):
        if path.parent.name != "cli":
            (docstring,) = ast.parse(path.read_text(encoding="utf-8")).body
            assert isinstance(docstring, ast.Expr), path


def contracts():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_each_contract_is_kept_and_broken_by_an_import_planted_against_it(tmp_path):
    assert {contract["name"] for contract in contracts()} == set(PLANTED)
    copy = tmp_path / "tree"
    for name in {path.relative_to(ROOT).parts[0] for path in PACKAGES.values()}:
        shutil.copytree(
            ROOT / name, copy / name, ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")]
        )
    shutil.copy(ROOT / "pyproject.toml", copy)
    kept = report(copy)
    assert len(re.findall(r" KEPT$", kept, re.MULTILINE)) == len(PLANTED), kept
    for file, module in PLANTED.values():
        path = copy / file
        path.write_text(f"{path.read_text(encoding='utf-8')}\nimport {module}\n", encoding="utf-8")
    broken = report(copy)
    for name, (file, module) in PLANTED.items():
        assert f"{name} BROKEN" in broken
        findings = broken.partition(f"\n{name}\n---")[2].partition("\n---")[0]
        ours = file.removesuffix(".py").replace("/", ".")
        arrow = f"{ours} -> {module}" if name != "No circles, in any folder" else ".errors -> .engine"
        assert arrow in findings, broken


def report(tree):
    """What import-linter says of a tree."""
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    environment = os.environ | {"PYTHONPATH": f"{tree}:{tree / 'clients'}:{tree / 'lab'}", "COLUMNS": "200"}
    run = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return run.stdout + run.stderr
