"""The server without extras: an environment without torch, by another Python if possible, passes end-to-end tests."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.ecosystem.driving import need
from tests.ecosystem.environments import ROOT, SERVING, python_of

END_TO_END = (
    "tests/server/test_server_e2e.py",
    "tests/server/test_without_torch.py",
    "tests/server/resume/test_resume_server.py",
    "tests/server/protocols/test_live_formats.py",
    "tests/server/protocols/openai/test_openai_server.py",
    "tests/server/protocols/twilio/test_twilio.py",
    "tests/server/protocols/test_wire.py",
)
pytestmark = pytest.mark.timeout(400)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [python_of(need(SERVING)), *words]
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}"}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=380, check=False)


def test_the_environment_has_no_torch() -> None:
    assert "No module named 'torch'" in run("-c", "import torch").stderr


def test_the_end_to_end_tests_pass() -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *END_TO_END)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["train", "--manifest", "x.jsonl", "--out", "x.safetensors"], "training"),
        (["quantize", "x.safetensors", "--manifest", "x.jsonl", "--out", "y.safetensors"], "training"),
        (["export", "folder"], "onnx"),
        (["evaluate", "--manifest", "model/samples/samples.jsonl", "--model", "gru", "--precision", "fp32"], "torch"),
        (["serve", "--model", "gru", "--precision", "fp32", "--port", "0"], "torch"),
        (["serve", "--device", "cuda", "--port", "0"], "torch"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_command_that_needs_an_extra_names_it_in_one_line(command: list[str], extra: str) -> None:
    done = run("-m", "server.cli", *command)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert "needs torch: pip install" in line
    assert f"[{extra}]" in line
