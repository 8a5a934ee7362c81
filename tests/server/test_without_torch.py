"""The default server and the local engine need no torch: a process that cannot import it transcribes all the same.

The local engine needs no ONNX Runtime either, unless its settings ask for the voice-activity model.
"""

import os
import subprocess
import sys

import pytest

from model.machine.instructions import instruction_set
from model.recordings import read_manifest
from tests.support.audio.speech import ROOT

SAMPLES = {"en": "samples.jsonl", "zh": "mandarin.jsonl"}
PROCESS = """
import sys
sys.modules |= dict.fromkeys(sys.argv[1].split(","))  # importing one fails
import server.serve
from server.cli import main
sys.argv = ["tutti", *sys.argv[2:]]
main()
"""

pytestmark = pytest.mark.skipif(instruction_set() == "portable", reason="auto is bf16 or fp32 here, which are torch's")


def tutti(blocked, *words, **settings):
    """Run a command of `tutti` in a process that cannot import these modules."""
    return subprocess.run(
        [sys.executable, "-c", PROCESS, blocked, *words],
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("language", SAMPLES)
def test_a_recording_is_transcribed_where_none_of_them_can_be_imported(language):
    sample = read_manifest(ROOT / "model" / "samples" / SAMPLES[language])[0]
    done = tutti("torch,onnx,onnxruntime", "transcribe", "--language", language, str(sample.audio))
    assert done.returncode == 0, done.stderr
    assert sample.text in done.stdout


def test_a_model_that_computes_in_torch_needs_it():
    """So the first test does not pass because nothing was ever blocked."""
    sample = read_manifest(ROOT / "model" / "samples" / SAMPLES["en"])[0]
    done = tutti("torch", "transcribe", "--model", "gru", "--precision", "fp32", str(sample.audio))
    assert done.returncode != 0
    assert "torch" in done.stderr


def test_ends_of_speech_by_the_voice_activity_model_need_no_onnx_runtime():
    sample = read_manifest(ROOT / "model" / "samples" / SAMPLES["en"])[0]
    done = tutti("onnxruntime", "transcribe", str(sample.audio), TUTTI_VAD="silero")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()
