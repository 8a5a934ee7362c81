"""What holds for the compiled step of every network: independence of the batch, resumption, one digest everywhere."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.published.compiled.compiling import results_of
from model.published.compiled.slots import CompiledSlots, CompiledStep
from model.published.published_model import PublishedModel
from model.published.rewriting.verification import speech_windows
from tests.support.audio.speech import ROOT
from tests.support.processors import BASELINE, environment, has, is_x86

Floats = NDArray[np.float32]
STEPS, ROWS = 12, 5


def windows_of(model: PublishedModel) -> Floats:
    """Windows (STEPS, ROWS, L, 80) of speech."""
    speech = speech_windows(model.config, model.contract.fbank)
    return np.stack([speech[step % len(speech)][np.arange(ROWS) % speech.shape[1]] for step in range(STEPS)])


def check_streams_alone(step: CompiledStep, windows: Floats) -> None:
    """Each stream alone in another slot gives what it gives in a batch over any number of threads."""
    together = results_of(CompiledSlots(step, capacity=ROWS, threads=2), windows)
    for threads in (1, 3, 4):
        assert results_of(CompiledSlots(step, capacity=ROWS, threads=threads), windows).tobytes() == together.tobytes()
    for row in range(ROWS):
        slots = CompiledSlots(step, capacity=ROWS)
        alone = [slots.run(np.array([ROWS - 1 - row]), window[row : row + 1])[0] for window in windows]
        assert np.stack(alone).tobytes() == together[:, row].tobytes()


def check_exported_states(step: CompiledStep, windows: Floats) -> None:
    """A stream moved to other slots after each step gives what it gives in one; a reset slot is a new one."""
    expected = results_of(CompiledSlots(step, capacity=ROWS), windows)
    slots = CompiledSlots(step, capacity=1)
    results = []
    for window in windows:
        results.append(slots.run(np.array([0]), window[:1])[0])
        state = slots.states.export(0)
        slots = CompiledSlots(step, capacity=2)
        slots.run(np.array([0, 1]), window[:2])  # another stream's state
        slots.states.restore(0, state)
    assert np.stack(results).tobytes() == expected[:, 0].tobytes()
    slots.states.reset(0)
    assert slots.run(np.array([0]), windows[0][:1]).tobytes() == expected[0, 0].tobytes()


def digest_of(step: CompiledStep, model: PublishedModel) -> str:
    """Digest of the results of speech, from samples to outputs."""
    return hashlib.sha256(results_of(CompiledSlots(step, capacity=ROWS), windows_of(model)).tobytes()).hexdigest()


PROCESS = """
import importlib, json, sys
from pathlib import Path
from model.machine.instructions import instruction_set
found = importlib.import_module(sys.argv[1]).digest_of_folder(Path(sys.argv[2]))
print(json.dumps({"digest": found, "instructions": instruction_set()}))
"""


def check_digest(module: Any, folder: Path, switches: Mapping[str, str]) -> None:
    """`digest_of_folder` of a test module gives here what it gives in a process on an older processor."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, module.__name__, str(folder)],
        cwd=ROOT,
        env=environment(switches) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if is_x86() and (switches is BASELINE or has("avx2")):
        assert found["instructions"] == ("portable" if switches is BASELINE else "avx2")
    assert found["digest"] == module.digest_of_folder(folder)
