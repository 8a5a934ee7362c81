"""Whisper: the tests in `whisper/` pass in an environment with the extra `whisper` and a real model."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.ecosystem.driving import need
from tests.ecosystem.environments import ROOT, WHISPER, python_of

pytestmark = pytest.mark.timeout(600)


def test_the_tests_with_a_real_model_pass() -> None:
    command = [python_of(need(WHISPER)), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ecosystem/whisper"]
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    assert " skipped" not in done.stdout
