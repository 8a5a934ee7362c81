"""What the batcher refuses; `test_batcher_stateful.py` checks its guarantees under random operations."""

from __future__ import annotations

import math

import pytest

from batching.batcher import Batcher, Policy
from batching.errors import AlreadyOpen, UnknownStream


@pytest.mark.parametrize("budget_s", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_that_is_not_positive_and_finite_is_refused(budget_s: float) -> None:
    with pytest.raises(ValueError, match="budget_s"):
        Batcher(Policy.EAGER, max_batch=1, max_queued=1).open(1, budget_s=budget_s)


@pytest.mark.parametrize("bound", ["max_batch", "max_queued", "background_rows"])
def test_every_bound_is_at_least_one(bound: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Batcher(Policy.EAGER, **{"max_batch": 1, "max_queued": 1, "background_rows": 1, bound: 0})


def test_unknown_streams_and_a_second_open_are_refused() -> None:
    batcher = Batcher(Policy.EAGER, max_batch=1, max_queued=1)
    for call in (lambda: batcher.push(7, None, 0.0), lambda: batcher.close(7), lambda: batcher.waiting(7)):
        with pytest.raises(UnknownStream):
            call()
    batcher.open(1, budget_s=0.1)
    with pytest.raises(AlreadyOpen):
        batcher.open(1, budget_s=0.1)
