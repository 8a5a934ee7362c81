"""Data-parallel training in several processes: each makes its own batches, and every update uses the mean gradient.

On a CPU this beats threads: the recurrence consists of small operations, and threads wait for one another after each.
All processes hold the same weights without sending them, because equal gradients make equal updates.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

WAIT = timedelta(hours=1)  # longest wait for the process that validates


@dataclass(frozen=True, slots=True)
class Team:
    """This process's place among those of a run."""

    rank: int = 0
    size: int = 1
    asked_to_stop: Event | None = None  # set by Ctrl-C in this process

    @property
    def leads(self) -> bool:
        """True in the process that validates, saves and reports."""
        return self.rank == 0

    def mean(self, parameters: Sequence[torch.nn.Parameter], figures: Sequence[float]) -> list[float]:
        """Replace the gradients by their mean over the team, in place; returns the figures' means.

        Raises: KeyboardInterrupt in every process if one of them was asked to stop.
        """
        if self.size == 1:
            return list(figures)
        stop = float(self.asked_to_stop is not None and self.asked_to_stop.is_set())
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([*(g.reshape(-1) for g in grads), torch.tensor([*figures, stop], dtype=torch.float32)])
        distributed.all_reduce(flat)
        flat /= self.size
        parts = torch.split(flat, [*(g.numel() for g in grads), len(figures) + 1])
        *means, stops = (float(figure) for figure in parts[-1])
        if stops:
            raise KeyboardInterrupt
        for parameter, part in zip(parameters, parts, strict=False):
            parameter.grad = part.view_as(parameter)
        return means


def run(size: int, work: Callable[[Team], None]) -> None:
    """Call `work`, which must be picklable, in `size` processes, or here if that is one.

    Raises: whatever `work` raises here; torch's ProcessRaisedException if it raises in a process of its own;
    KeyboardInterrupt once all processes have ended tidily.
    """
    if size == 1:
        work(Team())
        return
    interrupted = False
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        context = spawn(_member, (size, meeting, work), nprocs=size, join=False)  # type: ignore[no-untyped-call]
        while True:
            try:
                if context.join():
                    break
            except KeyboardInterrupt:  # the members got the signal too, and stop at the same update
                interrupted = True
    if interrupted:
        raise KeyboardInterrupt


def _member(rank: int, size: int, meeting: str, work: Callable[[Team], None]) -> None:
    asked = Event()
    signal.signal(signal.SIGINT, lambda *_: asked.set())
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=WAIT)
    try:
        with contextlib.suppress(KeyboardInterrupt):  # raised again by the parent
            work(Team(rank, size, asked))
    finally:
        distributed.destroy_process_group()
