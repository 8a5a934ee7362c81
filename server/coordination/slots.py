"""Room for the streams of one model: held slots, estimate and admission.

It returns leases, and is independent of sessions and engines. A slot is held from `enter` until every engine has closed
its stream, because only then can another stream use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from server.coordination.admission import Admission, Machine
from server.errors import ServerFull


class StreamLease:
    """Slots of one session, released one by one as the engines close their streams."""

    def __init__(self, streams: int, give_back: Callable[[int], None]) -> None:
        """Hold `streams` slots; `give_back` receives the number of those that are free again."""
        self._give_back = give_back
        self._speech, self._vad = streams, 0  # open streams in each engine

    @property
    def slots(self) -> int:
        """Slots that are held."""
        return max(self._speech, self._vad)

    def has_vad(self) -> None:
        """Record that each stream is also open in the engine of the voice-activity model."""
        self._vad = self._speech

    def speech_closed(self) -> None:
        """Note that the speech engine has closed one stream."""
        self._change(self._speech - 1, self._vad)

    def vad_closed(self) -> None:
        """Note that the engine of the voice-activity model has closed one stream."""
        self._change(self._speech, self._vad - 1)

    def cancel(self) -> None:
        """Release all slots, because no engine has a stream of this session."""
        self._change(0, 0)

    def _change(self, speech: int, vad: int) -> None:
        before = self.slots
        self._speech, self._vad = speech, vad
        if before != self.slots:
            self._give_back(before - self.slots)


class ModelRoom:
    """Slots and estimate of one model. `Admission` decides on live streams; background streams have separate slots."""

    def __init__(
        self,
        admission: Admission,
        machine: Machine,
        *,
        background_slots: int,
        clock: Callable[[], float],
        on_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`machine` knows the load of all models. `on_change` receives the number of slots in use."""
        self.admission = admission
        self._machine = machine
        machine.join(admission, lambda: self._live)
        self._background_slots = background_slots
        self._clock = clock
        self._on_change = on_change
        self._live = self._background = 0
        self._changed = asyncio.Event()  # slots that are held, or the estimate

    @property
    def slots_used(self) -> int:
        """Slots that an engine holds or is about to hold."""
        return self._live + self._background

    @property
    def estimate(self) -> int:
        """Estimated number of live streams of this model that the server can carry; 0 before any measurement."""
        return self.admission.estimate

    @property
    def reserved(self) -> int:
        """Number of streams that service times allow and that pressure excludes."""
        return self.admission.capacity.reserved()

    @property
    def slowdown(self) -> float:
        """Current time of batches as a multiple of their time in the warm-up."""
        return self.admission.capacity.slowdown

    async def empty(self) -> None:
        """Wait until no slot is held."""
        while self.slots_used:
            await self._change()

    def update(self) -> None:
        """Read the estimate again, after its inputs have changed."""
        self.admission.update()
        self._changed.set()

    # Entering

    def refuse_if_full(self) -> None:
        """Refuse a request before any work on it. Raises: ServerFull."""
        self.admission.refuse_if_full(self._load)

    async def enter(self, streams: int, *, background: bool = False) -> StreamLease:
        """Hold slots for the streams of one session, without waiting. Raises: ServerFull."""
        return self.enter_now(streams, background=background)

    def enter_now(self, streams: int, *, background: bool) -> StreamLease:
        """Do as `enter`."""
        if not background:
            self.admission.check(self._load, streams, self._clock())
        elif self._lacks_slots(streams):
            raise ServerFull("all recordings that this server takes at a time are being recognized")
        return self._hold(streams, background=background)

    async def enter_in_background(self, streams: int, within_s: float) -> StreamLease:
        """Wait until live streams leave room for these in the background, then hold slots for them.

        Raises: ServerFull after `within_s`.
        """
        try:
            async with asyncio.timeout(within_s):
                while self.admission.full(self._load) or self._lacks_slots(streams):
                    await self._change()
        except TimeoutError:
            raise ServerFull("live streams take all that this server carries: send the recording later") from None
        return self._hold(streams, background=True)

    def clear(self) -> None:
        """Drop all leases after the engines have stopped; their release has no effect afterwards."""
        self._live = self._background = 0
        self._report_change()

    def _hold(self, streams: int, *, background: bool) -> StreamLease:
        self._count(streams, background=background)
        return StreamLease(streams, lambda slots: self._count(-slots, background=background))

    def _count(self, streams: int, *, background: bool) -> None:
        if background:
            self._background += streams
        else:
            self._live += streams
        self._report_change()

    @property
    def _load(self) -> int:
        return self._machine.load(self.admission)

    def _lacks_slots(self, streams: int) -> bool:
        """Whether too few of the slots reserved for background sessions are free."""
        return self._background + streams > self._background_slots

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _report_change(self) -> None:
        self._on_change(self.slots_used)
        self._changed.set()
