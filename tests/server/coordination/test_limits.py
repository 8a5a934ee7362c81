"""Limits of callers: openings of a key and address, open calls of a key, used tickets, and the spread of retries."""

from __future__ import annotations

import hashlib
import heapq
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from websockets.exceptions import InvalidStatus

from server.access.guard import address_of
from server.access.keys import Key
from server.coordination.limits import (
    AHEAD_S,
    BURST_S,
    LEAST_PER_S,
    LONGEST_S,
    MAX_BUCKETS,
    RETRIES_PER_S,
    Lease,
    OpeningRate,
    Quotas,
    RetryAfter,
    UsedTickets,
    automatic,
)
from server.errors import TooManyOpenings, TooManyStreams
from tests.support.servers.fakes import FakeClock
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]
T0 = 8_675_309.25


def opened(rate: OpeningRate, owner: str, times: int, now: float) -> int:
    """Try `times` openings at one moment; return how many were admitted."""
    entered = 0
    for _ in range(times):
        try:
            rate.take(owner, now)
        except TooManyOpenings:
            continue
        entered += 1
    return entered


def test_a_burst_is_admitted_and_then_the_rate_applies() -> None:
    rate = OpeningRate(lambda: 10.0)
    assert opened(rate, "a", 1_000, T0) == 10 * BURST_S
    with pytest.raises(TooManyOpenings):
        rate.refuse_if_exceeded("a", T0)
    assert opened(rate, "a", 1_000, T0 + 1.0) == 10
    assert opened(rate, "a", 1_000, T0 + 1_000.0) == 10 * BURST_S
    assert opened(rate, "b", 1, T0) == 1, "another caller is not affected"


def test_ten_openings_a_second_after_a_storm_are_never_refused() -> None:
    rate = OpeningRate(automatic(lambda: 9.0))
    opened(rate, "a", 1_000, T0)
    assert all(opened(rate, "a", 1, T0 + n / 10) for n in range(1, 201))


@pytest.mark.parametrize(("limit", "per_s"), [(1.0, LEAST_PER_S), (447.0, 89.4), (5_000.0, 1_000.0)])
def test_a_balancer_with_one_address_may_fill_the_replica_at_once(limit: float, per_s: float) -> None:
    assert automatic(lambda: limit)() == pytest.approx(per_s)
    assert opened(OpeningRate(automatic(lambda: limit)), "balancer", int(limit), T0) == int(limit)


def test_owners_are_kept_in_bounded_memory_and_not_at_all_without_a_limit() -> None:
    rate, unlimited = OpeningRate(lambda: 1.0), OpeningRate(None)
    for number in range(MAX_BUCKETS + 100):
        rate.take(str(number), T0)
    assert list(rate._buckets) == [str(number) for number in range(100, MAX_BUCKETS + 100)], "the latest are kept"
    assert opened(unlimited, "a", 10_000, T0) == 10_000
    assert len(unlimited._buckets) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_open_calls_are_those_of_unreleased_leases(steps: list[tuple[str, bool]]) -> None:
    quotas, held = Quotas(), list[tuple[str, Lease]]()
    for owner, give_back in steps:
        if give_back and held:
            lease = held.pop(0)[1]
            lease.release()
            with pytest.raises(AssertionError):
                lease.release()
        if sum(name == owner for name, _ in held) == 4:
            with pytest.raises(TooManyStreams):
                quotas.take(owner, 4)
        else:
            held.append((owner, quotas.take(owner, 4)))
        assert quotas._open == Counter(name for name, _ in held)
        assert len(quotas._open) == len({name for name, _ in held}), "keys without a call are dropped"


def test_few_refusals_get_the_shortest_wait_and_many_are_spread_up_to_a_bound() -> None:
    few, many = RetryAfter(random.Random(1)), RetryAfter(random.Random(1))
    assert [few.seconds(1, T0 + i * 0.1) for i in range(50)] == [1] * 50
    waits = [many.seconds(1, T0) for _ in range(5_000)]
    assert waits[:1_000] == sorted(waits[:1_000])
    assert [waits.count(second) for second in range(2, 14)] == [pytest.approx(RETRIES_PER_S, abs=1)] * 12
    assert max(waits) <= LONGEST_S
    assert len(set(waits[-100:])) > 5, "random under lasting overload"
    assert min(waits[-100:]) >= LONGEST_S / 2
    assert many.seconds(1, T0 + LONGEST_S) == 1, "short again after it"


def test_clients_that_obey_retry_after_return_at_a_bounded_rate() -> None:
    """A thousand clients over five minutes, none of them admitted."""
    rng = random.Random(1)
    retry, due = RetryAfter(rng), [rng.random() for _ in range(1_000)]
    heapq.heapify(due)
    late = 0
    while due[0] < 300:
        late += due[0] > 60
        heapq.heapreplace(due, due[0] + retry.seconds(1, due[0]))
    assert late / 240 < 1.2 * RETRIES_PER_S


def test_a_used_ticket_is_known_until_no_clock_accepts_it_and_forgotten_then() -> None:
    clock = FakeClock()
    used = UsedTickets(300.0, clock)
    used.add(b"one", clock() + AHEAD_S)  # of a replica whose clock is ahead
    clock.advance(300.0 + AHEAD_S)
    used.add(b"two", clock())
    assert b"one" in used
    assert b"other" not in used
    for number in range(10):
        clock.advance(150.0)
        used.add(bytes([number]), clock())
    assert len(used) <= 4


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("testclient", "testclient"),
    ],
)
def test_an_ipv6_network_is_one_address(host: str, address: str) -> None:
    assert address_of(HTTPConnection({"type": "http", "headers": [], "client": (host, 1)})) == address


def test_a_storm_of_one_key_is_refused_with_503_and_another_key_is_served(live_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join(hashlib.sha256(key.encode()).hexdigest() for key in ("stormy", "calm")))
    server = live_server(api_keys_file=file, max_openings_per_s=0.4, clock=FakeClock())  # a burst of two, then none
    guard = server.replica.guard
    for _ in range(2):
        guard.coordinator.openings.take(f"key {Key.of('stormy').id}", server.replica.clock())
    with pytest.raises(InvalidStatus) as refused:
        server.listen({"Authorization": "Token stormy"})
    response = refused.value.response
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) >= 1
    assert "openings" in json.loads(response.body)["err_msg"]
    with server.listen({"Authorization": "Token calm"}) as client:
        client.finish()
    assert server.metric('tutti_handshakes_rejected_total{reason="rate"}') == 1
    assert server.metric('tutti_handshakes_rejected_total{reason="capacity"}') == 0


def test_a_storm_of_one_address_is_refused_on_every_protocol_and_for_uploads(live_server: Start) -> None:
    server = live_server(max_openings_per_s=0.01)
    with server.listen() as client:
        client.finish()
    with pytest.raises(InvalidStatus) as refused:
        server.listen()
    assert refused.value.response.status_code == 503
    assert server.http.post("/v1/listen", content=b"RIFF").status_code == 503
    assert server.http.post("/v1/audio/transcriptions", files={"file": b"RIFF"}).status_code == 503
    assert server.metric('tutti_handshakes_rejected_total{reason="rate"}') == 3


def test_clients_behind_a_trusted_proxy_are_distinguished(live_server: Start) -> None:
    server = live_server(max_openings_per_s=0.01)
    for address in ("192.0.2.1", "192.0.2.2"):
        with server.listen({"X-Forwarded-For": address}) as client:
            client.finish()
    with pytest.raises(InvalidStatus):
        server.listen({"X-Forwarded-For": "192.0.2.1"})
