"""The capacity estimate during storms of short streams, closings and idle time."""

from __future__ import annotations

import pytest

from batching.capacity import CROWD, MIN_BATCHES, PERIOD_S, RESERVE_S, Capacity

STEP_S = 0.08
T0 = 8_675_309.25
ROW_S = 0.00012  # event loop, per row
ENDS_S = 0.0016  # event loop, to open and close a stream


class Replica:
    """A capacity estimate that gets the load of a replica, period by period."""

    def __init__(self) -> None:
        self.capacity = Capacity(step_s=STEP_S, objective_s=0.1, max_batch=128, outside={1: 1e-6})
        self.capacity.warmed_up({rows: 0.001 + 0.0001 * rows for rows in (1, 2, 4, 8, 16, 32, 64, 128)})
        self.now, self.busy_s = T0, 0.0
        self.capacity.look(self.now, self.busy_s, 0)
        self.warm = self.capacity.streams()

    def period(
        self,
        streams: int,
        *,
        rows: int | None = None,
        asked: int = 0,
        ended: int = 0,
        requests: int = 0,
        late: float = 0.0,
        slowdown: float = 1.0,
    ) -> int:
        """Run one period; rows are those of steady streams if not given. Returns: the estimate after it."""
        rows = int(streams * PERIOD_S / STEP_S) if rows is None else rows
        self.capacity.asked(asked)
        self.capacity.ended(ended)
        self.capacity.requested(requests)
        batches = min(rows, 20)
        for n in range(batches):
            size = rows // batches + (n < rows % batches)
            ages = [0.5] * round(late * size) + [0.01] * (size - round(late * size))
            self.capacity.ran(size, slowdown * (0.001 + 0.0001 * size), ages)
        self.busy_s += slowdown * (rows * ROW_S + batches * 0.0003) + (asked + requests + ended) * ENDS_S / 2
        self.now += PERIOD_S
        self.capacity.look(self.now, self.busy_s, streams)
        return self.capacity.streams()

    def storm(self, steady: int = 0) -> None:
        """A thousand clients within two seconds that send 0.3 s of audio and leave, during steady streams."""
        rows = int(steady * PERIOD_S / STEP_S)
        for ended in (100, 250, 250, 250):
            self.period(steady + 80, rows=rows + 900, asked=250, requests=250, ended=ended, late=0.4, slowdown=6.0)
        self.period(steady + 20, rows=rows + 150, ended=130, late=0.4, slowdown=6.0)
        self.period(steady + 3, rows=rows + 40, ended=20, late=0.4, slowdown=3.0)

    def admits(self, wanted: int, per_s: int, *, open_streams: int = 0) -> int:
        """Let streams arrive steadily. Returns: the number of admitted ones."""
        admitted, left, limit = 0, wanted, self.capacity.streams()
        while left:
            arriving = min(left, int(per_s * PERIOD_S))
            entering = max(0, min(arriving, limit - open_streams - admitted))
            admitted, left = admitted + entering, left - arriving
            limit = self.period(open_streams + admitted, asked=arriving, requests=arriving)
        return admitted


@pytest.mark.parametrize("storms", [1, 3, 20])
@pytest.mark.parametrize("steady", [0, 5, 100])
def test_after_storms_of_short_streams_as_many_enter_as_before(storms: int, steady: int) -> None:
    replica = Replica()
    for _ in range(20):
        replica.period(steady)
    for _ in range(storms):
        replica.storm(steady)
    assert replica.admits(200, 10, open_streams=steady) == 200


@pytest.mark.parametrize("kind", ["asked", "ended", "requests"])
def test_openings_closings_and_requests_that_never_were_streams_do_not_lower_the_estimate(kind: str) -> None:
    replica = Replica()
    before = replica.capacity.possible()
    for _ in range(200):
        replica.period(20, late=0.3, slowdown=5.0, **{kind: CROWD})  # type: ignore[arg-type]
    assert replica.capacity.possible() == pytest.approx(before, rel=0.01)
    assert replica.admits(200, 10, open_streams=20) == 200


def test_storms_during_steady_streams_leave_their_measured_slowdown() -> None:
    """The slowdown of a machine at half its speed is neither hidden nor increased by storms."""
    replica = Replica()
    for _ in range(40):
        replica.period(150, slowdown=2.0)
    learnt = replica.capacity.possible()
    assert learnt < 0.6 * replica.warm
    for _ in range(5):
        replica.storm(150)
    assert replica.capacity.possible() == pytest.approx(learnt, rel=0.01)


@pytest.mark.parametrize("pressed", [False, True])
def test_an_idle_replica_returns_to_its_warm_up_within_a_minute(pressed: bool) -> None:
    replica = Replica()
    for _ in range(200):
        replica.period(100, slowdown=20.0, late=0.5 if pressed else 0.0)
    assert replica.capacity.streams() < replica.warm / 4
    for _ in range(round(60 / PERIOD_S)):
        replica.period(0)
    assert replica.capacity.streams() == replica.warm


def test_a_single_stream_does_not_hold_an_old_slowdown() -> None:
    """It has too few batches in a period for a measurement."""
    replica = Replica()
    for _ in range(200):
        replica.period(100, slowdown=20.0)
    for _ in range(round(60 / PERIOD_S)):
        replica.period(1, rows=MIN_BATCHES - 4)
    assert replica.capacity.streams() == replica.warm


def test_steady_streams_that_are_late_still_bound_the_estimate_and_leave_the_reserve() -> None:
    replica = Replica()
    for _ in range(4):
        replica.period(150, late=0.3, asked=5, ended=5)
    assert replica.capacity.streams() < 150
    for _ in range(20):
        replica.period(140, asked=5, ended=5)
    assert replica.capacity.streams() < replica.warm / 2
    assert RESERVE_S > 60


def test_late_steps_of_a_few_streams_do_not_close_the_replica() -> None:
    replica = Replica()
    for _ in range(10):
        replica.period(2, rows=24, late=0.5)
    assert replica.capacity.streams() > 30
