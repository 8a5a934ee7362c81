"""`--dry` runs all code on a CPU, with only the packages of a GPU host."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model.config import ENGLISH, ModelConfig
from tutti_asr_lab.benchmarks.gpu import records
from tutti_asr_lab.benchmarks.gpu.__main__ import main
from tutti_asr_lab.benchmarks.gpu.runner import SECTIONS
from tutti_asr_lab.benchmarks.gpu.sections.recordings import SAMPLES, greedy

ROOT = Path(__file__).parents[4]
ABSENT = (  # packages that a GPU host lacks
    "cryptography", "fastapi", "httptools", "llvmlite", "matplotlib", "msgspec", "numba",
    "onnxruntime", "prometheus_client", "pydantic", "pydantic_settings", "soundfile", "soxr", "structlog",
    "tutti_asr_client", "uvicorn", "uvloop", "websockets",
)  # fmt: skip
GUARD = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT!r}:
            raise ImportError(f"{{name}} is not on a GPU host")

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """Return the document of a complete dry run in a temporary folder."""
    folder = tmp_path_factory.mktemp("dry")
    (folder / "sitecustomize.py").write_text(GUARD, encoding="utf-8")
    samples = folder / SAMPLES
    samples.parent.mkdir()
    np.savez(samples, noise=np.random.default_rng(1).integers(-3_000, 3_000, 16_000).astype(np.int16))
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tutti_asr_lab.benchmarks.gpu", "run", "--dry"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return records.read(folder / "build" / "gpu-dry" / "gpu.json")


def test_every_case_of_every_section_completes(dry):
    assert {each.section for each in dry.rows} == {*SECTIONS}
    assert [(each.section, each.case, each.error) for each in dry.rows if each.error] == []
    assert all(each.dry for each in dry.runs)


def test_the_reference_is_bit_identical_in_batches_and_chunks(dry):
    bits = [each for each in dry.rows if each.section == "bits"]
    assert {each.case["what"] for each in bits} == {"alone = in company", "chunk = single steps"}
    assert all(each.values["equal"] and each.values["finite"] for each in bits)


def test_without_a_gpu_a_run_exits_with_advice_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["run", "--folder", str(tmp_path)]) == 1
    assert "--dry" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_greedy_transcripts_omit_blanks_and_repetitions():
    best = [0, 10, 10, 0, 10, 1, 5]
    log_probs = np.log(np.eye(len(ENGLISH), dtype=np.float32)[best] + 1e-3)
    assert greedy(ModelConfig(), log_probs) == "hh c"


def test_samples_are_the_shipped_recordings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tutti_asr_lab.benchmarks.gpu.sections.recordings.SAMPLES", tmp_path / "samples.npz")
    monkeypatch.setattr(
        "tutti_asr_lab.benchmarks.gpu.sections.recordings.write_samples.__defaults__", (tmp_path / "samples.npz",)
    )
    assert main(["samples"]) == 0
    with np.load(tmp_path / "samples.npz") as arrays:
        assert set(arrays.files) == {each.stem for each in (ROOT / "model" / "samples").glob("*.flac")}
        assert all(arrays[name].dtype == np.int16 for name in arrays.files)
    assert json.dumps(capsys.readouterr().out)
