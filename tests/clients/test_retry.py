"""The retry policy: which errors are retried, where, after which wait, and when it gives up; no socket, no clock."""

from __future__ import annotations

import random

import pytest

from tutti_asr_client.errors import BadMessage, ClientError, ClosedAbnormally, Refused, Unreachable
from tutti_asr_client.retry import Attempts, Retry, is_permanent

NOW = 8_675_309.25
FULL = Refused(503, None, "full")
LOST = ClosedAbnormally(1006, "connection lost")


def attempts(*urls: str, **settings: float) -> Attempts:
    return Attempts(urls or ("a",), Retry(**settings), random.Random(1))


@pytest.mark.parametrize(
    ("error", "final"),
    [(Refused(status, None, ""), True) for status in (400, 401, 402, 403, 404, 405, 422)]
    + [(Refused(status, None, ""), False) for status in (408, 429, 500, 502, 503, 504)]
    + [(ClosedAbnormally(code, ""), True) for code in (1000, 1002, 1003, 1007, 1008, 1009)]
    + [(ClosedAbnormally(code, ""), False) for code in (1001, 1006, 1011, 1012, 1013)]
    + [(BadMessage("?"), True), (Unreachable("a", "?"), False)],
    ids=str,
)
def test_permanent_errors_are_raised_and_temporary_ones_retried(error: ClientError, final: bool) -> None:
    assert is_permanent(error) == final
    if final:
        with pytest.raises(type(error)):
            attempts().failed(error, NOW)


def test_waits_double_up_to_the_longest_and_are_randomized() -> None:
    tries = attempts(limit_s=1e9, first_wait_s=0.25, longest_wait_s=10.0)
    waits = [tries.failed(FULL, NOW).wait_s for _ in range(12)]
    assert 0 <= waits[0] <= 0.25
    for number, wait in enumerate(waits[1:], 1):
        most = min(10.0, 0.25 * 2**number)
        assert most / 2 <= wait <= most
    others = {round(Attempts(["a"], Retry(), random.Random(seed)).failed(FULL, NOW).wait_s, 6) for seed in range(20)}
    assert len(others) > 15, "clients of one server must not reconnect at the same time"


def test_retry_after_is_a_lower_bound_of_the_wait() -> None:
    following = attempts().failed(Refused(503, 7.0, "full"), NOW)
    assert following.wait_s == 7.0
    assert attempts().failed(Refused(429, 0.0, "yours are enough"), NOW).wait_s <= 0.25


def test_replicas_are_tried_in_order_except_those_with_a_retry_after() -> None:
    tries = attempts("a", "b", "c")
    first = tries.failed(Refused(503, 30.0, "full"), NOW)
    assert (first.url, first.wait_s <= 0.25) == ("b", True)
    assert tries.failed(LOST, NOW).url == "c"
    assert tries.failed(LOST, NOW).url == "b", "a sent a Retry-After"
    assert tries.failed(LOST, NOW + 31).url == "c"
    assert tries.failed(LOST, NOW + 31).url == "a"


def until_given_up(tries: Attempts, error: ClientError, now: float, *, connected: bool = False) -> tuple[int, float]:
    """Fail every half second until an error is raised; return the number of attempts and the time."""
    for count in range(1000):
        now += 0.5
        if connected:
            tries.connected(now)
        try:
            now += tries.failed(error, now).wait_s
        except ClientError:
            return count, now
    pytest.fail("it never gave up")


def test_the_last_error_is_raised_when_the_retry_budget_is_spent() -> None:
    tries = attempts(limit_s=10.0)
    tries.connected(NOW)
    began = NOW
    count, ended = until_given_up(tries, FULL, began)
    assert 3 < count < 20
    assert ended - began <= 11.0
    with pytest.raises(Refused):
        attempts(limit_s=5.0).failed(Refused(503, 6.0, "full"), NOW)


def test_failed_connections_use_up_the_retry_budget_and_a_working_one_resets_it() -> None:
    tries = attempts(limit_s=10.0)
    assert until_given_up(tries, LOST, NOW, connected=True)[0] < 10
    tries = attempts(limit_s=10.0)
    now = NOW
    for _ in range(100):
        tries.connected(now)
        tries.reset_budget()
        now += 1.0
        now += tries.failed(LOST, now).wait_s
    assert tries.failures == 1


def test_a_long_connection_without_finals_resets_the_retry_budget() -> None:
    tries = attempts(limit_s=10.0)
    now = NOW
    for _ in range(200):
        tries.connected(now)
        now += 60.0
        now += tries.failed(LOST, now).wait_s
    assert tries.failures == 1


def test_an_address_that_never_answered_raises_at_once_and_a_lost_server_is_retried() -> None:
    unreachable = Unreachable("a", "refused")
    with pytest.raises(Unreachable):
        attempts().failed(unreachable, NOW)
    assert attempts("a", "b").failed(unreachable, NOW).url == "b"
    assert Attempts(["a"], Retry(await_server=True)).failed(unreachable, NOW).wait_s <= 0.25
    tries = attempts()
    tries.connected(NOW)
    assert tries.failed(unreachable, NOW).wait_s <= 0.25
