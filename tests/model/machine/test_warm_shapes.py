"""Kernels created in the warm-up stay cached for all batch sizes, whatever sizes run in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.needs import missing, need_precision

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
import time
import numpy as np
from batching.stepper import Stepper
from model.acoustic import load_model
from model.checkpoint import GRU
from model.machine.runtime import set_up_torch

set_up_torch(1)
stepper = Stepper(load_model(GRU, device="cpu", precision=sys.argv[1]).slots(capacity=128, largest=128))
stepper.warm_up(time.perf_counter)
print("WARM", flush=True)
handles = [stepper.pool.take() for _ in range(128)]
silence = np.zeros(1_280, np.int16)
for rows in range(1, 129):
    stepper.run(handles[:rows], [silence] * rows)
print("DONE", flush=True)
"""


def kernels(precision: str) -> tuple[str, str]:
    """Return oneDNN's log of kernels created in the warm-up, and in batches of all sizes after it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ONEDNN", "DNNL"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, precision],
        cwd=ROOT,
        env=environment | {"ONEDNN_VERBOSE": "2"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    before, _, after = done.stdout.partition("WARM\n")
    assert after.endswith("DONE\n")
    return before, after


def test_no_onednn_kernel_is_created_after_the_warm_up() -> None:
    need_precision("bf16")
    before, after = kernels("bf16")
    if "create:cache_miss" not in before:
        missing("this build of torch does not multiply by oneDNN here")
    assert "create:cache_hit" in after
    assert "create:cache_miss" not in after


def test_in_8_bits_no_onednn_kernel_is_created() -> None:
    before, after = kernels("int8")
    assert "create:" not in before + after
