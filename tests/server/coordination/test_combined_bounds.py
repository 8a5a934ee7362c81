"""Bounds of several processes before one engine: the engine's is one, those of the event loops add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.capacity import PERIOD_S, PRESSED_PERIODS, Bounds, Capacity
from server.coordination.combined_bounds import CombinedBounds

T0 = 8_675_309.25
numbers = st.floats(0, 10_000)


def combined(*bounds: Bounds, slowdown: float = 1.0) -> CombinedBounds:
    there = CombinedBounds()
    for process, one in enumerate(bounds):
        there.report(process, one, slowdown)
    return there


def capacity(processes: int, *, loop_s: float = 0.0001) -> Capacity:
    loop = {1: loop_s, 64: 64 * loop_s}
    made = Capacity(step_s=0.08, objective_s=0.1, max_batch=64, loop=loop, outside={1: 1e-6, 64: 64e-6})
    made.processes = processes
    made.warmed_up({1: 0.0005, 64: 0.004})
    return made


def test_nothing_is_known_before_the_first_report_and_after_the_last_process_has_ended() -> None:
    there = CombinedBounds()
    assert (there.streams(), there.reserved(), there.slowdown, there.sharing(0)) == (0, 0, 1.0, 0)
    there.report(7, Bounds(400, 300, None), 1.5)
    assert (there.streams(), there.slowdown, there.sharing(0)) == (300, 1.5, 1)
    there.forget(7)
    there.forget(8)
    assert (there.streams(), there.sharing(0)) == (0, 0)


@given(st.lists(st.builds(Bounds, numbers, numbers, st.none() | numbers), min_size=1, max_size=5))
def test_the_estimate_is_the_lowest_of_the_mean_of_the_model_and_the_sums_of_the_rest(bounds: list[Bounds]) -> None:
    model = sum(one.model for one in bounds) / len(bounds)
    loops = sum(one.loop for one in bounds)
    pressed = sum(one.loop if one.pressure is None else min(one.loop, one.pressure) for one in bounds)
    there = combined(*bounds)
    assert there.streams() == pytest.approx(max(1, min(model, loops, pressed)), abs=1)
    assert there.reserved() == pytest.approx(max(0, min(model, loops) - there.streams()), abs=1)


def test_one_process_estimates_as_its_capacity_does() -> None:
    alone = capacity(1)
    assert combined(alone.bounds()).streams() == alone.streams()


def test_processes_before_one_engine_carry_more_until_the_engine_is_the_bound() -> None:
    found = [combined(*[capacity(n, loop_s=0.0002).bounds() for _ in range(n)]).streams() for n in (1, 2, 3, 8, 16)]
    assert found[1] == pytest.approx(2 * found[0], rel=0.1)
    assert found[2] == pytest.approx(3 * found[0], rel=0.1)
    assert found[4] == pytest.approx(found[3], rel=0.1), "the engine is the bound"


def test_batches_are_compared_with_the_warm_up_by_the_rows_of_all_processes() -> None:
    one, other = capacity(4), capacity(4)
    for period in range(20):
        for each in (one, other):
            each.look(T0 + period * PERIOD_S, 0.0, 10)
        for _ in range(20):
            one.ran(1, 0.004, [], rows_in_all=64)  # as in the warm-up
            other.ran(1, 0.004, [])
    assert one.slowdown == pytest.approx(1.0, rel=0.01)
    assert other.slowdown > 4


def test_pressure_in_every_process_lowers_the_sum_below_the_open_streams() -> None:
    pressed = [capacity(4) for _ in range(4)]
    for each in pressed:
        for period in range(PRESSED_PERIODS + 2):
            each.look(T0 + period * PERIOD_S, 0.0, 50)
            for _ in range(40):
                each.ran(10, 0.0005, [0.2] * 10, rows_in_all=40)
    assert all(each.bounds().pressure is not None for each in pressed)
    there = combined(*[each.bounds() for each in pressed])
    assert there.streams() < 4 * 50
    assert there.reserved() > 0
    calm = combined(*[each.bounds() for each in pressed[1:]], capacity(4).bounds())
    assert calm.streams() > there.streams(), "a process without pressure adds what its event loop carries"


def with_engines(*models: tuple[float, int]) -> CombinedBounds:
    """Processes with event loops that carry anything: the bound that each measures, and its engine."""
    there = CombinedBounds()
    for process, (model, engine) in enumerate(models):
        there.report(process, Bounds(model, 10_000, None), 1.0, engine)
    return there


def test_engines_carry_the_sum_of_what_each_carries() -> None:
    there = with_engines((400, 0), (400, 0), (400, 1), (400, 1))
    assert there.streams() == 800
    assert (there.sharing(0), there.sharing(1)) == (2, 2)


def test_the_engine_that_carries_the_fewest_by_its_share_is_the_bound_of_all() -> None:
    assert with_engines((400, 0), (300, 1)).streams() == 600, "each has half of the streams"
    assert with_engines((400, 0), (400, 0), (400, 1)).streams() == 600, "the first one has two thirds of them"


def test_an_engine_whose_processes_have_ended_is_no_bound() -> None:
    there = with_engines((400, 0), (100, 1))
    there.forget(1)
    assert there.streams() == 400
