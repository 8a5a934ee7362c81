"""Launching of a run: starts its processes on this machine, or joins those started by torchrun or a cluster.

On a CPU, processes are faster than threads: the recurrence consists of small operations, after each of which threads
wait for one another. Every process computes with one thread, so that products have the same bits for any number.
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
from multiprocessing import resource_tracker
from threading import Event

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from model.errors import TrainingError
from tutti_asr_lab.training.acoustic.parallel.all_reduce import is_power_of_two
from tutti_asr_lab.training.acoustic.parallel.heartbeat import ANSWERED_S, BEAT_S, Heartbeat
from tutti_asr_lab.training.acoustic.parallel.team import Team

EXIT_INTERRUPTED = 130  # as in a shell: 128 + SIGINT
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 2.0  # for the other processes to end after one failed, and again before they are killed
MEET_S = 1_800.0  # longest wait for processes that still read audio, or for the one that draws the plot
Work = Callable[[Team, Event], bool]  # returns whether it was interrupted


@dataclass(frozen=True, slots=True)
class Place:
    """Rank of this process among processes that were started elsewhere, from torchrun's environment variables."""

    rank: int
    size: int
    local_rank: int  # rank on its machine
    host: str  # host of the process with rank 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place | None:
        """Read the variables that torchrun sets; None if they are not set.

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
    """Number of processes: a power of two, at most the micro-batches of an update; by default the largest possible.

    Raises: TrainingError if `wanted` is another number.
    """
    if wanted is None:
        return 1 << (max(1, min(available, micro_batches)).bit_length() - 1)
    if not is_power_of_two(wanted) or wanted > micro_batches:
        raise TrainingError(
            f"{micro_batches} micro-batches per update cannot be shared by {wanted} processes: "
            f"use 1, 2, 4, … up to {micro_batches}, or increase micro_batches in the recipe"
        )
    return wanted


def run(size: int, work: Work) -> None:
    """Call `work` in `size` processes on this machine; for more than one it must be picklable.

    Raises: for one process, what `work` raises; for more, TrainingError if one failed or was killed; KeyboardInterrupt
    after an interruption, once all have saved and ended.
    """
    if size == 1:
        with one_thread(), interruptible() as stop:
            interrupted = work(Team(), stop)
        if interrupted:
            raise KeyboardInterrupt
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        resource_tracker.ensure_running()  # its start would unblock the signals
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # in the processes until `interruptible`
        context = spawn(_member, (size, meeting, work), nprocs=size, join=False)  # type: ignore[no-untyped-call]
        while True:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
                if context.join(grace_period=GRACE_S):
                    return
            except KeyboardInterrupt:  # the processes received the signal too, and stop at the same update
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
    """Call `work` as one of several processes that were started elsewhere.

    Raises: what `work` raises; KeyboardInterrupt after an interruption, once all have saved and ended.
    """
    with one_thread(), interruptible() as stop:
        ours = not distributed.is_initialized()  # a cluster may have set up the process group
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
    """Entry point of a process started here; its exit status reports an interruption to the parent."""
    interrupted = True  # also by a second signal
    with contextlib.suppress(KeyboardInterrupt), one_thread(), interruptible() as stop:
        limit = timedelta(seconds=MEET_S)
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=limit)
        interrupted = _work_together(Place(rank, size, rank, "127.0.0.1"), work, stop)
        distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip the interpreter's shutdown: it aborts the process if a thread is inside a library, as was seen at the end of
    # a complete run on a busy machine.
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
        interrupted = work(team.placed(), stop)
        team.objects(None)  # wait until all are done, because the first process holds the store
        wait_s = ANSWERED_S
    finally:
        heartbeat.stop(wait_s)
    return interrupted


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Context in which torch computes with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def interruptible() -> Iterator[Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; a second one has its usual effect.

    Outside the main thread, where Python allows no signal handlers, the event is never set.
    """
    asked = Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in INTERRUPTS}

    def ask(number: int, _: object) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def available_processes(device: torch.device) -> int:
    """Number of GPUs, or of cores that this process may use."""
    return torch.cuda.device_count() if device.type == "cuda" else len(os.sched_getaffinity(0))
