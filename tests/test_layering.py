"""The direction of imports, read from the source: what makes the folder names mean something."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("batching", "tutti_asr_client", "loadtest", "model", "server")

# What each package may import of the others, and of third parties; None = no rule for third parties.
OURS = {
    "batching": set(),
    "model": set(),
    "tutti_asr_client": set(),
    "loadtest": {"tutti_asr_client"},
    "server": {"batching", "model"},
}
WIRING = {  # the places where parts meet
    "server/cli/loadtest.py": {"loadtest"},
    "server/cli/plan.py": {"loadtest"},
    "server/cli/transcribe.py": {"tutti_asr_client"},
    "server/tools/local.py": {"tutti_asr_client"},
    "server/tools/evaluate.py": {"tutti_asr_client"},
    "loadtest/planning/calibrate.py": {"batching", "model"},
    "loadtest/planning/engine_times.py": {"batching", "model"},
    "loadtest/planning/plan.py": {"batching"},
    "loadtest/planning/plan_plot.py": {"batching"},
    "loadtest/planning/plan_report.py": {"batching"},
    "loadtest/pocketsphinx.py": {"model"},
    "loadtest/peers/network.py": {"model"},
    "loadtest/keyterms/cases.py": {"model"},
    "loadtest/keyterms/report.py": {"model"},
    "loadtest/keyterms/__main__.py": {"model"},
}
THIRD_PARTIES = {
    "batching": {"numpy", "torch"},
    "model": {
        "matplotlib",
        "msgspec",
        "numba",
        "numpy",
        "torch",
        "safetensors",
        "soundfile",
        "soxr",
        "rich",
        "silero_vad",
        "typer",
    },
    "tutti_asr_client": {"msgspec", "numpy", "rich", "soundfile", "soxr", "typer", "websockets"},
}


def sources(package):
    root = ROOT / "clients" if package == "tutti_asr_client" else ROOT
    return sorted((root / package).rglob("*.py"))


def imports(path, *, top_level_only=False):
    """Top-level names of what a file imports, relative imports included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield (node.module or "").split(".")[0]


def everything():
    return [(package, path) for package in PACKAGES for path in sources(package)]


@pytest.mark.parametrize(("package", "path"), everything(), ids=lambda v: str(v) if isinstance(v, str) else v.name)
def test_imports_go_one_way(package, path):
    allowed = OURS[package] | {package} | WIRING.get(path.relative_to(ROOT).as_posix(), set())
    names = set(imports(path))
    assert not (names & set(PACKAGES)) - allowed
    third = names - set(PACKAGES) - sys.stdlib_module_names - {"__future__"}
    if package in THIRD_PARTIES:
        assert third <= THIRD_PARTIES[package]


def test_the_rules_are_about_real_files():
    assert all(sources(package) for package in PACKAGES)
    assert all((ROOT / name).exists() for name in WIRING)


def test_the_batching_core_knows_no_event_loop_and_the_batcher_no_clock():
    for path in sources("batching"):
        assert "asyncio" not in set(imports(path)), path
    assert not {"time", "threading", "queue", "logging", "torch"} & set(imports(ROOT / "batching" / "batcher.py"))


OPTIONS = [path.stem for path in sorted((ROOT / "server" / "cli").glob("*.py")) if path.stem != "__main__"]


@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_heavy_is_imported_by_the_command_line_before_a_command_runs(name):
    heavy = set(PACKAGES) - {"server"} | {"torch", "numpy", "fastapi", "uvicorn", "matplotlib", "rich", "pydantic"}
    tree = ast.parse((ROOT / "server" / "cli" / f"{name}.py").read_text(encoding="utf-8"))
    ours = {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module.startswith("server")}
    assert not heavy & set(imports(ROOT / "server" / "cli" / f"{name}.py", top_level_only=True))
    assert ours <= {f"server.cli.{other}" for other in OPTIONS}
