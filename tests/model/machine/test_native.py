"""Shipped machine code: chosen for the processor, verified, and the same results as compiled here, without numba."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from model.audio import levels
from model.errors import ModelError
from model.lm import arpa_rows
from model.machine import native
from model.machine.native import KINDS, MANIFEST, kinds_here, shipped, source_digest
from model.prebuilt.wheel import FOLDER, add_to_wheel, build
from model.published import features
from model.warm_up import _read_ngrams, used_types
from tests.support.audio.speech import ROOT

FLAGS = {kind.name: " ".join(sorted(kind.flags)) for kind in KINDS}
BUILT_WITHIN_S = 300.0

WITHOUT = """
import sys
from pathlib import Path

sys.modules["numba"] = sys.modules["llvmlite"] = sys.modules["onnx"] = sys.modules["onnxruntime"] = None
from model.machine import native
native.FOLDER = Path(sys.argv[1])
"""
"""The start of a program that cannot import what a wheel with code does not require."""

EVERY_MODULE = """
import importlib, pkgutil
import batching, model, server

for package in (batching, model, server):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(tuple(sys.argv[2].split())) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""
OF_EXTRAS = "model.gpu model.machine.native_wrapper model.torch server.recognition.tracing server.tools.sherpa"
"""Modules of other extras, and the one that compiles shipped code."""

PROGRAM = """
from model.audio import levels
from model.lm import arpa_rows
from model.machine import compiled
from model.machine.instructions import instruction_set
from model.published import features
from tests.model.machine.test_native import results

print(instruction_set(), compiled.is_cached(levels.write_levels), compiled.kept_in(levels.write_levels))
for line in results(levels, arpa_rows, features):
    print(line)
"""


def results(levels, arpa_rows, features):
    """Yield what functions return and write: numbers, arrays, tuples of both, and with memory of their own."""
    random = np.random.default_rng(5)
    yield levels.band_levels(random.integers(-999, 999, 640).astype(np.int16), 4, 2, np.geomspace(1, 1e9, 40)).hex()
    text = np.frombuffer(b"-1.5 <unk> -0.25\n-2 </s>\nno row\n", np.uint8)
    slots = np.full(8, -1, np.int32)
    ends = np.array([5, 9], np.int32)
    arpa_rows.fill_slots(np.frombuffer(b"<unk></s>", np.uint8), ends, slots)
    yield slots.tolist()
    ids, log_probs, backoffs = np.zeros((4, 1), np.int32), np.zeros(4, np.float32), np.zeros(4, np.float32)
    words = (np.frombuffer(b"<unk></s>", np.uint8), ends, slots, np.arange(2, dtype=np.int32))
    yield arpa_rows.parse_rows(text, 0, words, 4, ids, log_probs, backoffs)
    yield ids.tolist(), log_probs.tobytes().hex(), backoffs.tobytes().hex()
    windows = random.normal(0, 1, (2, 7, 80)).astype(np.float32)
    features.normalize_bands(windows)
    yield windows.tobytes().hex()


def cpu_info(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: some\nflags\t\t: fpu {flags}\n")
    return path


@pytest.mark.parametrize(
    ("flags", "variables", "names"),
    [
        ("", {}, ["x86-64"]),
        (FLAGS["x86-64-v3"], {}, ["x86-64-v3", "x86-64"]),
        (FLAGS["x86-64-v3+avxvnni"], {}, ["x86-64-v3+avxvnni", "x86-64-v3", "x86-64"]),
        (FLAGS["x86-64-v4+avx512vnni"], {}, ["x86-64-v4+avx512vnni", "x86-64-v3", "x86-64"]),
        (FLAGS["x86-64-v4+avx512vnni"].replace("avx512_vnni", ""), {}, ["x86-64-v3", "x86-64"]),
        (FLAGS["x86-64-v4+avx512vnni"].replace("bmi2", ""), {}, ["x86-64"]),
        (FLAGS["x86-64-v4+avx512vnni"], {"ATEN_CPU_CAPABILITY": "avx2"}, ["x86-64-v3", "x86-64"]),
        (FLAGS["x86-64-v4+avx512vnni"], {"ONEDNN_MAX_CPU_ISA": "SSE41"}, ["x86-64"]),
        (FLAGS["x86-64-v4+avx512vnni"], {"NUMBA_CPU_NAME": "x86-64-v3"}, []),
    ],
)
def test_code_runs_where_the_processor_has_every_instruction(flags, variables, names, tmp_path):
    assert [kind.name for kind in kinds_here(variables, cpu_info(tmp_path, flags))] == names


def test_other_systems_have_no_shipped_code(monkeypatch, tmp_path):
    everything = cpu_info(tmp_path, FLAGS["x86-64-v4+avx512vnni"])
    monkeypatch.setattr(native.platform, "machine", lambda: "aarch64")
    assert kinds_here({}, everything) == []
    monkeypatch.undo()
    monkeypatch.setattr(native.sys, "platform", "darwin")
    assert kinds_here({}, everything) == []


def test_code_of_other_sources_is_not_used(tmp_path):
    assert shipped("a" * 64, tmp_path, {}) is None
    (tmp_path / MANIFEST).write_text(json.dumps({"sources": "b" * 64, "libraries": {"x86-64": "c"}, "functions": {}}))
    assert shipped("a" * 64, tmp_path, {}, cpu_info(tmp_path, "")) is None


def test_damaged_code_is_not_loaded(tmp_path):
    (tmp_path / MANIFEST).write_text(json.dumps({"sources": "a", "libraries": {"x86-64": "c"}, "functions": {}}))
    with pytest.raises(ModelError, match=r"x86-64.so is missing or damaged: install tutti-asr again"):
        shipped("a", tmp_path, {}, cpu_info(tmp_path, ""))
    (tmp_path / "x86-64.so").write_bytes(b"code")
    with pytest.raises(ModelError, match="damaged"):
        shipped("a", tmp_path, {}, cpu_info(tmp_path, ""))
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ModelError, match=f"{MANIFEST} is missing or damaged"):
        shipped("a", tmp_path, {}, cpu_info(tmp_path, ""))


def test_arrays_of_another_layout_are_not_passed_to_the_code(tmp_path, monkeypatch):
    (tmp_path / MANIFEST).write_text(json.dumps({"sources": "a", "libraries": {"x86-64": "c"}, "functions": {}}))
    monkeypatch.setattr(native, "_HEAD", 32)  # as in an interpreter without the lock
    assert shipped("a", tmp_path, {}, cpu_info(tmp_path, "")) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with code of a few functions for this processor and for the oldest one."""
    list(results(levels, arpa_rows, features))
    _read_ngrams()
    names = {"write_levels", "fill_slots", "parse_rows", "normalize_bands"}
    types = [each for each in used_types() if each[1] in names]
    assert {name for _, name, _ in types} == names
    between = tmp_path_factory.mktemp("between")
    (between / "types").write_bytes(pickle.dumps(types))
    (made := between / "code").mkdir()
    for name, content in build(ROOT, between, between / "types", [kinds_here({})[0], KINDS[-1]]).items():
        (made / Path(name).name).write_bytes(content)
    return made


def run(folder: Path, program: str, *words: str, **variables: str) -> list[str]:
    words = [sys.executable, "-c", WITHOUT + program, str(folder), *words]
    done = subprocess.run(
        words, cwd=ROOT, env={"PATH": "", **variables}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(BUILT_WITHIN_S)
def test_shipped_code_computes_the_same_bits_without_the_compiler(folder):
    expected = [str(line) for line in results(levels, arpa_rows, features)]
    best = kinds_here({})[0]
    for variables, kind in (({}, best), ({"ATEN_CPU_CAPABILITY": "default"}, KINDS[-1])):
        first, *lines = run(folder, PROGRAM, **variables)
        assert first == f"{kind.instructions} True {folder}"
        assert lines == expected


@pytest.mark.slow
@pytest.mark.timeout(BUILT_WITHIN_S)
def test_no_module_imports_what_a_wheel_with_code_does_not_require(folder):
    assert run(folder, EVERY_MODULE, OF_EXTRAS) == []


@pytest.mark.slow
@pytest.mark.timeout(BUILT_WITHIN_S)
def test_a_second_build_gives_the_same_bytes(folder, tmp_path):
    oldest = KINDS[-1]
    again = build(ROOT, tmp_path, folder.parent / "types", [oldest])
    assert again[f"{FOLDER}/{oldest.name}.so"] == (folder / f"{oldest.name}.so").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(BUILT_WITHIN_S)
def test_a_call_that_no_code_was_compiled_for_is_refused(folder):
    library = shipped(source_digest(), folder, {})
    write = library.function(levels.write_levels.py_func)
    samples, limits, out = np.zeros(8, np.int16), np.ones(1), np.zeros(2, np.uint8)
    write(samples, 1, limits, out)
    for wrong in (samples[::2], samples.astype(np.int32), samples.reshape(2, 4), samples.astype(">i2"), [0] * 8, None):
        with pytest.raises(TypeError, match="write_levels has no shipped code for these arguments"):
            write(wrong, 1, limits, out)
    with pytest.raises(TypeError):
        write(samples, 1.5, limits, out)
    with pytest.raises(TypeError, match="write_levels has no shipped code"):
        write(samples, 1, limits)
    write(samples, np.int64(1), limits, out)
    mapped = np.memmap(folder / "x86-64.so", np.int16, "r", shape=(8,))
    write(mapped, 1, limits, out)
    with pytest.raises(TypeError, match="has no shipped code"):
        library.function(SimpleNamespace)()


def test_a_wheel_with_code_requires_the_compiler_elsewhere_only(tmp_path):
    wheel = tmp_path / "a-1-py3-none-any.whl"
    metadata = "Name: a\nRequires-Dist: numba>=0.61\nRequires-Dist: numpy>=1\nRequires-Dist: llvmlite>=0.44\n"
    metadata += 'Requires-Dist: numba>=0.61; extra == "compiler"\n'
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a.py", "1")
        archive.writestr("a-1.dist-info/METADATA", metadata)
        archive.writestr(
            "a-1.dist-info/RECORD", "a.py,sha256=x,1\na-1.dist-info/METADATA,sha256=y,2\na-1.dist-info/RECORD,,\n"
        )
    for _ in range(2):  # a second time changes nothing
        add_to_wheel(wheel, {f"{FOLDER}/x86-64.so": b"code", f"{FOLDER}/{MANIFEST}": b"{}"})
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            required = archive.read("a-1.dist-info/METADATA").decode().splitlines()[1:]
            record = archive.read("a-1.dist-info/RECORD").decode().splitlines()
        elsewhere = 'sys_platform != "linux" or platform_machine != "x86_64"'
        assert required == [
            f"Requires-Dist: numba>=0.61; {elsewhere}",
            "Requires-Dist: numpy>=1",
            f"Requires-Dist: llvmlite>=0.44; {elsewhere}",
            'Requires-Dist: numba>=0.61; extra == "compiler"',
        ]
        assert sorted(names) == sorted(row.split(",")[0] for row in record)
        assert {f"{FOLDER}/x86-64.so", f"{FOLDER}/{MANIFEST}"} < set(names)
        assert len(names) == len(set(names)) == 5
