"""What a warmed-up model has prepared for a batch size stays prepared, whatever sizes come in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from needs import missing

ROOT = Path(__file__).parents[2]
PROGRAM = """
import time
import numpy as np
import torch
from batching.stepper import Stepper
from model.acoustic import AcousticModel
from model.runtime import set_up_torch

set_up_torch(1)
stepper = Stepper(AcousticModel.load(device="cpu"), capacity=128, max_batch=128, tile_rows=None)
with torch.inference_mode():
    stepper.warm_up(time.perf_counter)
    print("WARM", flush=True)
    handles = [stepper.pool.take() for _ in range(128)]
    silence = np.zeros(stepper.input_shape, stepper.input_dtype)
    for rows in range(1, 129):
        stepper.run(handles[:rows], [silence] * rows)
print("DONE", flush=True)
"""


def test_no_onednn_kernel_is_created_after_the_warm_up() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ONEDNN", "DNNL"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment | {"ONEDNN_VERBOSE": "2"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    before, _, after = done.stdout.partition("WARM\n")
    assert after.endswith("DONE\n")
    if "create:cache_miss" not in before:
        missing("this build of torch does not multiply by oneDNN here")
    assert "create:cache_hit" in after
    assert "create:cache_miss" not in after
