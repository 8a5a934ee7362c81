"""Machine code on disk: where it is kept, when it is thrown away, and that nothing needs it."""

import re
from pathlib import Path
from types import SimpleNamespace

import numba.core.caching
import pytest

import model
from model.ctc import compiled

ROOT = Path(model.__file__).parent


def double(x):
    return 2 * x


def test_a_function_whose_code_cannot_be_kept_is_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(numba.core.caching._CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError):  # what numba makes of it
        numba.njit(cache=True)(double)
    assert compiled.entry_point(double)(4) == 8


def test_every_source_with_compiled_functions_counts_for_the_digest():
    """Else an edit of one file leaves its old code inside another's."""
    listed = {(ROOT / "ctc" / f"{name}.py").resolve() for name in compiled.SOURCES}
    holding = {p for p in (ROOT / "ctc").glob("*.py") if re.search("^@(compiled|entry_point)$", p.read_text(), re.M)}
    assert holding <= listed
    imported = set()
    for path in listed:
        for package, name in re.findall(r"^from model\.(ctc|lm)\.(\w+) import", path.read_text(), re.MULTILINE):
            imported.add(ROOT / package / f"{name}.py")
        for name in re.findall(r"^from model\.ctc import (\w+)", path.read_text(), re.MULTILINE):
            imported.add(ROOT / "ctc" / f"{name}.py")
    assert {path.resolve() for path in imported} <= listed


def test_code_of_other_sources_is_removed_and_other_functions_code_is_not(tmp_path):
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
