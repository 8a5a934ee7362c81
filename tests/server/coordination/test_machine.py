"""Admission of several models by summed cost: each stream costs 1 / estimate of its own model."""

from __future__ import annotations

from batching.capacity import PERIOD_S, Capacity
from server.coordination.admission import Admission, Machine
from server.errors import ServerFull
from tests.support.streams.fixed_capacity import FixedCapacity

T0 = 8_675_309.25


class Model:
    """One model of a machine, with a given estimate."""

    def __init__(self, machine: Machine, estimate: int, *, slots: int = 1_024, follow: bool = True) -> None:
        self.admission = Admission(slots, FixedCapacity(estimate), follow=follow)
        self.admission.update()
        self.machine, self.used = machine, 0
        machine.join(self.admission, lambda: self.used)

    def arrive(self, times: int) -> int:
        """Let streams arrive, each in a period of its own; return how many are admitted."""
        admitted = 0
        for at in range(times):
            try:
                self.admission.check(self.machine.load(self.admission), 1, T0 + at * PERIOD_S)
            except ServerFull:
                continue
            admitted += 1
            self.used += 1
        return admitted


def test_one_model_alone_is_admitted_up_to_its_estimate() -> None:
    model = Model(Machine(), 100)
    assert model.arrive(150) == 100
    assert model.machine.load(model.admission) == 100


def test_costs_of_two_models_add_up() -> None:
    machine = Machine()
    light, heavy = Model(machine, 100), Model(machine, 10)
    assert light.arrive(50) == 50  # half of the machine
    assert heavy.arrive(20) == 5  # the other half
    assert light.arrive(20) == 0
    assert (machine.load(light.admission), machine.load(heavy.admission)) == (100, 10)
    light.used = 0
    assert heavy.arrive(20) == 5


def test_sums_of_costs_are_not_rounded_against_a_stream_that_fits() -> None:
    machine = Machine()
    one, other = Model(machine, 10), Model(machine, 30)
    other.used = 9  # three tenths
    assert one.arrive(20) == 7


def test_a_fixed_number_of_streams_is_that_of_all_models() -> None:
    machine = Machine()
    one, other = (Model(machine, 3, slots=100, follow=False) for _ in range(2))
    assert (one.arrive(60), other.arrive(60)) == (60, 40)
    one.used -= 1
    assert other.arrive(2) == 1


def test_the_limit_is_that_of_the_present_mix() -> None:
    machine = Machine()
    light, heavy = Model(machine, 100), Model(machine, 10)

    def limit() -> int:
        return machine.limit(lambda admission: admission.limit)

    assert limit() == 100, "none is open: the default model's"
    heavy.used = 3
    assert limit() == 10
    light.used = 30
    assert limit() == 55  # 33 streams cost 0.6 of the machine


def estimate(rows: int, thread_rows: int | None, busy_s: float) -> int:
    """The estimate after periods in which the loop was busy for `busy_s`, with `rows` of `thread_rows` of the model."""
    capacity = Capacity(step_s=0.08, objective_s=0.1, max_batch=64)
    capacity.warmed_up({1: 0.0005, 64: 0.004})
    for period in range(40):
        capacity.look(T0 + period * PERIOD_S, period * busy_s, 5, None if thread_rows is None else period * thread_rows)
        for _ in range(rows // 4):
            capacity.ran(4, 0.0007, [0.001] * 4)
    return capacity.streams()


def test_the_event_loops_time_is_divided_by_the_rows_of_each_model() -> None:
    assert estimate(40, None, 0.01) == estimate(40, 40, 0.01)
    assert estimate(40, 400, 0.1) == estimate(40, 40, 0.01), "nine tenths of the time went to other models"
    assert estimate(40, 40, 0.1) < estimate(40, 400, 0.1)
