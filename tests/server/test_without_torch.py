"""The default server and the local engine need no torch: a process that cannot import it transcribes all the same."""

import subprocess
import sys

import pytest

from model.machine.instructions import instruction_set
from model.recordings import read_manifest
from tests.support.audio.speech import ROOT

SAMPLES = {"en": "samples.jsonl", "zh": "mandarin.jsonl"}
PROCESS = """
import sys
sys.modules["torch"] = None  # importing it fails
import server.serve
from server.cli import main
sys.argv = ["tutti", *sys.argv[1:]]
main()
"""

pytestmark = pytest.mark.skipif(instruction_set() == "portable", reason="auto is bf16 or fp32 here, which are torch's")


@pytest.mark.parametrize("language", SAMPLES)
def test_a_recording_is_transcribed_where_torch_cannot_be_imported(language):
    sample = read_manifest(ROOT / "model" / "samples" / SAMPLES[language])[0]
    words = ["transcribe", "--language", language, str(sample.audio)]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sample.text in done.stdout


def test_a_model_that_computes_in_torch_needs_it():
    """So the first test does not pass because nothing was ever blocked."""
    sample = read_manifest(ROOT / "model" / "samples" / SAMPLES["en"])[0]
    words = ["transcribe", "--precision", "fp32", str(sample.audio)]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode != 0
    assert "torch" in done.stderr
