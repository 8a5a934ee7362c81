"""The wheel of streams with one interval: even places, calls in order and never early, one timer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from loadtest.generator.timers import TICK_S, Wheel

T0 = 8_675_309.25
INTERVAL_S = 0.02


class Loop:
    """An event loop with one timer, whose time passes only in `run`."""

    def __init__(self) -> None:
        self.now = T0
        self.timers: list[tuple[float, Callable[[], None], SimpleNamespace]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> SimpleNamespace:
        handle = SimpleNamespace(cancelled=False)
        handle.cancel = lambda: setattr(handle, "cancelled", True)
        self.timers.append((self.now + delay_s, call, handle))
        return handle

    def run(self, seconds: float) -> None:
        """Let time pass, and call the timer when it is due."""
        until_s = self.now + seconds
        while True:
            self.timers = [timer for timer in self.timers if not timer[2].cancelled]
            assert len(self.timers) <= 1
            if not self.timers or self.timers[0][0] > until_s:
                break
            when_s, call, _ = self.timers.pop()
            self.now = max(self.now, when_s)
            call()
        self.now = until_s


class Stream:
    """Notes when it was due."""

    def __init__(self, loop: Loop, calls: list[float] | None = None) -> None:
        self.loop = loop
        self.calls = [] if calls is None else calls
        self.start_s = 0.0

    def due(self, due_s: float) -> None:
        assert due_s <= self.loop.now, "early"
        self.calls.append(due_s)


def wheel_of(loop: Loop) -> Wheel:
    return Wheel(loop, lambda: loop.now, INTERVAL_S)  # type: ignore[arg-type]


def test_a_stream_is_called_once_an_interval_from_one_interval_after_its_start() -> None:
    loop = Loop()
    wheel, streams, rng = wheel_of(loop), [Stream(loop) for _ in range(30)], random.Random(1)
    for stream in streams:
        stream.start_s = wheel.add(stream)
        assert loop.now - TICK_S < stream.start_s <= loop.now + INTERVAL_S
        loop.run(rng.random() * 0.03)
    loop.run(1.0)
    for stream in streams:
        expected = [stream.start_s + (n + 1) * INTERVAL_S for n in range(len(stream.calls))]
        assert stream.calls == pytest.approx(expected, abs=1e-6)
        assert stream.calls[-1] > loop.now - INTERVAL_S - 0.002


def test_streams_are_spread_evenly_also_after_others_have_left() -> None:
    loop = Loop()
    wheel, rng = wheel_of(loop), random.Random(2)
    streams = [Stream(loop) for _ in range(45)]
    for stream in streams:
        wheel.add(stream)
    assert Counter(wheel.sizes) == {2: 15, 3: 5}
    for stream in rng.sample(streams, 20):
        wheel.remove(stream)
        loop.run(0.007)
        wheel.add(Stream(loop))
    assert set(wheel.sizes) <= {2, 3}
    assert len(wheel) == 45


def test_a_removed_stream_is_not_called_and_an_idle_wheel_has_no_timer() -> None:
    loop = Loop()
    wheel, stream = wheel_of(loop), Stream(loop)
    wheel.add(stream)
    wheel.remove(stream)  # before its place has come
    wheel.remove(stream)
    loop.run(0.1)
    assert stream.calls == []
    assert not loop.timers
    start_s = wheel.add(stream)  # after a pause of many turns
    assert loop.now <= start_s <= loop.now + INTERVAL_S
    loop.run(0.05)
    assert len(stream.calls) in (1, 2)
    wheel.close()
    called = len(stream.calls)
    loop.run(0.1)
    assert len(stream.calls) == called
    assert len(wheel) == 0


def test_late_calls_come_in_the_order_of_their_times() -> None:
    loop = Loop()
    wheel, order = wheel_of(loop), list[float]()
    for _ in range(5):
        wheel.add(Stream(loop, order))
    loop.now += 0.1  # the generator was held up for five intervals
    loop.run(0.001)
    assert len(order) >= 15
    assert order == sorted(order)


def test_an_interval_below_a_tick_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        Wheel(Loop(), lambda: T0, 0.0001)  # type: ignore[arg-type]
