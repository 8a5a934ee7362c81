"""The engine: a thread that owns model, batcher and state pool, and runs one batch after another.

Any thread may open, push and close: each call appends immutable commands to one queue. The model thread carries out
what has arrived, runs a batch, delivers its results in one call, and begins again; with nothing to run it sleeps until
a bell rings. No locks of ours: whatever changes is touched by the model thread alone. It knows no audio and no event
loop.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import numpy as np
import torch

from batching.batcher import Batcher, Pending, Policy, StreamId, checked_budget
from batching.commands import Close, Command, Export, Open, Restore, Step, Stop
from batching.errors import EngineDown, PoolFull, QueueFull, StepFailed, UnknownStream, WrongInput, WrongState
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.exports import Exports
from batching.mailbox import Mailbox
from batching.pace import Pace
from batching.pool import Handle
from batching.step_model import StepModel
from batching.stepper import Stepper


class Engine:
    """The front of the model thread.

    A stream's life: `open`, any number of `push`, exactly one `close`, also after it failed. Every push is answered
    by a row of a `BatchDone`, or by the stream's end: `StreamFailed`, its own close, or `EngineStopped`. What `export`
    tells of a stream, `restore` makes another one go on from, in this engine or in any with the same model.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        capacity: int,
        policy: Policy,
        max_batch: int,
        max_queued: int,
        deliver: Callable[[EngineEvent], None],
        background_rows: int = 8,
        step_s: float = 0.0,
        tile_rows: int | None = None,
        warm_up: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        name: str = "model",
    ) -> None:
        """Allocate everything; `start` begins.

        A stream beyond `capacity` fails with `PoolFull`, a waiting step of one stream beyond `max_queued` fails it
        with `QueueFull`. `step_s` is the duration of a step's audio, where steps have a pace of their own (`Pace`).
        `warm_up` steps every size of batch before the first command and delivers `WarmedUp`. `deliver` is called on the
        model thread with every event: it must not block, and if it raises, the engine dies. `Batcher` explains the
        policy and the sizes of batches, `Stepper` the tiles.
        """
        self._stepper = Stepper(model, capacity=capacity, max_batch=max_batch, tile_rows=tile_rows)
        self._pool = self._stepper.pool
        self._input_shape, self._input_dtype = self._stepper.input_shape, self._stepper.input_dtype
        self._device = model.device
        self._warm_up = warm_up
        self._batcher = Batcher(
            policy, max_batch=max_batch, max_queued=max_queued, background_rows=background_rows, pace=Pace(step_s)
        )
        self._deliver = deliver
        self._clock = clock
        self._handles: dict[StreamId, Handle] = {}
        self._background: set[StreamId] = set()
        self._failed: set[StreamId] = set()  # failed, and not closed by their owner yet
        self._ids = itertools.count(1)
        self._exports = Exports()
        self._mail = Mailbox()
        # Every stream's allowance, its open and its close: reached only if the model thread hangs.
        self._max_commands = capacity * (max_queued + 2)
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
        """What ended the model thread; None while it runs and after `stop`."""
        return self._failure

    def busy_since(self) -> float | None:
        """Clock time at which the thread began its present piece of work; None = it has nothing to do."""
        return self._busy_since

    def start(self) -> None:
        """Start the model thread. Once only."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread after its present batch; waiting steps are dropped. Raises: EngineDown if it does not end."""
        self._mail.put(Stop())
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise EngineDown(f"the model thread is still at work {timeout_s} s after stop")

    def open(self, *, budget_s: float = 0.1, background: bool = False) -> StreamId:
        """Announce a stream whose steps should be done `budget_s` after their push; its id is never used again.

        Raises: EngineDown; ValueError for a bad budget; QueueFull if the model thread hangs.
        """
        if self._ended:
            raise EngineDown("the model thread has ended") from self._failure
        stream = next(self._ids)
        checked_budget(budget_s)
        if self._takes():
            self._mail.put(Open(stream, budget_s, background))
        return stream

    def push(self, stream: StreamId, inputs: np.ndarray, *, tag: object = None, reset: bool = False) -> None:
        """Hand over one step, ready now; `reset` zeroes the stream's state before it, `tag` comes back with the answer.

        The array is kept, not copied: do not write to it afterwards.
        Raises: WrongInput; QueueFull if the model thread hangs.
        """
        self._check(inputs)
        if self._takes():
            self._mail.put(Step(stream, inputs, tag, reset, self._clock()))

    def push_all(self, stream: StreamId, steps: Iterable[tuple[np.ndarray, object, bool]]) -> None:
        """Hand over (inputs, tag, reset) steps, all ready now, as `push` does one. Raises: as `push`, before any is."""
        ready_s = self._clock()
        commands = [Step(stream, inputs, tag, reset, ready_s) for inputs, tag, reset in steps]
        for command in commands:
            self._check(command.inputs)
        if self._takes():
            self._mail.put_all(commands)

    @property
    def state_bytes(self) -> int:
        """Size of what `StateExported` carries and `restore` takes."""
        return self._pool.row_bytes

    def export(self, stream: StreamId, tag: object = None) -> None:
        """Have the state told as the steps pushed so far leave it; `tag` comes back with `StateExported`.

        The event follows the `BatchDone` of the last of those steps. Raises: QueueFull if the model thread hangs.
        """
        if self._takes():
            self._mail.put(Export(stream, tag))

    def restore(self, stream: StreamId, state: bytes) -> None:
        """Let the steps pushed from now on go on from an exported state. None of the stream's steps may wait.

        Raises: WrongState for another size; QueueFull if the model thread hangs.
        """
        if len(state) != self.state_bytes:
            raise WrongState(f"a state of {len(state)} bytes, must be {self.state_bytes}")
        if self._takes():
            self._mail.put(Restore(stream, state))

    def close(self, stream: StreamId) -> None:
        """End a stream: its waiting steps are dropped, its slot is freed, `StreamClosed` is delivered."""
        self._mail.put(Close(stream))

    def _check(self, inputs: np.ndarray) -> None:
        if inputs.shape != self._input_shape or inputs.dtype != self._input_dtype:
            raise WrongInput(f"a step takes {self._input_dtype} {self._input_shape}, not {inputs.dtype} {inputs.shape}")

    def _takes(self) -> bool:
        """Whether commands are still read: after the end `EngineStopped` has spoken for all. Raises: QueueFull."""
        if self._ended:
            return False
        if len(self._mail) >= self._max_commands:
            raise QueueFull(f"{self._max_commands} commands wait for the model thread")
        return True

    # Called on the model thread:

    def _main(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            with torch.inference_mode():
                if self._warm_up:
                    self._learn(self._stepper.warm_up(self._clock))
                self._serve()
        except BaseException as error:
            self._failure = error
            raise  # to threading.excepthook: an engine never dies in silence
        finally:
            self._ended = True
            self._busy_since = None
            self._deliver(EngineStopped(self._failure))

    def _serve(self) -> None:
        while self._obey():
            batch = self._batcher.next_batch(self._clock())
            if batch:
                self._run(batch)

    def _learn(self, step_s: Mapping[int, float]) -> None:
        for rows, seconds in step_s.items():
            self._batcher.ran(rows, seconds)
        self._deliver(WarmedUp(step_s))

    def _obey(self) -> bool:
        """Carry out the commands that have arrived, after a sleep if there is nothing to do. Returns: False to stop."""
        now = self._clock()
        wake_at = None if self._mail else self._batcher.wake_at(now)
        if not self._mail and (wake_at is None or wake_at > now):
            self._busy_since = None
            self._mail.sleep(None if wake_at is None else wake_at - now)
        self._busy_since = self._clock()
        # As many as there are now, not until empty: a fast producer must not keep the next batch waiting.
        for _ in range(len(self._mail)):
            command = self._mail.take()
            if type(command) is Step:  # nearly all of them
                self._queue(command)
            elif not self._carry_out(command):
                return False
        return True

    def _carry_out(self, command: Command) -> bool:
        match command:
            case Open():
                self._admit(command)
            case Export(stream, tag):
                self._export(stream, tag)
            case Restore(stream, state):
                self._restore(stream, state)
            case Close(stream):
                self._close(stream)
            case Stop():
                return False
        return True

    def _admit(self, command: Open) -> None:
        try:
            self._handles[command.stream] = self._pool.take()
        except PoolFull as error:
            self._report_failed(command.stream, error)
        else:
            self._batcher.open(command.stream, budget_s=command.budget_s, background=command.background)
            if command.background:
                self._background.add(command.stream)

    def _queue(self, step: Step) -> None:
        if step.stream in self._failed:
            return
        try:
            self._batcher.push(step.stream, step, step.ready_s)
        except QueueFull as error:
            self._fail(step.stream, error)
        except UnknownStream as error:
            self._deliver(StreamFailed(step.stream, error))

    def _export(self, stream: StreamId, tag: object) -> None:
        if stream not in self._handles:
            self._miss(stream)
        elif steps := self._batcher.waiting(stream):
            self._exports.add(stream, steps, tag)
        else:
            self._tell_state(stream, tag)

    def _tell_state(self, stream: StreamId, tag: object) -> None:
        self._deliver(StateExported(stream, tag, self._pool.export(self._handles[stream])))

    def _restore(self, stream: StreamId, state: bytes) -> None:
        if stream not in self._handles:
            self._miss(stream)
        elif self._batcher.waiting(stream):
            self._fail(stream, WrongState(f"stream {stream} has steps waiting, which a new state would change"))
        else:
            self._pool.restore(self._handles[stream], state)

    def _miss(self, stream: StreamId) -> None:
        """Tell that a stream is not open, unless it failed: then its owner is being told."""
        if stream not in self._failed:
            self._deliver(StreamFailed(stream, UnknownStream(f"stream {stream} is not open")))

    def _close(self, stream: StreamId) -> None:
        if stream in self._handles:
            self._forget(stream)
        elif stream in self._failed:
            self._failed.remove(stream)
        else:
            self._miss(stream)
            return
        self._deliver(StreamClosed(stream))

    def _run(self, batch: tuple[Pending, ...]) -> None:
        started_s = self._clock()
        steps = cast(list[Step], [pending.item for pending in batch])
        streams, inputs, tags, resets, ready_s = zip(*steps, strict=True)
        handles = [self._handles[stream] for stream in streams]
        if any(resets):
            for handle in itertools.compress(handles, resets):
                self._pool.reset(handle)
        try:
            outputs = self._stepper.run(handles, inputs)
        except StepFailed as error:
            for stream in streams:
                self._fail(stream, error)
            return
        step_s = self._clock() - started_s
        self._batcher.ran(len(batch), step_s)
        self._deliver(
            BatchDone(
                streams=streams,
                tags=tags,
                outputs=outputs,
                queue_wait_s=tuple([started_s - ready for ready in ready_s]),
                live_wait_s=tuple([started_s - p.due_s for p in batch if p.stream not in self._background]),
                started_s=started_s,
                step_s=step_s,
                queued=self._batcher.queued,
            )
        )
        if self._exports:
            for stream, tag in self._exports.ran(streams):
                self._tell_state(stream, tag)

    def _fail(self, stream: StreamId, error: Exception) -> None:
        self._forget(stream)
        self._report_failed(stream, error)

    def _report_failed(self, stream: StreamId, error: Exception) -> None:
        self._failed.add(stream)
        self._deliver(StreamFailed(stream, error))

    def _forget(self, stream: StreamId) -> None:
        self._batcher.close(stream)
        self._background.discard(stream)
        self._exports.forget(stream)
        self._pool.release(self._handles.pop(stream))
