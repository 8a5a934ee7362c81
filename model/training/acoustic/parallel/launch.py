"""Starts the processes of a run on this machine, or joins those that torchrun or a cluster started on several.

Processes beat threads on a CPU: the recurrence consists of small operations, and threads wait for one another after
each. Every process computes with one thread, whatever their number, so that products have the same bits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from model.errors import TrainingError
from model.training.acoustic.parallel.heartbeat import ANSWERED_S, BEAT_S, Heartbeat
from model.training.acoustic.parallel.team import Team
from model.training.acoustic.parallel.tree import is_power_of_two

EXIT_INTERRUPTED = 130  # as of a shell: 128 and the number of SIGINT
GRACE_S = 2.0  # for the other processes to end after the first that failed, and again before they are killed
MEET_S = 1_800.0  # longest wait for processes that still read the audio, or for the one that draws a picture
Work = Callable[[Team, Event], bool]  # returns whether it was interrupted


@dataclass(frozen=True, slots=True)
class Place:
    """This process among those that somebody else started, as torchrun names it in the environment."""

    rank: int
    size: int
    local_rank: int  # on its machine
    host: str  # of the process with rank 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place | None:
        """Read the variables that torchrun sets, None where they are not set.

        Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
        """
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return None
        return cls(
            int(environment["RANK"]),
            int(environment["WORLD_SIZE"]),
            int(environment.get("LOCAL_RANK", "0")),
            environment.get("MASTER_ADDR", "127.0.0.1"),
        )


def processes_for(wanted: int | None, micro_batches: int, available: int) -> int:
    """Number of processes, a power of two that divides the micro-batches of an update; by default, as many as fit.

    Raises: TrainingError for another number.
    """
    if wanted is None:
        return 1 << (max(1, min(available, micro_batches)).bit_length() - 1)
    if not is_power_of_two(wanted) or wanted > micro_batches:
        raise TrainingError(
            f"{micro_batches} micro-batches an update cannot be shared by {wanted} processes: "
            f"use 1, 2, 4, … up to {micro_batches}, or let the recipe say more micro_batches"
        )
    return wanted


def run(size: int, work: Work) -> None:
    """Call `work`, which must be picklable if they are several, in `size` processes of this machine.

    Raises: what `work` raises if it is one process; else TrainingError if one failed or was killed; KeyboardInterrupt
    once all have ended tidily.
    """
    if size == 1:
        with one_thread(), interruptible() as stop:
            interrupted = work(Team(), stop)
        if interrupted:
            raise KeyboardInterrupt
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        context = spawn(_member, (size, meeting, work), nprocs=size, join=False)  # type: ignore[no-untyped-call]
        while True:
            try:
                if context.join(grace_period=GRACE_S):
                    return
            except KeyboardInterrupt:  # the processes got the signal too, and stop at the same update
                continue
            except ProcessExitedException as error:
                if error.exit_code == EXIT_INTERRUPTED:
                    raise KeyboardInterrupt from None
                raise TrainingError(f"a process of the run ended: {error}") from error
            except ProcessRaisedException as error:
                kind, _, message = str(error).strip().splitlines()[-1].partition(": ")
                if kind.startswith("model.errors."):
                    raise TrainingError(message) from error
                raise


def join(place: Place, work: Work) -> None:
    """Call `work` as one of the processes that somebody else started.

    Raises: what `work` raises; KeyboardInterrupt once all have ended tidily.
    """
    with one_thread(), interruptible() as stop:
        ours = not distributed.is_initialized()  # a cluster may have introduced the processes to one another
        if ours:
            distributed.init_process_group("gloo", init_method="env://", timeout=timedelta(seconds=MEET_S))
        try:
            interrupted = _work_together(place, work, stop)
        finally:
            if ours:
                distributed.destroy_process_group()
    if interrupted:
        raise KeyboardInterrupt


def _member(rank: int, size: int, meeting: str, work: Work) -> None:
    """One of the processes started here; its exit status tells the parent of an interruption."""
    with one_thread(), interruptible() as stop:
        limit = timedelta(seconds=MEET_S)
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=limit)
        interrupted = _work_together(Place(rank, size, rank, "127.0.0.1"), work, stop)
        distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the interpreter's end, which aborts a process where a thread is inside a library: seen after a run that
    # had done all of its work, on a busy machine.
    os._exit(EXIT_INTERRUPTED if interrupted else 0)


def _work_together(place: Place, work: Work, stop: Event) -> bool:
    team = Team(place.rank, place.size, place.local_rank)
    heartbeat = Heartbeat(0, place.size, "127.0.0.1") if team.leads else None
    port = team.objects(heartbeat.port if heartbeat is not None else None)[0]
    if heartbeat is None:
        heartbeat = Heartbeat(place.rank, place.size, place.host, port)
    heartbeat.start()
    wait_s = BEAT_S
    try:
        interrupted = work(team, stop)
        team.objects(None)  # nobody leaves before all are done: the first process keeps the store
        wait_s = ANSWERED_S
    finally:
        heartbeat.stop(wait_s)
    return interrupted


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def interruptible() -> Iterator[Event]:
    """Yield what the first Ctrl-C, or SIGTERM, sets; a second one ends the process as ever.

    In another thread than the main one, where Python allows no handlers, it is never set.
    """
    asked = Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: object) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def available_processes(device: torch.device) -> int:
    """Cores that this process may use, or GPUs."""
    return torch.cuda.device_count() if device.type == "cuda" else len(os.sched_getaffinity(0))
