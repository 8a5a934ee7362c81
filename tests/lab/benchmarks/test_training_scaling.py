"""The measurement of scaling: shares of peak at one and two processes, free and pinned."""

import dataclasses

from tests.support.training.tones import TINY, recipe, write_tones
from tutti_asr_lab.benchmarks import training_scaling
from tutti_asr_lab.benchmarks.training_scaling import Job, Measured, measure


def job(folder):
    chosen = recipe(micro_batch_s=6.0, micro_batches=2)
    return Job(TINY, chosen, (folder / "tones.jsonl",), (), folder / "cache", 3, folder)


def test_two_pinned_processes_report_updates_shares_of_peak(tmp_path):
    found = measure(dataclasses.replace(job(write_tones(tmp_path)), pin=True), 2)
    assert len(found.rows) == 3
    assert all(0 < share < 1 for _, _, share, *_ in found.rows)


def test_all_kinds_of_runs_take_turns(tmp_path, monkeypatch):
    asked = []

    def fake(given, processes):
        asked.append((processes, given.recipe.micro_batches, given.pin))
        rows = [[2.0, 100.0 * given.recipe.micro_batches, 0.4, 0.0, 1.5, 0.1, 0.1, 0.3] for _ in range(4)]
        return Measured("fp32", rows)

    monkeypatch.setattr(training_scaling, "measure", fake)
    found = training_scaling.run(job(tmp_path), 2, 2, "command", lambda _: None)
    assert asked == 2 * [(1, 1, False), (1, 2, False), (2, 2, False), (2, 2, True)]
    assert [case.share_of_peak for case in found.cases] == [0.4] * 4
    assert (found.weak, found.weak_pinned) == (2.0, 2.0)
    assert "| 2 pinned | 2 | 100 | 40.0% |" in training_scaling.markdown(found)
