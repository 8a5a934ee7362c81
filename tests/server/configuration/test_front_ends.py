"""Front ends and engine threads by cores."""

from __future__ import annotations

import pytest

from server.configuration.front_ends import MOST_FRONT_ENDS, MOST_FRONT_ENDS_ON_GPU, front_ends_of


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 2)])
def test_up_to_three_cores_are_one_process(cores: int, threads: int) -> None:
    assert front_ends_of(cores) == (0, threads)
    assert front_ends_of(cores, gpu=True) == (0, 1)


@pytest.mark.parametrize(("cores", "expected"), [(4, (2, 1)), (8, (4, 3)), (16, (8, 7)), (64, (8, 8))])
def test_cores_are_divided_between_front_ends_and_engine(cores: int, expected: tuple[int, int]) -> None:
    assert front_ends_of(cores) == expected


def test_larger_batches_take_more_threads_and_small_ones_fewer() -> None:
    assert front_ends_of(64, max_batch=256) == (8, 16)
    assert front_ends_of(16, max_batch=32) == (8, 2)
    assert front_ends_of(16, max_batch=4) == (8, 1)


@pytest.mark.parametrize(("cores", "front_ends"), [(4, 1), (16, 13), (64, 14)])
def test_an_engine_on_a_gpu_leaves_all_cores_but_three(cores: int, front_ends: int) -> None:
    assert front_ends_of(cores, gpu=True) == (front_ends, 1)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_core_is_left_and_more_cores_never_get_fewer(*, gpu: bool) -> None:
    before = front_ends_of(4, gpu=gpu)
    for cores in range(4, 200):
        found = front_ends_of(cores, gpu=gpu)
        assert 1 <= found.front_ends <= (MOST_FRONT_ENDS_ON_GPU if gpu else MOST_FRONT_ENDS)
        assert found.front_ends + found.engine_threads < cores
        assert found.front_ends >= before.front_ends
        assert found.engine_threads >= before.engine_threads
        before = found
