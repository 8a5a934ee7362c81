"""The engines of a replica, speech and those of auxiliary models: start, warm-up, health, stop.

The recognizer interprets their events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from batching.engine import Engine
from batching.errors import EngineDown
from batching.events import BatchDone, EngineEvent, EngineStopped, StreamFailed
from batching.wire.recovery import RecoveringEngine
from server.errors import EngineDead, ServerNotReady
from server.recognition.steps import Auxiliary

EngineClient = Engine | RecoveringEngine
"""An engine as sessions use it: a thread of this process, or one of another process over connections."""

Deliver = Callable[[EngineEvent], None]
MakeEngine = Callable[[Deliver, asyncio.AbstractEventLoop], EngineClient]
"""Creates an engine that calls the function with every event, in order, on this loop. Callable on any thread."""


def on_loop(deliver: Deliver, loop: asyncio.AbstractEventLoop) -> Deliver:
    """Return a callback for a model thread that runs on the event loop; it does nothing once the loop is closed."""

    def hop(event: EngineEvent) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(deliver, event)

    return hop


@dataclass(frozen=True, slots=True)
class EngineStreams:
    """A session's streams in one engine; ids by channel."""

    engine: EngineClient
    ids: tuple[int, ...]


class Engines:
    """Owns the engines; they are created by `start`."""

    def __init__(
        self,
        make_speech: MakeEngine,
        make_auxiliary: Mapping[Auxiliary, MakeEngine],
        *,
        step_samples: int,
        clock: Callable[[], float],
    ) -> None:
        self._make_speech, self._make_auxiliary = make_speech, make_auxiliary
        self._step_samples = step_samples
        self._clock = clock
        self._speech: EngineClient | None = None
        self._auxiliary: dict[Auxiliary, EngineClient] = {}
        self._warm_up: asyncio.Future[None] | None = None
        self._warm_stream = 0  # no stream has this id
        self._warm = False

    async def start(self, on_speech: Deliver, on_auxiliary: Callable[[Auxiliary, EngineEvent], None]) -> None:
        """Start the engines and wait until one step of silence was answered. Raises: EngineDead, the step's error.

        The callbacks receive every event of their engine, on the running loop.
        """
        loop = asyncio.get_running_loop()
        self._warm_up = loop.create_future()
        # On a thread: it allocates every stream's state, and streams of other models may be running.
        take_speech = self._taking(on_speech, lambda: self._speech)
        self._speech = speech = await asyncio.to_thread(self._make_speech, take_speech, loop)
        speech.start()
        self._warm_stream = speech.open()
        speech.push(self._warm_stream, np.zeros(self._step_samples, np.int16))
        for model, make in self._make_auxiliary.items():
            take = self._taking(partial(on_auxiliary, model), partial(self._auxiliary.get, model))
            self._auxiliary[model] = engine = await asyncio.to_thread(make, take, loop)
            engine.start()
        await self._warm_up
        speech.close(self._warm_stream)
        self._warm = True

    def stop(self, timeout_s: float) -> None:
        """End the engines; sessions still open are broken. Raises: EngineDown if a thread does not end."""
        with contextlib.ExitStack() as stopping:  # each is stopped, even if one before it hangs
            for engine in self._all:
                stopping.callback(engine.stop, timeout_s)

    def ready(self, stall_s: float) -> bool:
        """Return whether the engines run, are warm, and have been busy with their work for less than `stall_s`."""
        if not self._warm:
            return False
        now = self._clock()
        return all(_moves(engine, now, stall_s) for engine in self._all)

    @property
    def ended(self) -> str:
        """Why an engine has ended; empty while all run."""
        ends = [engine for engine in self._all if not engine.alive]
        return str(ends[0].failure or "it was stopped") if ends else ""

    @property
    def _all(self) -> list[EngineClient]:
        return [] if self._speech is None else [self._speech, *self._auxiliary.values()]

    @property
    def state_bytes(self) -> int:
        """Size of a stream's state of the speech engine in bytes, 0 until that is warm."""
        return self._speech.state_bytes if self._speech is not None and self._warm else 0

    def require_warm(self) -> EngineClient:
        """Return the speech engine. Raises: ServerNotReady before the end of `start`, and once an engine has ended."""
        if self._speech is None or not self._warm:
            raise ServerNotReady("the engine is not ready")
        return self._speech

    def open(
        self, count: int, *, budget_s: float, background: bool, auxiliary: Collection[Auxiliary] = ()
    ) -> tuple[EngineStreams, dict[Auxiliary, EngineStreams]]:
        """Open `count` streams, also in the engines of these auxiliary models.

        Raises: ServerNotReady, BatchingError if a model thread hangs.
        """

        def opened(engine: EngineClient) -> EngineStreams:
            ids = tuple(engine.open(budget_s=budget_s, background=background) for _ in range(count))
            return EngineStreams(engine, ids)

        try:
            return opened(self.require_warm()), {model: opened(self._auxiliary[model]) for model in auxiliary}
        except EngineDown as error:
            raise ServerNotReady("the engine is down") from error

    def _taking(self, on_event: Deliver, engine: Callable[[], EngineClient | None]) -> Deliver:
        """Return the callback that receives an engine's events."""

        def take(event: EngineEvent) -> None:
            is_batch, sender = isinstance(event, BatchDone), engine()
            if is_batch and sender is not None:
                sender.acknowledge()
            if not (is_batch and self._warm):
                self._follow(event)
            on_event(event)

        return take

    def _follow(self, event: EngineEvent) -> None:
        match event:
            case BatchDone():
                self._end_warm_up(None)
            case StreamFailed(stream, error) if stream == self._warm_stream:
                self._end_warm_up(error)
            case EngineStopped():
                self._warm = False
                self._end_warm_up(EngineDead("the model thread ended"))

    def _end_warm_up(self, error: Exception | None) -> None:
        if self._warm_up is None or self._warm_up.done():
            return
        if error is None:
            self._warm_up.set_result(None)
        else:
            self._warm_up.set_exception(error)


def _moves(engine: EngineClient, now: float, stall_s: float) -> bool:
    busy_since = engine.busy_since()
    return engine.alive and (busy_since is None or now - busy_since < stall_s)
