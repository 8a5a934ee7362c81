"""Engine for callers in the same process: a thread that owns slot model, batcher and pool (`thread/model_thread.py`).

Any thread may open, push and close: each call appends an immutable command to one queue. The model thread executes the
commands that have arrived, runs a batch, delivers its results in one call, and repeats; without work it sleeps until
the next command. It needs no lock, because only the model thread touches mutable state. Independent of audio and event
loops.

Backpressure: while a busy event loop has not processed the last batch, results of another one would only queue after
it. So the model thread waits for a bounded time, and the next batch grows: larger batches cost less time per row in
both threads. An idle receiver acknowledges at once, and the model thread never waits.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable
from typing import Unpack

import numpy as np

from batching.batcher import StreamId, checked_budget
from batching.errors import EngineDown, QueueFull, WrongInput, WrongState
from batching.events import BatchDone, EngineEvent
from batching.slot_model import SlotModel
from batching.thread.commands import Close, Export, Mailbox, Open, Restore, Step
from batching.thread.model_thread import EngineOptions, ModelThread

PATIENCE_S = 0.05  # after this time the next batch starts without an acknowledgement
_new_tuple = tuple.__new__  # creates a named tuple in half the time of its own constructor


class Engine(ModelThread):
    """Interface of the model thread for other threads.

    The calls of a stream: `open`, any number of `push`, exactly one `close`, also after a failure. Every push is
    answered by a row of a `BatchDone` or by the end of the stream: `StreamFailed`, its own close, or `EngineStopped`. A
    state from `export` can be restored into another stream, in this engine or in any other with the same model.
    """

    def __init__(
        self,
        model: SlotModel,
        *,
        deliver: Callable[[EngineEvent], None],
        acknowledged: bool = False,
        patience_s: float = PATIENCE_S,
        **options: Unpack[EngineOptions],
    ) -> None:
        """Allocate everything; `start` starts the thread.

        `deliver` is called on the model thread with every event: it must not block, and if it raises, the engine dies.
        `acknowledged`: the receiver calls `acknowledge` for every batch, and the next batch waits for that, at most
        `patience_s`. The other options are those of `ModelThread`.
        """
        mail = Mailbox()
        super().__init__(model, mail, self._counted(deliver) if acknowledged else deliver, **options)
        self._patience_s = patience_s
        self._delivered = 0  # batches to acknowledge; written by the model thread alone
        self._acknowledged = 0  # written by the receiver's thread alone
        self._waiting = False
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        _, *shape = model.inputs.shape
        self._input_shape, self._input_dtype = tuple(shape), model.inputs.dtype
        self.state_bytes = model.state_bytes  # of an exported state
        self._ids = itertools.count(1)
        self._commands = mail.commands
        # A full queue, an open and a close for every stream: reached only if the model thread hangs.
        self._max_commands = max(model.capacity, options.get("max_streams", 0)) * (options["max_queued"] + 2)

    # Called on any thread:

    def open(self, *, budget_s: float = 0.1, background: bool = False) -> StreamId:
        """Open a stream whose steps should be answered within `budget_s` of their due time; ids are never reused.

        Raises: EngineDown; ValueError unless `budget_s` is positive and finite; QueueFull if the model thread hangs.
        """
        if self._ended:
            raise EngineDown("the model thread has ended") from self._failure
        stream = next(self._ids)
        checked_budget(budget_s)
        if self._accepting():
            self._mail.put(Open(stream, budget_s, background))
        return stream

    def push(self, stream: StreamId, inputs: np.ndarray, *, tag: object = None, reset: bool = False) -> None:
        """Queue one step, ready now. `reset`: reset the stream's state first. `tag`: returned with the answer.

        The array is kept, not copied: do not write to it afterwards.
        Raises: WrongInput; QueueFull if the model thread hangs.
        """
        if inputs.shape != self._input_shape or inputs.dtype != self._input_dtype:
            wanted, received = f"{self._input_dtype} {self._input_shape}", f"{inputs.dtype} {inputs.shape}"
            raise WrongInput(f"a step must be {wanted}, not {received}")
        if (not self._ended and len(self._commands) < self._max_commands) or self._accepting():
            self._mail.put(_new_tuple(Step, (stream, inputs, tag, reset, self._clock())))

    def export(self, stream: StreamId, tag: object = None) -> None:
        """Request the state after the steps pushed so far; `StateExported` has the `tag`.

        That event follows the `BatchDone` of the last of these steps. Raises: QueueFull if the model thread hangs.
        """
        if self._accepting():
            self._mail.put(Export(stream, tag))

    def restore(self, stream: StreamId, state: bytes) -> None:
        """Set the stream's state to an exported one, for the steps pushed from now on. No step of it may be waiting.

        Raises: WrongState for a wrong size; QueueFull if the model thread hangs.
        """
        if len(state) != self.state_bytes:
            raise WrongState(f"the state has {len(state)} bytes, the model's have {self.state_bytes}")
        if self._accepting():
            self._mail.put(Restore(stream, state))

    def acknowledge(self) -> None:
        """Acknowledge one `BatchDone`; call it on the thread that receives them all."""
        self._acknowledged += 1
        if self._waiting:
            self._waiting = False
            self._wakeups.put(None)

    def close(self, stream: StreamId) -> None:
        """Close a stream: drop its waiting steps, free its slot and deliver `StreamClosed`."""
        self._mail.put(Close(stream))

    def _accepting(self) -> bool:
        """Whether the thread still runs; if not, `EngineStopped` answers every stream. Raises: QueueFull."""
        if self._ended:
            return False
        if len(self._commands) >= self._max_commands:
            raise QueueFull(f"{self._max_commands} commands are waiting for the model thread, which does not respond")
        return True

    # Called on the model thread:

    def _counted(self, deliver: Callable[[EngineEvent], None]) -> Callable[[EngineEvent], None]:
        def counted(event: EngineEvent) -> None:
            if isinstance(event, BatchDone):
                self._delivered += 1
            deliver(event)

        return counted

    def _before_commands(self) -> None:
        if self._acknowledged >= self._delivered:
            return
        self._waiting = True
        if self._acknowledged < self._delivered:  # an `acknowledge` before the flag was set sent no wake-up
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=self._patience_s)
        self._waiting = False
