"""An engine that runs on the test's thread, one pass at a time, so that a test controls the time between batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import EngineEvent
from batching.slot_model import SlotModel
from batching.thread.model_thread import ModelThread
from tests.support.servers.fakes import FakeClock


class Driven(ModelThread):
    """A model thread's work without the thread, on a clock that advances only to its next wake-up."""

    fake_clock: FakeClock

    @property
    def would_sleep(self) -> bool:
        """Return whether the thread would sleep now."""
        wake_at = self._worker.wake_at(self._clock())
        return not self._mail.commands and (wake_at is None or wake_at > self._clock())

    def turn(self) -> None:
        """Take the commands that have arrived, execute them, and run a batch."""
        self._before_commands()
        if not self.would_sleep and self._drain_commands():
            self._worker.run_batch()

    def settle(self) -> None:
        """Run until the thread would sleep indefinitely."""
        self._before_commands()
        while self._mail.commands or (wake_at := self._worker.wake_at(self._clock())) is not None:
            if self.would_sleep:
                self.fake_clock.advance(wake_at - self._clock())
            self.turn()
            self._before_commands()


class DrivenEngine(Driven, Engine):
    """An engine without its thread."""

    def __init__(self, model: SlotModel, deliver: Callable[[EngineEvent], None], **options: Any) -> None:
        self.fake_clock = FakeClock()
        bounds: dict[str, Any] = {"policy": Policy.EAGER, "max_queued": 64, "clock": self.fake_clock}
        Engine.__init__(self, model, deliver=deliver, **(bounds | options))
        self._max_commands = 1_000_000  # never reached, because the test controls when commands are executed
