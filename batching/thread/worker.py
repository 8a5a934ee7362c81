"""Work of the model thread: executes commands, runs one batch after another, delivers events.

It owns the batcher and the slot pool, and only the model thread calls it, so it needs no locks. The thread, its sleep
and its command queue belong to `ModelThread`.

With an `Overlapped` model the events of a batch are held until the next batch is launched, and delivered while it runs;
if no batch is ready, they are delivered at once. All other events and commands wait for them, so events have the same
order as with any other model, and none is held while the thread sleeps.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np

from batching.batcher import Batcher, Pending, StreamId, steps_each
from batching.errors import PoolFull, QueueFull, StepFailed, UnknownStream, WrongState
from batching.events import BatchDone, EngineEvent, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.pool import Handle
from batching.stepper import Stepper
from batching.thread.commands import Close, Command, Export, Open, Restore, Step, Stop
from batching.thread.step_token import StepToken
from batching.thread.stream_states import StreamStates


class Worker:
    """Executes commands and runs batches, one at a time; delivers the events."""

    def __init__(
        self,
        stepper: Stepper,
        batcher: Batcher,
        *,
        deliver: Callable[[EngineEvent], None],
        clock: Callable[[], float],
        step_token: StepToken,
        max_streams: int,
    ) -> None:
        self._stepper = stepper
        self._pool = stepper.pool
        self._batcher = batcher
        self._deliver = deliver
        self._clock = clock
        self._step_token = step_token
        self._states = StreamStates(stepper.pool, max_streams)
        self._background: set[StreamId] = set()
        self._failed: set[StreamId] = set()  # failed streams that their owner has not closed yet
        self._exports = Exports()
        self._held: list[EngineEvent] = []  # events of the last batch that are not delivered yet

    def warm_up(self) -> None:
        """Step batches of every size and chunks of every length, record their times and deliver `WarmedUp`."""
        step_s = self._stepper.warm_up(self._clock)
        for rows, seconds in step_s.items():
            self._batcher.measured(rows, seconds)
        for steps, chunk_s in self._stepper.warm_up_chunks(self._clock).items():
            for streams, seconds in chunk_s.items():
                self._batcher.measured(streams * steps, seconds, steps)
        self._deliver(WarmedUp(step_s))

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._states)

    @property
    def idle(self) -> bool:
        """Whether no step waits, and no event."""
        return not (self._held or self._batcher.queued)

    @property
    def queued(self) -> int:
        """Number of waiting steps of all streams."""
        return self._batcher.queued

    def waiting(self, streams: Iterable[StreamId]) -> int:
        """Number of waiting steps of these streams; a stream that is not open has none."""
        return sum(self._batcher.waiting(stream) for stream in streams if stream in self._states)

    def wake_at(self, now: float) -> float | None:
        """Time of the next call of `run_batch` if no command arrives before; None = not before a command."""
        return now if self._held else self._batcher.wake_at(now)

    def run_batch(self) -> None:
        """Run the next batch, if one may start now, and deliver the events of the last one."""
        batch = self._batcher.next_batch(self._clock())
        if batch:
            self._run(batch)
        else:
            self._deliver_held()

    def execute(self, commands: deque[Command]) -> bool:
        """Execute the commands that are in the queue now. Returns: False to stop.

        Commands that arrive meanwhile are left, so that a fast producer cannot delay the next batch.
        """
        push = self._batcher.push
        for _ in range(len(commands)):
            command = commands.popleft()
            if type(command) is Step:  # nearly all of them
                try:
                    if command.reset:
                        self._batcher.start_new_chunk(command.stream)
                    push(command.stream, command, command.ready_s)
                except QueueFull as error:
                    self._fail(command.stream, error)
                except UnknownStream:
                    self._report_unknown(command.stream)
            elif not self._execute(command):
                return False
        return True

    def _execute(self, command: Command) -> bool:
        """Execute a command other than `Step`. Returns: False to stop."""
        self._deliver_held()
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
            self._states.open(command.stream)
        except PoolFull as error:
            self._report_failed(command.stream, error)
        else:
            self._batcher.open(command.stream, budget_s=command.budget_s, background=command.background)
            if command.background:
                self._background.add(command.stream)

    def _export(self, stream: StreamId, tag: object) -> None:
        if stream not in self._states:
            self._report_unknown(stream)
        elif steps := self._batcher.waiting(stream):
            self._exports.add(stream, steps, tag)
            self._batcher.start_new_chunk(stream)
        else:
            self._report(self._exported(stream, tag))

    def _exported(self, stream: StreamId, tag: object) -> StateExported:
        return StateExported(stream, tag, self._states.export(stream))

    def _restore(self, stream: StreamId, state: bytes) -> None:
        if stream not in self._states:
            self._report_unknown(stream)
        elif self._batcher.waiting(stream):
            self._fail(stream, WrongState(f"stream {stream} has waiting steps; a state cannot be restored then"))
        else:
            self._states.restore(stream, state)

    def _report_unknown(self, stream: StreamId) -> None:
        """Report a stream that is not open, unless its failure was reported already."""
        if stream not in self._failed:
            self._report(StreamFailed(stream, UnknownStream(f"stream {stream} is not open")))

    def _close(self, stream: StreamId) -> None:
        if stream in self._states:
            self._forget(stream)
        elif stream in self._failed:
            self._failed.remove(stream)
        else:
            self._report_unknown(stream)
            return
        self._report(StreamClosed(stream))

    def _run(self, batch: tuple[Pending, ...]) -> None:
        streams, steps, ready_s, due_s, _, _ = zip(*batch, strict=True)
        _, inputs, tags, resets, _ = zip(*cast(tuple[Step, ...], steps), strict=True)
        per_stream = steps_each(batch)
        members = streams if per_stream == 1 else streams[::per_stream]
        handles = self._states.handles(members)
        if any(resets):
            for handle in itertools.compress(handles, resets[::per_stream]):  # a reset step is the first of its chunk
                self._pool.reset(handle)
        try:
            with self._step_token.held():
                started_s = self._clock()
                outputs = self._step(handles, inputs, per_stream)
                step_s = self._clock() - started_s
        except StepFailed as error:
            for stream in members:
                self._fail(stream, error)
            return
        queue_wait_s = tuple([started_s - ready for ready in ready_s])
        all_in_time = not self._background and due_s == ready_s  # as in nearly all batches
        self._held.append(
            BatchDone(
                streams=streams,
                tags=tags,
                outputs=outputs,
                queue_wait_s=queue_wait_s,
                live_wait_s=queue_wait_s if all_in_time else self._live_wait_s(streams, due_s, started_s),
                started_s=started_s,
                step_s=step_s,
                queued=self._batcher.queued,
                background_waits=bool(self._batcher.queued) and self._batcher.background_waits(started_s),
                steps=per_stream,
            )
        )
        if self._exports.waiting:  # before the next batch, which changes these states
            self._held += [self._exported(stream, tag) for stream, tag in self._exports.ran(streams)]
        if not self._stepper.overlaps:
            self._deliver_held()

    def _step(self, handles: Sequence[Handle], inputs: Sequence[np.ndarray | bytes], per_stream: int) -> np.ndarray:
        try:
            self._stepper.launch(handles, inputs, per_stream)
        finally:
            if self._held:
                self._deliver_held()
        return self._stepper.finish()

    def _live_wait_s(
        self, streams: tuple[StreamId, ...], due_s: tuple[float, ...], started_s: float
    ) -> tuple[float, ...]:
        live = [due for stream, due in zip(streams, due_s, strict=True) if stream not in self._background]
        return tuple([started_s - due for due in live])

    def _report(self, event: EngineEvent) -> None:
        """Deliver an event that belongs to no batch, after the events of the last batch."""
        self._deliver_held()
        self._deliver(event)

    def _deliver_held(self) -> None:
        if self._held:
            held, self._held = self._held, []
            for event in held:
                self._deliver(event)

    def _fail(self, stream: StreamId, error: Exception) -> None:
        self._forget(stream)
        self._report_failed(stream, error)

    def _report_failed(self, stream: StreamId, error: Exception) -> None:
        self._failed.add(stream)
        self._report(StreamFailed(stream, error))

    def _forget(self, stream: StreamId) -> None:
        self._batcher.close(stream)
        self._background.discard(stream)
        self._exports.forget(stream)
        self._states.close(stream)


class Exports:
    """Pending exports by stream in order of request, each with the number of steps to run before it.

    Nearly always empty, and cheap then. It counts steps and holds no model state.
    """

    def __init__(self) -> None:
        self.waiting: dict[StreamId, deque[tuple[int, object]]] = {}

    def add(self, stream: StreamId, steps: int, tag: object) -> None:
        """Add an export that is due after `steps` more of the stream's steps, at least 1."""
        self.waiting.setdefault(stream, deque()).append((steps, tag))

    def ran(self, streams: Iterable[StreamId]) -> list[tuple[StreamId, object]]:
        """Count one step of each stream; return the exports that are due now, (stream, tag)."""
        due: list[tuple[StreamId, object]] = []
        for stream in streams:
            waiting = self.waiting.get(stream)
            if waiting is None:
                continue
            counted = [(steps - 1, tag) for steps, tag in waiting]
            due += [(stream, tag) for steps, tag in counted if not steps]
            left = deque((steps, tag) for steps, tag in counted if steps)
            if left:
                self.waiting[stream] = left
            else:
                del self.waiting[stream]
        return due

    def forget(self, stream: StreamId) -> None:
        """Drop the exports of a closed stream."""
        self.waiting.pop(stream, None)
