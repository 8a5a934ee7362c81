"""States of the open streams: in slots of the model, or as bytes while more streams are open than there are slots.

A stream needs a slot only while it steps. A step of a stream without one takes a free slot, or that of the stream that
stepped least recently: one that rests, as long as fewer streams step than there are slots. A state that was exported
and restored is the same state, so no output depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from batching.batcher import StreamId
from batching.errors import PoolFull
from batching.pool import Handle, SlotPool


class StreamStates:
    """The state of each open stream; `max_streams` of them, or one for each slot if that is more."""

    def __init__(self, pool: SlotPool, max_streams: int) -> None:
        self._pool = pool
        self._max_streams = max_streams
        self._held: dict[StreamId, Handle] = {}  # while some have none, in the order of their last steps
        self._stored: dict[StreamId, bytes | None] = {}  # states of streams without a slot; None: of a new stream

    def __len__(self) -> int:
        return len(self._held) + len(self._stored)

    def __contains__(self, stream: object) -> bool:
        return stream in self._held or stream in self._stored

    def open(self, stream: StreamId) -> None:
        """Give a new stream a slot if one is free. Raises: PoolFull."""
        try:
            self._held[stream] = self._pool.take()
        except PoolFull:
            if len(self) >= self._max_streams:
                raise
            self._stored[stream] = None

    def handles(self, streams: Sequence[StreamId]) -> list[Handle]:
        """Return access to the slots of different streams, at most one for each slot; valid until the next call."""
        if self._stored:
            self._give_slots(streams)
        held = self._held
        return [held[stream] for stream in streams]

    def export(self, stream: StreamId) -> bytes:
        """Return a copy of the stream's state."""
        return self._stored.get(stream) or self._pool.export(self.handles((stream,))[0])

    def restore(self, stream: StreamId, state: bytes) -> None:
        """Overwrite the stream's state. Raises: WrongState."""
        self._pool.restore(self.handles((stream,))[0], state)

    def close(self, stream: StreamId) -> None:
        """Drop the state of an open stream."""
        if stream in self._held:
            self._pool.release(self._held.pop(stream))
        else:
            del self._stored[stream]

    def _give_slots(self, streams: Sequence[StreamId]) -> None:
        held, stored, pool = self._held, self._stored, self._pool
        for stream in streams:
            if stream in held:
                held[stream] = held.pop(stream)
        for stream in streams:
            if stream in stored:
                if not pool.free:
                    oldest = next(iter(held))  # none of `streams`: these are the last ones
                    stored[oldest] = pool.export(held[oldest])
                    pool.release(held.pop(oldest))
                held[stream] = handle = pool.take()
                state = stored.pop(stream)
                if state is not None:
                    pool.restore(handle, state)
