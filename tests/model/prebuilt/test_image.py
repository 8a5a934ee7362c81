"""Machine code of images: what is compiled in advance, and for processors that this machine need not be."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from model import warm_up
from model.audio import levels
from tests.support.audio.speech import ROOT

NOT_OF_A_SERVER = {"model.int8.product.multiplied", "model.machine.memory.follow"}  # of tests and measurements
OTHER = ("x86-64-v2", "-popcnt")  # a name and features that no cache has yet


PROGRAM = """
from model import warm_up
from model.machine.compiled import ENTRY_POINTS

warm_up.main([])
warm_up.warm_up_published()
compiled = [each for each in ENTRY_POINTS if each.signatures or each in warm_up.PUBLISHED]
print()
print(*(f"{each.py_func.__module__}.{each.py_func.__name__}" for each in ENTRY_POINTS if each not in compiled))
"""
"""What `python -m model.warm_up --published` compiles, without the steps of published networks, which take a minute."""


def test_a_warm_up_compiles_every_entry_point_of_a_server() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()[-1].split()) == NOT_OF_A_SERVER


def test_code_for_another_processor_is_compiled_from_types_alone(tmp_path: Path) -> None:
    levels.warm_up()
    types = tmp_path / "types"
    function = "model.audio.levels", "write_levels"
    types.write_bytes(pickle.dumps([each for each in warm_up.used_types() if each[:2] == function]))
    name, features = OTHER
    kept = tmp_path / "kept"
    env = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(kept)}
    words = [sys.executable, "-m", "model.prebuilt.image", "--types", str(types)]
    assert (
        subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout == "1 functions\n"
    )
    [index] = kept.rglob("*.nbi")
    assert all(text.encode() in index.read_bytes() for text in OTHER)
