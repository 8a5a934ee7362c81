"""Process of one section: prints a line when a case begins and a JSON line for each row.

A failed kernel may leave the device unusable for its process. The process then reports this and exits, and the runner
starts another at the next case.
"""

from __future__ import annotations

import importlib
import json
import time
import traceback

import torch

from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import BRIEF, DRY, FULL, Context

BEGIN, ROW, FACTS = "BEGIN ", "ROW ", "FACTS "
LOST = 70  # exit code: the device is unusable for this process
LEAST_S = 3.0  # no case is begun with less time left
ERROR_LETTERS = 400


def main(section: str, first: int, seconds: float, device: str, *, dry: bool, brief: bool = False) -> int:
    """Run the cases of a section from index `first` on; returns the exit code."""
    place = torch.device(device)
    context = Context(place, DRY if dry else BRIEF if brief else FULL, time.monotonic() + seconds)
    if dry:
        torch.set_num_threads(1)  # the products are tiny
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False  # sums in fp32, as in every rung
    module = importlib.import_module(f"tutti_asr_lab.benchmarks.gpu.sections.{section}")
    with torch.inference_mode():
        for index, (case, work) in enumerate(module.cases(context)):
            if index < first:
                continue
            if context.left_s < LEAST_S and not dry:
                _row(case, {}, "not run: the section's time was up")
                return 0
            print(f"{BEGIN}{index} {json.dumps(case)}", flush=True)  # noqa: T201 - the runner reads it
            try:
                _row(case, work(), "")
            except Exception as error:  # noqa: BLE001 - a failed case must not end the others
                traceback.print_exc()
                lost = _lost(place)
                _row(case, {}, f"{'device lost: ' if lost else ''}{type(error).__name__}: {error}"[:ERROR_LETTERS])
                if lost:
                    return LOST
    return 0


def _row(case: Case, values: Values, error: str) -> None:
    print(ROW + json.dumps({"case": case, "values": values, "error": error}), flush=True)  # noqa: T201


def _lost(device: torch.device) -> bool:
    """Whether the device is unusable for this process."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
        torch.ones(8, device=device).sum().item()
    except RuntimeError:
        return True
    return False
