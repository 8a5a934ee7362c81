"""The comparison of one process with front ends: medians, bars and page."""

from __future__ import annotations

from loadtest.benchmarks.process_layouts import Layouts, Measured, judge, page
from loadtest.reports.environment import describe


def window(front_ends: int, streams: int, number: int, p50_ms: float, us: float) -> Measured:
    return Measured(front_ends, streams, number, p50_ms, 2 * p50_ms, us, 1.5)


WINDOWS = [
    *(window(0, 10, number, 1.0 + number / 10, 800.0) for number in range(3)),
    *(window(1, 10, number, 1.3 + number / 10, 850.0) for number in range(3)),
    *(window(0, 100, number, 1.0, us) for number, us in enumerate((400.0, 500.0, 410.0))),
    *(window(1, 100, number, 1.0, us) for number, us in enumerate((420.0, 430.0, 900.0))),
]


def test_latency_is_judged_at_few_streams_and_processor_time_at_many() -> None:
    latency, time = judge(WINDOWS)
    assert (latency.found, latency.met) == (0.3, True)
    assert (time.found, time.met) == (round(430 / 410, 3), True)
    (dear,) = judge([window(0, 100, 1, 1.0, 400.0), window(1, 100, 1, 1.0, 440.0)])
    assert not dear.met


def test_only_what_was_measured_is_judged() -> None:
    assert judge([window(2, 10, 1, 1.0, 800.0)]) == []


def test_the_page_has_a_row_for_each_server_and_level() -> None:
    text = page(Layouts("command", tuple(WINDOWS), tuple(judge(WINDOWS)), describe(0)))
    assert "| 10 streams, one process | 1.10 | 2.20 | 800 | 1.5 |" in text
    assert "| 100 streams, 1 front end | 1.00 | 2.00 | 430 | 1.5 |" in text
