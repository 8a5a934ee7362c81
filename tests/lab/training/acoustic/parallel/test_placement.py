"""Placement: machines one after another, cores shared out without overlap, a line that reports it."""

import os

import pytest

from tutti_asr_lab.training.acoustic.parallel import placement
from tutti_asr_lab.training.acoustic.parallel.placement import Location, described, order_by_host, pin, share_of


def test_processes_of_a_machine_are_next_to_each_other_and_the_first_stays_the_first():
    assert order_by_host(["b", "a", "b", "a"]) == [0, 2, 1, 3]
    assert order_by_host(["a", "a", "b", "b"]) == [0, 1, 2, 3]


@pytest.mark.parametrize(("cores", "processes"), [(8, 2), (8, 4), (7, 4), (4, 4), (64, 8)])
def test_every_core_belongs_to_one_process(monkeypatch, cores, processes):
    monkeypatch.setattr(placement, "_physical", lambda cpu: (0, cpu, cpu))
    shares = [share_of(range(cores), index, processes) for index in range(processes)]
    assert sorted(core for share in shares for core in share) == list(range(cores))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_threads_of_one_core_belong_to_one_process(monkeypatch):
    monkeypatch.setattr(placement, "_physical", lambda cpu: (0, cpu % 4, cpu))  # 4 cores with two threads each
    assert [share_of(range(8), index, 4) for index in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_with_fewer_cores_than_processes_all_share_them():
    assert share_of((0, 1), 3, 4) == (0, 1)


def test_a_pinned_process_has_its_share_of_its_machines_cores():
    before = os.sched_getaffinity(0)
    cores = tuple(sorted(before))
    try:
        pinned = pin([Location("a", 0, cores), Location("b", 0, cores), Location("a", 1, cores)], 2)
        assert os.sched_getaffinity(0) == set(pinned)
        assert set(pinned) == set(share_of(cores, 1, 2))
    finally:
        os.sched_setaffinity(0, before)


def test_the_report_names_machines_ranks_and_cores():
    locations = [Location("node0", 0, (0, 1, 4)), Location("node0", 1, (0, 1, 4)), Location("node1", 0, (2,))]
    assert described(locations) == "processes 0-1 on node0 (cores 0-1,4), 2 on node1 (cores 2)"
