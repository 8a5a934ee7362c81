"""The model thread: executes the commands of its mailbox, runs a batch, and repeats; without work it sleeps.

It needs no lock, because only this thread touches mutable state. Subclasses define the source of commands and the
destination of events: threads of this process for `Engine`, sockets for `EngineServer`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, Required, TypedDict

from batching.batcher import Batcher, Policy
from batching.errors import EngineDown
from batching.events import EngineEvent, EngineStopped
from batching.policy.pace import Pace
from batching.slot_model import SlotModel
from batching.stepper import Stepper
from batching.thread.commands import Command, Stop
from batching.thread.step_token import StepToken
from batching.thread.worker import Worker


class Mail(Protocol):
    """Queue of commands that the model thread empties."""

    @property
    def commands(self) -> deque[Command]:
        """Waiting commands; the model thread removes them."""

    def put(self, command: Command) -> None:
        """Append a command; callable from any thread."""

    def sleep(self, seconds: float | None) -> None:
        """Wait for a command, at most `seconds` (None = no limit); called by the model thread alone."""


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of a `ModelThread`, which its subclasses pass on."""

    policy: Required[Policy]
    max_queued: Required[int]
    background_rows: int
    step_s: float
    warm_up: bool
    clock: Callable[[], float]
    step_token: StepToken | None
    chunks: bool
    max_streams: int
    name: str


class ModelThread:
    """A thread that owns slot model, batcher and pool (`worker.py`)."""

    def __init__(
        self,
        model: SlotModel,
        mail: Mail,
        deliver: Callable[[EngineEvent], None],
        *,
        policy: Policy,
        max_queued: int,
        background_rows: int = 8,
        step_s: float = 0.0,
        warm_up: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        step_token: StepToken | None = None,
        chunks: bool = True,
        max_streams: int = 0,
        name: str = "model",
    ) -> None:
        """Allocate everything; `start` starts the thread.

        A stream beyond the model's capacity fails with `PoolFull`, or beyond `max_streams` if that is more: streams
        that rest then lend their slots to others (`StreamStates`). A stream with more than `max_queued` waiting steps
        fails with `QueueFull`. `step_s`: audio seconds of a step, for streams with a real-time pace (`Pace`).
        `warm_up`: step every batch size before the first command and deliver `WarmedUp`. `step_token`: shared by
        engines on the same cores. Without `chunks` each model call runs one step of each stream, even if the model
        accepts more. `name`: of the thread. `Batcher` documents the policy and the other options.
        """
        stepper = Stepper(model, chunks=chunks)
        batcher = Batcher(
            policy,
            max_batch=len(model.inputs),
            max_queued=max_queued,
            background_rows=background_rows,
            pace=Pace(step_s),
            chunk_steps=stepper.chunk_steps,
        )
        self._deliver = deliver
        self._worker = Worker(
            stepper,
            batcher,
            deliver=deliver,
            clock=clock,
            step_token=step_token or StepToken(),
            max_streams=max_streams,
        )
        self._warm_up = warm_up
        self._clock = clock
        self._mail = mail
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)  # a hung device must not block exit
        self._ended = False
        self._failure: BaseException | None = None
        self._busy_since: float | None = None

    # Called on any thread:

    @property
    def alive(self) -> bool:
        """Whether the model thread is running."""
        return self._thread.is_alive() and not self._ended

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the model thread; None while it runs and after `stop`."""
        return self._failure

    def busy_since(self) -> float | None:
        """Clock time at which the thread last woke or finished a batch; None while it sleeps."""
        return self._busy_since

    def start(self) -> None:
        """Start the model thread. Can be called only once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread after its current batch and drop waiting steps. Raises: EngineDown if it does not end."""
        self._mail.put(Stop())
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise EngineDown(f"the model thread is still running {timeout_s} s after stop")

    # Called on the model thread:

    def _main(self) -> None:
        try:
            if self._warm_up:
                self._worker.warm_up()
            while self._drain_commands():
                self._worker.run_batch()
        except BaseException as error:
            self._failure = error
            raise  # to threading.excepthook, which reports it
        finally:
            self._ended = True
            self._busy_since = None
            self._deliver(EngineStopped(self._failure))

    def _drain_commands(self) -> bool:
        """Execute the commands that have arrived; sleep first if there is nothing to do. Returns: False to stop."""
        self._before_commands()
        commands = self._mail.commands
        now = self._clock()
        wake_at = None if commands else self._worker.wake_at(now)
        if not commands and (wake_at is None or wake_at > now):
            self._busy_since = None
            self._mail.sleep(None if wake_at is None else wake_at - now)
        self._busy_since = self._clock()
        return self._worker.execute(commands)

    def _before_commands(self) -> None:
        """Work of a subclass between two batches."""
