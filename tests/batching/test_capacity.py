"""The limit of live streams: from the warm-up, lowered while steps are late, raised slowly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.capacity import (
    ENGINE_S,
    FLOOR,
    HEADROOM,
    LONG_WAIT_S,
    LOOP_S,
    PERIOD_S,
    RELIEF,
    Capacity,
    LatencyObjective,
    PeriodSteps,
)

STEP_S = 0.08
T0 = 8_675_309.25
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
ENGINE_ROW_S = (ENGINE_S[0] + 128 * ENGINE_S[1]) / 128  # of a full batch
LOOP_ROW_S = (LOOP_S[0] + 128 * LOOP_S[1]) / 128


def line(fixed_s: float, row_s: float) -> dict[int, float]:
    """Seconds by rows of a model with a fixed cost and a cost per row."""
    return {rows: fixed_s + row_s * rows for rows in SIZES}


SLOW = line(0.003, 0.0002)  # so that the model is the bound
FAST = line(0.0001, 0.00001)  # so that the event loop is


def possible(*engines: tuple[dict[int, float], int], objective_s: float = 0.1) -> float:
    """Streams that these warm-ups allow, each with the number of processes that share the engine."""
    capacity = Capacity(LatencyObjective(STEP_S, objective_s))
    capacity.warmed_up(engines)
    return capacity.possible


def test_the_possible_streams_follow_from_the_largest_batches_within_the_objective() -> None:
    assert possible((SLOW, 1)) == pytest.approx(HEADROOM * STEP_S / (0.0286 / 128 + ENGINE_ROW_S))


def test_a_shorter_objective_allows_only_smaller_batches() -> None:
    def engine_s(rows: int) -> float:
        return 0.003 + 0.0002 * rows + ENGINE_S[0] + ENGINE_S[1] * rows

    largest = max(rows for rows in range(1, 129) if 2 * engine_s(rows) + LOOP_S[0] + LOOP_S[1] * rows <= 0.02)
    assert 20 < largest < 30
    assert possible((SLOW, 1), objective_s=0.02) == pytest.approx(HEADROOM * largest * STEP_S / engine_s(largest))


def test_the_event_loop_can_be_the_bound() -> None:
    assert possible((FAST, 1)) == pytest.approx(HEADROOM * STEP_S / LOOP_ROW_S)
    assert int(possible((FAST, 1))) in range(435, 460), "as with one process on two cores"
    own_s = LOOP_S[0] + 32 * LOOP_S[1]  # of a quarter of a full batch
    assert possible((FAST, 4)) == pytest.approx(4 * HEADROOM * STEP_S * 32 / own_s)


def test_at_least_one_stream_is_admitted_even_if_a_step_exceeds_the_objective() -> None:
    capacity = Capacity(LatencyObjective(STEP_S, 0.01))
    assert capacity.streams() == 0, "before the warm-up"
    capacity.warmed_up([({1: 0.02}, 1)])
    assert (capacity.possible, capacity.streams(), capacity.reserved()) == (0.0, 1, 0)


def test_processes_that_share_an_engine_carry_more_until_the_engine_is_the_bound() -> None:
    found = [possible((line(0.0001, 0.00005), count)) for count in (1, 2, 8, 16)]
    assert found[1] == pytest.approx(2 * found[0], rel=0.1)
    assert found[3] == pytest.approx(found[2], rel=0.05), "the engine is the bound"


def test_engines_carry_the_sum_of_what_each_carries() -> None:
    assert possible((SLOW, 2), (SLOW, 2)) == pytest.approx(2 * possible((SLOW, 2)))


def test_the_engine_that_carries_the_fewest_by_its_share_is_the_bound_of_all() -> None:
    slower = line(0.004, 0.0003)
    assert possible((SLOW, 1), (slower, 1)) == pytest.approx(2 * possible((slower, 1))), "each has half of the streams"
    assert possible((SLOW, 2), (SLOW, 1)) == pytest.approx(1.5 * possible((SLOW, 2))), "the first has two thirds"


class Load:
    """Gives a capacity periods of steps, some of them late."""

    def __init__(self) -> None:
        self.capacity = Capacity(LatencyObjective(STEP_S, 0.1))
        self.capacity.warmed_up([(FAST, 1)])
        self.now = T0
        self.capacity.end_period(T0, PeriodSteps(), 0)
        self.free = self.capacity.streams()

    def period(self, streams: int, late_of_100: int = 0, *, waited_s: float = 0.0, seconds: float = PERIOD_S) -> int:
        """End a period with `late_of_100` late steps. Returns: the limit after it."""
        self.now += seconds
        self.capacity.end_period(self.now, PeriodSteps(live=100, late=late_of_100, waited_s=waited_s), streams)
        return self.capacity.streams()


@pytest.mark.parametrize(("waited_s", "fewer"), [(LONG_WAIT_S - 0.1, False), (LONG_WAIT_S + 0.1, True)])
def test_results_that_wait_long_for_other_work_lower_the_limit_too(waited_s: float, fewer: bool) -> None:
    load = Load()
    for _ in range(3):
        limit = load.period(60, waited_s=waited_s)
    assert (limit < load.free) is fewer


@pytest.mark.parametrize("storms", [1, 3, 20])
def test_half_a_minute_after_storms_the_limit_is_back(storms: int) -> None:
    """A thousand clients within two seconds that leave: late steps of a few streams, in one period after another."""
    load = Load()
    for _ in range(storms):
        for streams in (80, 80, 80, 80, 20, 3):
            load.period(streams, 40)
    for _ in range(round(30 / PERIOD_S)):
        limit = load.period(1)
    assert limit == load.free


def test_the_limit_is_the_new_one_when_the_warm_up_of_fewer_processes_allows_less() -> None:
    load = Load()
    load.capacity.warmed_up([(FAST, 2)])
    assert load.capacity.streams() == pytest.approx(2 * load.free, rel=0.03)
    for _ in range(2):
        load.period(700, 50)
    assert load.capacity.streams() == int(700 * RELIEF)
    load.capacity.warmed_up([(FAST, 1)])
    assert load.capacity.streams() == load.free


PERIODS = st.lists(
    st.tuples(st.integers(0, 600), st.sampled_from((0, 0, 0, 2, 3, 50)), st.sampled_from((0.5, 0.7, 5.0))), max_size=80
)


@given(PERIODS)
def test_the_limit_is_that_of_the_rules_written_out(periods: list[tuple[int, int, float]]) -> None:
    """The twin computes the limit of each moment from all periods until then, and keeps nothing."""
    load = Load()
    free = load.capacity.possible
    for end in range(1, len(periods) + 1):
        streams, late, seconds = periods[end - 1]
        limit = load.period(streams, late, seconds=seconds)
        naive, too_late = free, [late > 2 for _, late, _ in periods[:end]]
        for at, (open_streams, _, lasted_s) in enumerate(periods[:end]):
            if too_late[at] and at and too_late[at - 1]:
                naive = max(free / 12, min(naive, 0.95 * open_streams))
            elif not too_late[at]:
                naive = min(free, naive + free * lasted_s / (25 if open_streams <= 0.9 * naive else 100))
        assert limit == pytest.approx(naive, abs=1.001)
        assert 1 <= limit <= load.free


def slowed(*parts: PeriodSteps) -> float:
    """The slowdown after many periods with the sums of these processes."""
    load = Load()
    for _ in range(40):
        steps = PeriodSteps()
        for part in parts:
            steps.add(part)
        load.now += PERIOD_S
        load.capacity.end_period(load.now, steps, 10)
    return load.capacity.slowdown


def test_the_slowdown_is_the_time_of_batches_relative_to_the_warm_up() -> None:
    half = PeriodSteps(batches=40, rows=5_120, step_s=40 * 2 * FAST[128])
    assert slowed() == slowed(PeriodSteps(live=9)) == 1.0
    assert slowed(half) == pytest.approx(slowed(half, half), rel=0.02) == pytest.approx(2.0, rel=0.03)
    same = PeriodSteps(batches=40, rows=5_120, step_s=40 * FAST[128])
    assert slowed(half, same) == pytest.approx(1.5, rel=0.02)


class Machine(Load):
    """Streams that enter as `Slots` admits them, and whose batches take `times` as long as in the warm-up."""

    open = 0

    def run(self, times: float, *, enter: int = 0, leave: int = 0, stalled_s: float = 0.0) -> int:
        """Let a period pass. `stalled_s`: time that batches wait besides. Returns: the limit after it."""
        room = self.capacity.streams() - self.open
        self.open += max(0, min(enter, room, max(32, room // 4))) - min(leave, self.open)
        rows = self.open * PERIOD_S / STEP_S
        batches = min(40, math.ceil(rows))
        step_s = batches * times * self.capacity._batch_s.estimate(rows / batches) + stalled_s if batches else 0.0
        self.now += PERIOD_S
        steps = PeriodSteps(live=round(rows), batches=batches, rows=round(rows), step_s=step_s)
        self.capacity.end_period(self.now, steps, self.open)
        return self.capacity.streams()


@pytest.mark.parametrize("times", [1.0, 1.5, 2.0, 3.0])
def test_a_crowd_fills_what_slower_batches_leave_and_hardly_more(times: float) -> None:
    machine = Machine()
    carried = machine.free / times
    for _ in range(60):
        machine.run(times, enter=500, leave=machine.open // 30)
        assert machine.open < carried / HEADROOM, "never more than the machine can carry"
    assert machine.open == pytest.approx(carried, rel=0.15)
    for _ in range(60):
        machine.run(1.0, enter=500, leave=machine.open // 30)
    assert machine.open == pytest.approx(machine.free, rel=0.07), "once batches are as fast as in the warm-up"


def test_slow_batches_of_a_few_streams_hardly_lower_the_limit_and_a_crowd_enters_after_a_storm() -> None:
    """Streams that come and go: the interpreter is busy with handshakes, and a batch of a row waits 20 ms for it."""
    machine = Machine()
    for _ in range(20):
        limit = machine.run(2.0, enter=3, leave=3, stalled_s=0.02)
        assert limit >= 0.9 * machine.free
    assert machine.capacity.slowdown > 5
    for _ in range(2):
        limit = machine.run(1.0, leave=3)
    assert limit == machine.free, "a second after the last stream"
    for _ in range(20):
        machine.run(2.0, enter=3, leave=3, stalled_s=0.02)
    for _ in range(6):
        machine.run(1.0, enter=250)
    assert machine.open >= 250, "within three seconds"


def test_a_slowdown_is_forgotten_while_nothing_runs_and_leaves_a_twelfth_of_the_streams() -> None:
    load = Load()
    for _ in range(40):
        load.now += PERIOD_S
        load.capacity.end_period(load.now, PeriodSteps(live=100, batches=10, rows=100, step_s=90.0), 300)
    assert load.capacity.streams() == int(FLOOR * load.capacity.possible)
    load.now += 30.0
    load.capacity.end_period(load.now, PeriodSteps(), 0)
    assert load.capacity.streams() == load.free
    assert load.capacity.slowdown == pytest.approx(1.0, abs=0.01)
