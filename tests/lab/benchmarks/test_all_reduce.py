"""The measurement of all-reduce: every sum is checked, and the page has a row for each size."""

import torch

from loadtest.reports.criteria import unmet
from tutti_asr_lab.benchmarks import all_reduce


def test_two_processes_are_measured_and_their_sums_have_the_bits_of_the_tree():
    found = all_reduce.run([2], [1 << 10, 1 << 14], 2, "command", lambda _: None)
    assert [case.size_bytes for case in found.cases] == [1 << 10, 1 << 14]
    assert all(case.ms[name] > 0 for case in found.cases for name in all_reduce.ALGORITHMS)
    assert not unmet(found.bars)
    page = all_reduce.markdown(found)
    assert "| 2 | 16 KiB |" in page
    assert "2 processes: " in page


def test_the_order_of_the_measured_sums_matters():
    buffers = list(all_reduce.buffers_of(1 << 12, 4))
    assert not torch.equal((buffers[0] + buffers[1]) + (buffers[2] + buffers[3]), sum(buffers[1:], buffers[0]))


def test_a_sum_with_other_bits_misses_the_criterion(monkeypatch):
    wrong = all_reduce.Case(4, 1 << 10, dict.fromkeys(all_reduce.ALGORITHMS, 1.0), 1)
    monkeypatch.setattr(all_reduce, "measure", lambda *_: [wrong])
    assert unmet(all_reduce.run([4], [1 << 10], 1, "command", lambda _: None).bars)
