"""Cached machine code: its folder, its removal when sources change, and decoding without it."""

import ast
from pathlib import Path
from types import SimpleNamespace

import numba.core.caching
import pytest

import model
from model import warm_up
from model.acoustic import load_model
from model.attention import step as attention
from model.audio import levels
from model.checkpoint import GRU
from model.ctc.search import kernel
from model.int8 import step
from model.lm.arpa_rows import parse_rows
from model.machine import compiled, native, progress
from model.moonshine import step as moonshine
from model.punctuation.step import tag_words
from model.speakers import step as speakers_step
from model.vad import step as vad_step
from server.cli.options import announce_compilation

ROOT = Path(model.__file__).parent
MARKS = {"compiled", "entry_point"}


def double(x):
    return 2 * x


def test_a_function_is_compiled_even_if_its_code_cannot_be_cached(monkeypatch):
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError):  # numba's own error
        numba.njit(cache=True)(double)
    made = compiled.entry_point(double)
    assert made(4) == 8
    assert compiled.kept_in(made) is None


def test_code_counts_as_cached_for_the_processor_that_it_was_compiled_for(monkeypatch):
    assert compiled.is_cached(kernel.advance_streams)  # `make setup` compiled it
    assert not compiled.is_cached(double)
    another = SimpleNamespace(codegen=lambda: SimpleNamespace(magic_tuple=lambda: ("another processor", "")))
    monkeypatch.setattr(numba.core.registry.cpu_target, "_toplevel_target_context", another)
    assert not compiled.is_cached(kernel.advance_streams)


def test_a_first_command_says_that_it_compiles(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(progress, "show_compilation", lambda: shown.append("a line"))
    announce_compilation()
    assert (capsys.readouterr().err, shown) == ("", [])
    monkeypatch.setattr(compiled, "is_cached", lambda _: False)
    announce_compilation()
    said = capsys.readouterr().err
    assert said == "tutti: compiling for this processor, once for each installation; this takes about a minute\n"
    assert shown == ["a line"]


def marked(path):
    """Return whether a file has compiled functions."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return any(isinstance(mark, ast.Name) and mark.id in MARKS for f in functions for mark in f.decorator_list)


def imported(path):
    """Return the project's files that a file imports from."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("model"):
            here = ROOT.parent / Path(*node.module.split("."))
            yield from [here.with_suffix(".py")] if not here.is_dir() else [here / f"{a.name}.py" for a in node.names]


def test_the_digest_covers_exactly_the_files_with_compiled_functions_and_their_imports():
    """Otherwise an edit of one file leaves its old code in the cache of another one; other files are not listed."""
    listed = {ROOT / f"{name}.py" for name in native.SOURCES}
    holding = {path for path in ROOT.rglob("*.py") if marked(path)}
    assert len(holding) > 5
    taken = {source for path in holding for source in imported(path)}
    assert listed == holding | taken


def test_stale_code_of_the_same_function_is_removed_and_no_other(tmp_path):
    names = [
        "kernel.f-1.py311-aaaaaaaaaaaaaaaa.nbi",
        "kernel.f-1.py311-bbbbbbbbbbbbbbbb.1.nbc",
        "kernel.g-1.py311-b.nbi",
    ]
    for name in names:
        (tmp_path / name).touch()
    kept = SimpleNamespace(_impl=SimpleNamespace(filename_base="kernel.f-1.py311"), cache_path=str(tmp_path))
    compiled._name_by_digest(kept, "b" * 64)
    assert sorted(p.name for p in tmp_path.iterdir()) == names[1:]
    kept._cache_file.save("key", b"code")
    assert kept._cache_file.load("key") == b"code"
    compiled._name_by_digest(kept, "c" * 64)
    assert kept._cache_file.load("key") is None


def test_an_unusable_cache_folder_costs_a_compilation_only(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    kept = SimpleNamespace(_impl=SimpleNamespace(filename_base="kernel.f-1.py311"), cache_path=str(folder))
    compiled._name_by_digest(kept, "b" * 64)
    folder.rmdir()
    folder.touch()  # nothing can be written below a file
    kept._cache_file.save("key", b"code")
    assert kept._cache_file.load("key") is None


def test_warming_up_from_the_command_line_prints_the_folder_of_step_and_search(capsys):
    warm_up.main([])
    lines = capsys.readouterr().out.splitlines()
    parts = [("8-bit step with attention", attention.step)]
    parts += [("8-bit step of GRUs", step.step)] if load_model(GRU, device="cpu").precision == "int8" else []
    parts += [("network of finished segments", moonshine.read)]
    parts += [("levels of the audio", levels.write_levels)]
    parts += [("reading of n-grams", parse_rows), ("beam search", kernel.advance_streams)]
    parts += [("voice detector", vad_step.step), ("vectors of voices", speakers_step.step)]
    parts += [("punctuation tagger", tag_words)]
    for line, (name, function) in zip(lines, parts, strict=True):
        assert line.startswith(f"{name} compiled in ")
        assert line.endswith(f"cached in {compiled.kept_in(function)}")
