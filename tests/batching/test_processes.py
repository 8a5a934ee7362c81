"""Front ends, engines and threads by cores."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.processes import GRU, LARGE, ON_GPU, OWN, PUBLISHED, Processes, StepCosts, choose_processes, steps_per_s


def carried(cores: int, costs: StepCosts = GRU, **options: int) -> float:
    return min(steps_per_s(choose_processes(cores, costs, **options), costs, cores).values())


@pytest.mark.parametrize("costs", [GRU, ON_GPU])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_up_to_three_cores_are_one_process_with_one_thread(cores: int, costs: StepCosts) -> None:
    assert choose_processes(cores, costs) == (0, 1, 1)


@pytest.mark.parametrize(("cores", "expected"), [(4, (2, 1, 1)), (8, (4, 1, 3)), (16, (9, 2, 3)), (64, (30, 5, 6))])
def test_a_gru_network_has_more_front_ends_than_threads(cores: int, expected: tuple[int, int, int]) -> None:
    assert choose_processes(cores, GRU) == expected


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(2, (0, 1, 1)), (3, (0, 1, 2)), (4, (1, 1, 2)), (8, (3, 1, 4)), (16, (5, 2, 5)), (64, (17, 3, 15))],
)
def test_the_default_network_has_more_threads_than_front_ends(cores: int, expected: tuple[int, int, int]) -> None:
    assert choose_processes(cores) == expected


@pytest.mark.parametrize(("cores", "expected"), [(4, (1, 1, 2)), (8, (1, 1, 6)), (16, (2, 1, 13)), (64, (4, 1, 32))])
def test_a_published_model_has_one_engine_with_nearly_all_cores(cores: int, expected: tuple[int, int, int]) -> None:
    assert choose_processes(cores, PUBLISHED) == expected


@pytest.mark.parametrize(("cores", "expected"), [(1, (0, 1, 1)), (2, (0, 1, 2)), (3, (0, 1, 3)), (4, (1, 1, 2))])
def test_a_large_model_uses_the_core_of_the_event_loop_too(cores: int, expected: tuple[int, int, int]) -> None:
    assert choose_processes(cores, LARGE) == expected
    assert choose_processes(cores, LARGE, threads=1).threads == 1


def test_threads_are_no_more_than_the_rows_of_a_batch_allow() -> None:
    assert choose_processes(64, max_batch=1).threads == 1
    assert choose_processes(64, GRU, max_batch=16).threads == 1
    assert choose_processes(64, PUBLISHED, max_batch=16).threads == 4
    assert choose_processes(16, GRU, max_batch=4, engines=1) == (2, 1, 1)


def test_one_engine_takes_what_its_python_allows() -> None:
    """Without further engines, front ends would only hold another language model in memory."""
    one = dataclasses.replace(GRU, most_engines=1)
    assert choose_processes(64, one) == choose_processes(32, one)
    assert carried(64) > 4 * carried(64, one)


@pytest.mark.parametrize(("cores", "front_ends"), [(4, 1), (16, 13), (64, 14)])
def test_an_engine_on_a_gpu_leaves_all_cores_but_three(cores: int, front_ends: int) -> None:
    assert choose_processes(cores, ON_GPU) == (front_ends, 1, 1)


def test_what_is_given_is_kept_and_the_rest_fits() -> None:
    assert choose_processes(8, GRU, front_ends=2) == (2, 1, 5)
    assert choose_processes(8, GRU, front_ends=2, threads=3) == (2, 1, 3)
    assert choose_processes(8, GRU, front_ends=0) == (0, 1, 7)
    assert choose_processes(2, GRU, front_ends=0, threads=4) == (0, 1, 4)
    assert choose_processes(2, GRU, front_ends=3) == (3, 1, 1)
    assert choose_processes(16, GRU, engines=1) == (7, 1, 8)
    assert choose_processes(2, GRU, front_ends=2, engines=2) == (2, 2, 1)


@given(
    cores=st.integers(4, 256),
    costs=st.sampled_from([OWN, GRU, PUBLISHED, LARGE, ON_GPU]),
    max_batch=st.integers(1, 512),
)
def test_the_cores_are_never_exceeded(cores: int, costs: StepCosts, max_batch: int) -> None:
    found = choose_processes(cores, costs, max_batch=max_batch)
    assert min(found) >= 1
    assert found.cores <= cores - costs.cores_besides
    assert found.engines <= found.front_ends


@pytest.mark.parametrize("costs", [OWN, GRU, PUBLISHED, ON_GPU])
def test_more_cores_never_carry_fewer_steps(costs: StepCosts) -> None:
    """Another engine must be worth its memory, so a step up may cost a tenth at most."""
    found = [carried(cores, costs) for cores in range(4, 130)]
    assert all(later >= 0.9 * max(found[:place]) for place, later in enumerate(found) if place)
    assert found[-1] == max(found)


def test_cores_of_processes() -> None:
    assert Processes(0, 1, 2).cores == 3
    assert Processes(9, 2, 3).cores == 15
