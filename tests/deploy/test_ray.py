"""Scaling rules of the Ray fleet, its replicas, and the commands that HAProxy gets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deploy.ray.backends import Backend, NoPlace, Places, State
from deploy.ray.fleet import Fleet, Rule, Scaling, Timeouts
from deploy.ray.replica import Figures, Replica, address, read
from tests.support.needs import need_ipv6


def figures(active: int = 0, limit: int = 100, *, ready: bool = True, ended: bool = False) -> Figures:
    return Figures("127.0.0.1:80", ended, ready, active, limit)


@pytest.mark.parametrize(
    ("loads", "present", "wanted"),
    [
        ([], 0, 1),
        ([], 2, 2),
        ([figures(0, 100)], 1, 1),
        ([figures(70, 100)], 1, 1),
        ([figures(71, 100)], 1, 2),
        ([figures(71, 100)], 2, 2),
        ([figures(100, 100), figures(100, 100)], 2, 3),
        ([figures(400, 100)], 1, 4),
        ([figures(4_000, 100)], 1, 4),
        ([figures(3, 0)], 1, 1),
    ],
)
def test_the_fleet_scales_up_at_once(loads: list[Figures], present: int, wanted: int) -> None:
    assert Scaling(Rule(1, 4, 0.7)).wanted(loads, present, 0.0) == wanted


def test_the_fleet_scales_down_late_and_one_by_one() -> None:
    scaling = Scaling(Rule(1, 4, 0.7, down_after_s=60))
    idle = [figures(0, 100)] * 3
    assert [scaling.wanted(idle, 3, now) for now in (0, 30, 59.9)] == [3, 3, 3]
    assert scaling.wanted(idle, 3, 60) == 2
    assert [scaling.wanted(idle[:2], 2, now) for now in (61, 119)] == [2, 2]
    assert scaling.wanted(idle[:2], 2, 120) == 1
    busy = [figures(140, 100)]
    scaling = Scaling(Rule(1, 4, 0.7, down_after_s=60))
    assert scaling.wanted(idle, 3, 0) == 3
    assert scaling.wanted([figures(70, 100)] * 3, 3, 30) == 3, "a short load restarts the wait"
    assert scaling.wanted(idle, 3, 61) == 3, "the wait is not over"
    assert scaling.wanted(busy, 1, 62) == 2


@pytest.mark.parametrize("rule", [(0, 4, 0.7), (3, 2, 0.7), (1, 4, 0.0), (1, 4, 1.1)])
def test_an_invalid_scaling_rule_is_rejected(rule: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match=r"replica|share"):
        Rule(*rule)


def test_a_replica_starts_becomes_ready_drains_and_is_removed() -> None:
    fleet = Fleet(Rule(1, 3, 0.5, down_after_s=10), Timeouts(start_s=60, silent_s=5))
    assert fleet.orders(0).start == 1
    fleet.started("a", 0)
    assert fleet.orders(1).start == 0
    assert fleet.backends == {}, "not ready yet"
    fleet.answered("a", figures(80), 2)
    assert fleet.orders(2).start == 1
    fleet.started("b", 2)
    fleet.answered("b", figures(10), 3)
    assert {backend.state for backend in fleet.backends.values()} == {State.READY}
    fleet.answered("a", figures(30), 4)
    assert fleet.orders(4).drain == ()
    fleet.answered("a", figures(30), 14)
    fleet.answered("b", figures(10), 14)
    assert fleet.orders(14).drain == ("b",)
    assert fleet.backends["b"].state is State.DRAIN
    fleet.answered("b", figures(ended=True), 15)
    assert set(fleet.backends) == {"a"}
    assert fleet.drain_all() == ("a",)


def test_a_silent_or_never_ready_replica_is_lost_and_replaced() -> None:
    fleet = Fleet(Rule(1, 3), Timeouts(start_s=60, silent_s=5))
    fleet.started("a", 0)
    assert fleet.orders(59).end == ()
    lost = fleet.orders(61)
    assert (lost.end, lost.start) == (("a",), 1)
    fleet.started("b", 61)
    fleet.answered("b", figures(), 62)
    fleet.answered("b", figures(limit=0, ready=False), 66)
    assert fleet.orders(67).end == ()
    assert fleet.orders(67.1).end == ("b",)
    assert fleet.backends == {}


def test_haproxy_gets_each_change_once() -> None:
    places = Places(2)
    ready, draining = Backend("10.0.0.1:81", State.READY), Backend("10.0.0.1:81", State.DRAIN)
    assert places.change({"a": ready}) == [
        "set server replicas/replica1 addr 10.0.0.1 port 81",
        "set server replicas/replica1 state ready",
    ]
    assert places.change({"a": ready}) == []
    assert places.change({"a": draining})[-1] == "set server replicas/replica1 state drain"
    both = places.change({"a": draining, "b": Backend("10.0.0.2:82", State.READY)})
    assert both[0] == "set server replicas/replica2 addr 10.0.0.2 port 82"
    with pytest.raises(NoPlace):
        places.change({"a": draining, "b": ready, "c": ready})
    assert places.change({}) == [
        "set server replicas/replica1 state maint",
        "shutdown sessions server replicas/replica1",
        "set server replicas/replica2 state maint",
        "shutdown sessions server replicas/replica2",
    ]
    assert places.everything() == [
        "set server replicas/replica1 state maint",
        "set server replicas/replica2 state maint",
    ]


def test_ipv6_addresses_have_brackets_except_for_haproxy() -> None:
    assert (address("10.0.0.1", 80), address("fd00::1", 80)) == ("10.0.0.1:80", "[fd00::1]:80")
    places = Places(1)
    assert places.change({"a": Backend("[fd00::1]:80", State.READY)})[0].endswith("addr fd00::1 port 80")


@pytest.mark.parametrize(
    ("host", "node", "reported"),
    [
        ("127.0.0.1", "10.0.0.1", "127.0.0.1"),
        ("[::1]", "10.0.0.1", "[::1]"),
        ("0.0.0.0", "10.0.0.1", "10.0.0.1"),
        ("::", "fd00::1", "[fd00::1]"),
    ],
)
def test_a_replica_reports_a_reachable_address(
    monkeypatch: pytest.MonkeyPatch, host: str, node: str, reported: str
) -> None:
    if ":" in host:
        need_ipv6()
    started: list[list[str]] = []
    ended = SimpleNamespace(poll=lambda: 0)
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: (started.append(command), ended)[1])
    found = Replica(host, (), {}, node).figures().address
    assert found.rpartition(":")[0] == reported
    (command,) = started
    assert command[command.index("--port") + 1] == found.rpartition(":")[2]


def test_gauges_are_summed_over_protocols() -> None:
    text = "# HELP x y\ntutti_ready 1.0\n"
    text += 'tutti_sessions_active{protocol="a"} 2.0\ntutti_sessions_active{protocol="b"} 3.0\n'
    assert read(text) == {"tutti_ready": 1.0, "tutti_sessions_active": 5.0}
