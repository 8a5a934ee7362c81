"""Simulated threads of a replica on a virtual clock: event loops, models, second passes, and the cores they share.

The model thread drives the real batcher and runs its batches as the engine does, with random durations and wake-ups.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from batching.batcher import Batcher, Pending
from batching.engine import PATIENCE_S
from batching.thread.step_token import PATIENCE_S as TOKEN_PATIENCE_S
from tutti_asr_lab.simulation.calibration import Interference, Overheads, RandomFactors
from tutti_asr_lab.simulation.service_table import DRAWS, ServiceTable
from tutti_asr_lab.simulation.workload import Message

NEVER_S = math.inf
SLICE_S = 0.001
"""Processor time of a second pass between two looks at the other threads."""
Answered = Callable[[float, float], None]
"""Callback for each timed step: due time of its message, arrival time of its answer."""


class Cores:
    """Cores shared by all threads; 0 = one core for each.

    With more busy threads than cores, they are slowed in proportion, as by a fair scheduler. The slowdown of model
    threads by event loops is part of the measured `Interference`: only that by second passes comes from here.
    """

    def __init__(self, count: float) -> None:
        self.loops: Sequence[EventLoop] = ()  # set once they exist, as the next two
        self.models: Sequence[ModelThread] = ()
        self.passes: Sequence[PassThread] = ()
        self._count = count

    def stretch(self, now: float, seconds: float, *, others: int = 1) -> float:
        """Elapsed seconds for work of `seconds` that starts now, by a thread that is busy already, or by `others`."""
        return seconds * self._slowdown(others + self._busy(now) + self._passes_busy())

    def stretch_batch(self, now: float, seconds: float) -> float:
        """Elapsed seconds for a batch of `seconds` that starts now, which would take no longer without passes."""
        busy = self._busy(now)
        return seconds * self._slowdown(busy + self._passes_busy()) / self._slowdown(busy)

    def _busy(self, now: float) -> int:
        return sum(loop.until_s > now for loop in self.loops) + sum(model.computing for model in self.models)

    def _passes_busy(self) -> int:
        return sum(thread.stream is not None for thread in self.passes)

    def _slowdown(self, busy: int) -> float:
        return max(1.0, busy / self._count) if self._count else 1.0


class EventLoop:
    """Simulated event loop: processes messages and results one at a time, in order of arrival.

    What its work writes to sockets leaves at the end of that work, as with uvloop: the answers of a batch together.
    """

    def __init__(
        self, costs: Overheads, models: Sequence[ModelThread], cores: Cores, answer: Answered, factors: RandomFactors
    ) -> None:
        self.passes: deque[tuple[float, int, float]] = deque()  # from when on, stream, processor time
        self.pass_threads: Sequence[PassThread] = ()  # set once it exists
        self.at_s = NEVER_S
        self.until_s = -1.0  # end of its last work
        self.busy_s = 0.0
        self.streams = 0  # open; counted by the supervisor
        self._costs = costs
        self._models = models
        self._cores = cores
        self._answer = answer
        self._factors = factors
        self._way_s = costs.path_s / 2
        self._free_s = 0.0
        self._held_until_s = 0.0
        self._messages: deque[tuple[float, Message]] = deque()
        self._results: deque[tuple[float, Callable[[float], float]]] = deque()  # each returns when it is done
        self._waiting: dict[int, deque[Message]] = {}  # by stream: answers from that before its oldest pass on

    def receive(self, now: float, message: Message) -> None:
        """Receive a client's message; calls are in order of time."""
        self._messages.append((now, message))
        self._wake(now)

    def deliver(self, now: float, model: ModelThread, batch: tuple[Pending, ...]) -> None:
        """Queue the answers of a batch, or of a part of it, from a model thread."""
        self._results.append((now, partial(self._hand_out, model, batch)))
        self._wake(now)

    def passed(self, now: float, stream: int) -> None:
        """Queue the end of a stream's oldest second pass."""
        self._results.append((now, partial(self._resolve, stream)))
        self._wake(now)

    def act(self, now: float) -> None:
        """Process the message or result that arrived first."""
        messages, results = self._messages, self._results
        if messages and (not results or messages[0][0] <= results[0][0]):
            done_s = self._take_in(now, messages.popleft()[1])
        else:
            done_s = results.popleft()[1](now)
        self.busy_s += done_s - now
        self._free_s = self.until_s = done_s
        self._wait()

    def busy(self, now: float) -> float:
        """Busy time until `now` as a share of all time."""
        return self.busy_s / now if now > 0 else 0.0

    def hold(self, now: float, seconds: float) -> None:
        """Block the event loop while the model thread holds the interpreter lock for `seconds`."""
        self._held_until_s = max(self._free_s, now) + seconds
        self.at_s = max(self.at_s, self._held_until_s)

    def _take_in(self, now: float, message: Message) -> float:
        costs = self._costs
        done_s = now + self._cores.stretch(now, costs.receive_s if message.steps else costs.open_s)
        self._models[message.stream % len(self._models)].command(done_s, message)
        return done_s

    def _hand_out(self, model: ModelThread, batch: tuple[Pending, ...], now: float) -> float:
        model.acknowledge(now)
        costs = self._costs
        work_s = (costs.batch_s + (costs.decode_s + costs.write_s) * len(batch)) * self._factors.loop()
        done_s = now + self._cores.stretch(now, work_s)
        for step in batch:
            message = step.item
            assert isinstance(message, Message), "a step's item"
            if message.pass_s:
                self.passes.append((done_s, step.stream, message.pass_s))
                for idle in [thread for thread in self.pass_threads if thread.at_s == NEVER_S][:1]:
                    idle.at_s = done_s + self._costs.wake_s
                self._waiting.setdefault(step.stream, deque())
            if step.stream in self._waiting:
                self._waiting[step.stream].append(message)
            else:
                self._send(message, done_s)
        return done_s

    def _resolve(self, stream: int, now: float) -> float:
        """Send the answer that waited for a pass, and those after it up to the next one with a pass."""
        done_s, waiting = now + self._cores.stretch(now, self._costs.write_s), self._waiting[stream]
        self._send(waiting.popleft(), done_s)
        while waiting and not waiting[0].pass_s:
            self._send(waiting.popleft(), done_s)
        if not waiting:
            del self._waiting[stream]
        return done_s

    def _send(self, message: Message, done_s: float) -> None:
        if message.timed:
            self._answer(message.due_s, done_s + self._way_s)

    def _wake(self, now: float) -> None:
        """Start the item that arrives at `now`, unless an earlier item is started first."""
        if self.at_s > now:
            self.at_s = min(self.at_s, self._begin_s(now))

    def _wait(self) -> None:
        first_s = min(
            self._messages[0][0] if self._messages else NEVER_S, self._results[0][0] if self._results else NEVER_S
        )
        self.at_s = NEVER_S if first_s == NEVER_S else self._begin_s(first_s)

    def _begin_s(self, arrives_s: float) -> float:
        """Return the time at which it starts an item: immediately after other work, else after waking up."""
        ready_s = self._free_s if arrives_s <= self._free_s else arrives_s + self._costs.wake_s * self._factors.wake()
        return max(ready_s, self._held_until_s)


class PassThread:
    """Computes second passes of a process, one at a time, in slices: each takes longer the more threads are busy."""

    def __init__(self, loop: EventLoop, cores: Cores) -> None:
        self.at_s = NEVER_S
        self.stream: int | None = None  # of the present pass
        self._left_s = 0.0
        self._jobs = loop.passes
        self._loop = loop
        self._cores = cores

    def act(self, now: float) -> None:
        """Begin the next slice of the present pass, or deliver its end and begin with the next one."""
        if self.stream is not None and self._left_s <= 0:
            self._loop.passed(now, self.stream)
            self.stream = None
        if self.stream is None:
            if not self._jobs or self._jobs[0][0] > now:
                self.at_s = self._jobs[0][0] if self._jobs else NEVER_S
                return
            _, self.stream, self._left_s = self._jobs.popleft()
        slice_s = min(SLICE_S, self._left_s)
        self._left_s -= slice_s
        self.at_s = now + self._cores.stretch(now, slice_s, others=0)


class StepToken:
    """Runs the steps of several models one at a time, like `batching.thread.step_token`; a single model never waits."""

    free_s = 0.0

    def taken(self, now: float) -> float:
        """Return when a model that waits from now on begins its step."""
        return max(now, min(self.free_s, now + TOKEN_PATIENCE_S))


class ModelThread:
    """Executes commands, runs a batch, delivers its results, and starts again once these are acknowledged."""

    def __init__(
        self,
        batcher: Batcher,
        table: ServiceTable,
        costs: Overheads,
        interference: Interference,
        *,
        rng: random.Random,
        factors: RandomFactors,
        token: StepToken,
        cores: Cores,
        shares_lock: bool = True,
    ) -> None:
        """`shares_lock`: an event loop runs in the same interpreter, so the two delay each other."""
        self.at_s = NEVER_S
        self.busy_s = 0.0
        self.batches: list[tuple[float, int]] = []  # (start, rows)
        self.loops: Sequence[EventLoop] = ()  # set once they exist
        self.routes: Mapping[int, EventLoop] = {}  # by stream; empty: the only loop
        self._batcher = batcher
        self._table = table
        for rows in table.rows:  # as the warm-up of an engine
            batcher.measured(rows, table.median(rows))
        self._costs = costs
        self._random = rng.random
        self._wake: Callable[[], float] = factors.wake
        self._token = token
        self._cores = cores
        self._shares_lock = shares_lock
        self._draws: dict[int, list[float]] = {}
        self._idle_s = interference.idle_s
        self._busy_s = interference.busy_s if shares_lock else 0.0
        self._factors = interference.spread.factors()
        self._commands: deque[tuple[float, Message]] = deque()
        self._open: set[int] = set()
        self._ending: dict[int, int] = {}  # unanswered steps of the streams' last messages
        self._batch: tuple[Pending, ...] = ()
        self._began_s = 0.0
        self._unacknowledged = 0  # deliveries that their event loops have not processed

    @property
    def computing(self) -> bool:
        """Whether a batch is running."""
        return bool(self._batch)

    def command(self, now: float, message: Message) -> None:
        """Queue steps from the event loop; calls are in order of time."""
        self._commands.append((now, message))
        if not self._batch and not self._unacknowledged:
            self.at_s = min(self.at_s, now + self._costs.wake_s * self._wake())

    def acknowledge(self, now: float) -> None:
        """Acknowledge the results of the last batch; the next may have started already, after the patience."""
        if self._unacknowledged:
            self._unacknowledged -= 1
            if not self._unacknowledged:
                self.at_s = now + self._costs.wake_s * self._wake()

    def act(self, now: float) -> None:
        """Finish the running batch, or start the next one if the batcher has one."""
        if self._batch:
            self._finish(now)
        else:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._unacknowledged = 0
        self._drain_commands(now)
        self._batch = batch = self._batcher.next_batch(now)
        if not batch:
            wake_s = self._batcher.wake_at(now)
            self.at_s = NEVER_S if wake_s is None else wake_s
            if self._commands:
                self.at_s = min(self.at_s, self._commands[0][0])
            return
        rows = len(batch)
        self.batches.append((now, rows))
        draws = self._draws.get(rows)
        if draws is None:
            draws = self._draws[rows] = self._table.draws(rows)
        extra_s = self._idle_s + (self._busy_s * self.loops[0].busy(now) if self._busy_s else 0.0)
        takes_s = draws[int(self._random() * DRAWS)] + extra_s * self._factors[int(self._random() * DRAWS)]
        self._began_s = self._token.taken(now)
        takes_s = max(draws[0], takes_s)  # never faster than the engine alone
        self.at_s = self._began_s + self._cores.stretch_batch(now, takes_s)
        self._token.free_s = max(self._token.free_s, self.at_s)

    def _drain_commands(self, now: float) -> None:
        """Execute the commands that have arrived. A step's item is its message."""
        commands, batcher = self._commands, self._batcher
        while commands and commands[0][0] <= now:
            ready_s, message = commands.popleft()
            stream = message.stream
            if stream not in self._open:
                self._open.add(stream)
                batcher.open(stream, budget_s=message.budget_s)
            for _ in range(message.steps):
                batcher.push(stream, message, ready_s)
            if message.last:
                self._ending[stream] = message.steps

    def _finish(self, now: float) -> None:
        batch, costs = self._batch, self._costs
        engine_s = costs.engine_s + costs.engine_row_s * len(batch)
        if self._shares_lock:
            self.loops[0].hold(now, engine_s)
        now += engine_s
        self.busy_s += now - self._began_s
        self._batch = ()
        parts = self._parts(batch)
        if self._ending:
            self._close_ended(batch)
        self._unacknowledged, self.at_s = len(parts), now + PATIENCE_S  # or on acknowledgement
        for loop, part in parts:
            loop.deliver(now, self, part)

    def _parts(self, batch: tuple[Pending, ...]) -> list[tuple[EventLoop, tuple[Pending, ...]]]:
        """Return the rows of each event loop."""
        if len(self.loops) == 1:
            return [(self.loops[0], batch)]
        parts: dict[int, tuple[EventLoop, list[Pending]]] = {}
        for step in batch:
            loop = self.routes[step.stream]
            parts.setdefault(id(loop), (loop, []))[1].append(step)
        return [(loop, tuple(steps)) for loop, steps in parts.values()]

    def _close_ended(self, batch: tuple[Pending, ...]) -> None:
        """Close streams whose last step this was."""
        for step in batch:
            stream, message = step.stream, step.item
            if isinstance(message, Message) and message.last:
                self._ending[stream] -= 1
                if not self._ending[stream]:
                    del self._ending[stream]
                    self._batcher.close(stream)
                    self._open.remove(stream)
