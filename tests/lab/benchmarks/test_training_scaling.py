"""The measurement of scaling: shares of peak at one and two processes, free and pinned, and a prediction."""

import dataclasses

import pytest

from tests.support.training.tones import TINY, recipe, write_tones
from tutti_asr_lab.benchmarks import training_scaling
from tutti_asr_lab.benchmarks.training_scaling import Job, Measured, measure


def job(folder):
    chosen = recipe(micro_batch_s=6.0, micro_batches=2)
    return Job(TINY, chosen, (folder / "tones.jsonl",), (), folder / "cache", 3, folder)


def test_two_pinned_processes_report_updates_shares_of_peak_and_the_time_of_an_exchange(tmp_path):
    found = measure(dataclasses.replace(job(write_tones(tmp_path)), pin=True), 2)
    assert len(found.rows) == 3
    assert all(0 < share < 1 for _, _, share, *_ in found.rows)
    assert found.size_bytes > 4 * TINY.hidden**2
    assert found.latency_s > 0


def test_all_kinds_of_runs_take_turns_and_the_page_has_a_prediction(tmp_path, monkeypatch):
    asked = []

    def fake(given, processes):
        asked.append((processes, given.recipe.micro_batches, given.pin))
        rows = [[2.0, 100.0 * given.recipe.micro_batches, 0.4, 0.0, 1.5, 0.1, 0.1, 0.3] for _ in range(4)]
        return Measured("fp32", rows, 1_000_000, 0.001)

    monkeypatch.setattr(training_scaling, "measure", fake)
    found = training_scaling.run(job(tmp_path), 2, 2, "command", lambda _: None)
    assert asked == 2 * [(1, 1, False), (1, 2, False), (2, 2, False), (2, 2, True)]
    assert [case.share_of_peak for case in found.cases] == [0.4] * 4
    assert (found.weak, found.weak_pinned) == (2.0, 2.0)
    assert found.fitted.bytes_per_s > 0
    page = training_scaling.markdown(found)
    assert "| 2 pinned | 2 | 100 | 40.0% |" in page
    assert "| 128 |" in page


def test_on_a_busy_machine_at_most_half_of_an_exchange_counts_as_latency(tmp_path, monkeypatch):
    rows = [[2.0, 100.0, 0.4, 0.0, 1.5, 0.1, 0.1, 0.3] for _ in range(4)]
    monkeypatch.setattr(training_scaling, "measure", lambda *_: Measured("fp32", rows, 1_000_000, 5.0))
    fitted = training_scaling.run(job(tmp_path), 2, 1, "command", lambda _: None).fitted
    assert fitted.latency_s == pytest.approx(0.1 / 4)
    assert fitted.bytes_per_s == pytest.approx(1_000_000 / 0.05)
