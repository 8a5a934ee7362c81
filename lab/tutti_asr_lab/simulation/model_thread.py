"""Simulated model thread: drives the real batcher and runs its batches as the engine does, on a virtual clock.

Batch durations and wake-up times are random.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from batching.batcher import Batcher, Pending
from batching.thread.result_backpressure import PATIENCE_S
from batching.thread.step_token import PATIENCE_S as TOKEN_PATIENCE_S
from tutti_asr_lab.simulation.calibration import Interference, Overheads, RandomFactors
from tutti_asr_lab.simulation.event_loop import NEVER_S, EventLoop
from tutti_asr_lab.simulation.service_table import DRAWS, ServiceTable
from tutti_asr_lab.simulation.workload import Message


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
        self.at_s = self._began_s + max(draws[0], takes_s)  # never faster than the engine alone
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
