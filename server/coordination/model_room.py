"""Room for the streams of one model: the slots that are held, the estimate, and which streams may enter.

It knows no session and no engine: it receives measurements and gives leases. A slot is held from `enter` until
every engine has closed its stream, because only then another one can have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from server.coordination.admission import Admission, Machine, ThreadTime
from server.errors import ServerFull


class StreamLease:
    """Slots of one session, given back one by one as the engines close their streams."""

    def __init__(self, room: ModelRoom, streams: int, *, background: bool) -> None:
        """Hold `streams` slots; made by `ModelRoom.enter`."""
        self._room = room
        self._background = background
        self._speech, self._vad = streams, 0  # open streams in each engine

    @property
    def slots(self) -> int:
        """Slots that are held."""
        return max(self._speech, self._vad)

    def has_vad(self) -> None:
        """Note that each stream is open in the engine of the voice-activity model, too."""
        self._vad = self._speech

    def speech_closed(self) -> None:
        """Note that the speech engine has closed one stream."""
        self._change(self._speech - 1, self._vad)

    def vad_closed(self) -> None:
        """Note that the engine of the voice-activity model has closed one stream."""
        self._change(self._speech, self._vad - 1)

    def cancel(self) -> None:
        """Give all slots back: no engine has a stream of this session."""
        self._change(0, 0)

    def _change(self, speech: int, vad: int) -> None:
        before = self.slots
        self._speech, self._vad = speech, vad
        self._room.give_back(before - self.slots, background=self._background)


class ModelRoom:
    """Slots and estimate of one model. Live streams enter as `Admission` lets them; background ones have own slots."""

    def __init__(
        self,
        admission: Admission,
        machine: Machine,
        *,
        background_slots: int,
        clock: Callable[[], float],
        busy_clock: Callable[[], float] | None = None,
        on_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`machine` knows the load of all models of the process. `on_change` receives the number of slots in use."""
        self.admission = admission
        self._machine = machine
        machine.join(admission, lambda: self._live)
        self._background_slots = background_slots
        self._clock, self._busy_clock = clock, busy_clock or ThreadTime()
        self._on_change = on_change
        self._live = self._background = 0
        self._changed = asyncio.Event()  # slots that are held, or the estimate

    @property
    def slots_used(self) -> int:
        """Slots that an engine holds or is about to hold."""
        return self._live + self._background

    async def empty(self) -> None:
        """Wait until no slot is held."""
        while self.slots_used:
            await self._change()

    # Entering

    def refuse_if_full(self) -> None:
        """Refuse a request before any work on it. Raises: ServerFull."""
        self.admission.refuse_if_full(self._load)

    async def wait_in_background(self, streams: int, within_s: float) -> None:
        """Wait until live streams leave room for these in the background. Raises: ServerFull after `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                while self.admission.full(self._load) or self._lacks_slots(streams):
                    await self._change()
        except TimeoutError:
            raise ServerFull("live streams take all that this server carries: send the recording later") from None

    def enter(self, streams: int, *, background: bool = False) -> StreamLease:
        """Hold slots for the streams of one session. Raises: ServerFull."""
        now = self._clock()
        self._look(now)
        if not background:
            self.admission.check(self._load, streams, now)
            self._live += streams
        elif self._lacks_slots(streams):
            raise ServerFull("all recordings that this server takes at a time are being recognized")
        else:
            self._background += streams
        self._report_change()
        return StreamLease(self, streams, background=background)

    def give_back(self, slots: int, *, background: bool) -> None:
        """Take back slots of a lease."""
        if background:
            self._background -= slots
        else:
            self._live -= slots
        self._report_change()

    def clear(self) -> None:
        """Forget all leases, which give nothing back afterwards: the engines have stopped."""
        self._live = self._background = 0
        self._report_change()

    @property
    def _load(self) -> int:
        return self._machine.load(self.admission)

    def _lacks_slots(self, streams: int) -> bool:
        """Whether too few of the slots that are kept for background sessions are free."""
        return self._background + streams > self._background_slots

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _report_change(self) -> None:
        self._on_change(self.slots_used)
        self._changed.set()

    # What was measured

    def warmed_up(self, step_s: Mapping[int, float]) -> None:
        """Take the service times by batch size that the warm-up measured."""
        self.admission.warmed_up(step_s)

    def ran(self, rows: int, step_s: float, live_ages_s: Sequence[float], steps: int) -> None:
        """Take a batch: rows, its time in the model, the ages of its live steps when answered, steps of each stream."""
        self._machine.rows += rows
        self.admission.capacity.ran(rows, step_s, live_ages_s, steps)
        self._look(self._clock())

    def waited(self, seconds: float) -> None:
        """Take the wait of a live stream's result for work of other threads."""
        self.admission.capacity.waited(seconds)

    def ended(self, streams: int) -> None:
        """Count ended streams."""
        self.admission.capacity.ended(streams)

    def look(self) -> None:
        """Update the estimate if a period is over, for times without a batch."""
        self._look(self._clock())

    def _look(self, now: float) -> None:
        if not self.admission.capacity.due(now):
            return  # this thread's CPU time is a system call: once a period, not once a batch
        self.admission.look(now, self._busy_clock(), self._load, self._machine.rows)
        self._changed.set()
