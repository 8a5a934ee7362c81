"""Used tickets: known until they have expired."""

from __future__ import annotations

from server.coordination.used_tickets import AHEAD_S, UsedTickets
from tests.support.servers.fakes import FakeClock

TTL_S = 300.0


def test_a_used_ticket_is_known_until_no_clock_accepts_it() -> None:
    clock = FakeClock()
    used = UsedTickets(TTL_S, clock)
    used.add(b"one", clock() + AHEAD_S)  # of a replica whose clock is ahead
    clock.advance(TTL_S + AHEAD_S)
    used.add(b"two", clock())
    assert b"one" in used
    assert b"other" not in used


def test_used_tickets_are_forgotten_after_their_expiry() -> None:
    clock = FakeClock()
    used = UsedTickets(TTL_S, clock)
    for number in range(10):
        used.add(bytes([number]), clock())
        clock.advance(TTL_S / 2)
    assert len(used) <= 4
