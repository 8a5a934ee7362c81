"""`Retry-After` of refusals: short while few are refused, spread under overload, and capped."""

import random

import pytest

from server.coordination.retry_after import LONGEST_S, RETRIES_PER_S, RetryAfter


def test_few_refusals_get_the_shortest_wait():
    retry = RetryAfter(random.Random(1))
    assert [retry.seconds(1, 100 + i * 0.1) for i in range(50)] == [1] * 50


def test_many_refusals_are_spread_at_a_constant_rate():
    retry = RetryAfter(random.Random(1))
    waits = [retry.seconds(1, 100.0) for _ in range(1_000)]
    assert waits == sorted(waits)
    assert [waits.count(second) for second in range(2, 20)] == [pytest.approx(RETRIES_PER_S, abs=1)] * 18


def test_retry_after_is_capped_and_jittered_under_lasting_overload():
    retry = RetryAfter(random.Random(1))
    waits = [retry.seconds(1, 100.0) for _ in range(5_000)]
    assert max(waits) <= LONGEST_S
    assert len(set(waits[-100:])) > 5
    assert min(waits[-100:]) >= LONGEST_S / 2


def test_the_wait_is_short_again_after_the_overload():
    retry = RetryAfter(random.Random(1))
    for _ in range(1_000):
        retry.seconds(1, 100.0)
    assert retry.seconds(1, 120.0) == 1


def test_clients_that_obey_retry_after_return_at_a_bounded_rate():
    """A thousand clients over five minutes, none of them admitted."""
    rng = random.Random(1)
    retry = RetryAfter(rng)
    due = [rng.random() for _ in range(1_000)]
    late = 0
    for _ in range(60_000):
        client = min(range(1_000), key=due.__getitem__)
        now = due[client]
        if now > 300:
            break
        late += now > 60
        due[client] = now + retry.seconds(1, now)
    assert late / 240 < 1.2 * RETRIES_PER_S
