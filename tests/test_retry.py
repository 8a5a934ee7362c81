"""When refused clients should come back."""

import random

from server.retry import LONGEST_S, WANTED_PER_S, RetryAfter


def test_a_few_refusals_name_the_shortest_wait():
    retry = RetryAfter(random.Random(1))
    assert [retry.seconds(1, 100 + i * 0.1) for i in range(50)] == [1] * 50


def test_a_crowd_is_sent_away_for_longer_and_not_all_for_the_same_time():
    retry = RetryAfter(random.Random(1))
    waits = [retry.seconds(1, 100 + i / 1_000) for i in range(1_000)]
    assert waits[: int(WANTED_PER_S)] == [1] * int(WANTED_PER_S)
    assert min(waits[-100:]) >= 0.9 * 1_000 / WANTED_PER_S
    assert len(set(waits[-100:])) > 5
    assert max(retry.seconds(5, 101) for _ in range(500)) <= 2 * LONGEST_S


def test_the_crowd_is_forgotten_when_it_is_gone():
    retry = RetryAfter(random.Random(1))
    for _ in range(1_000):
        retry.seconds(1, 100.0)
    assert retry.seconds(1, 101.0) == 1


def test_clients_that_come_back_when_told_settle_at_a_bearable_rate():
    """A thousand clients, none ever admitted, over five minutes."""
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
    assert late / 240 < 4 * WANTED_PER_S
