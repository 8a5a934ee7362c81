"""Streams with receipts at the same time, each replayed alone in a process of its own: nothing differs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loadtest.generator.recordings import load
from loadtest.reports.criteria import unmet
from tests.support.servers.receipted import shipped_server, with_keys
from tutti_asr_lab.trials.scenarios.receipts import Audited, Plan, Streams, audit, report_of
from tutti_asr_lab.trials.trial import markdown


def test_streams_under_load_are_the_same_alone_as_on_a_processor_with_avx2(tmp_path: Path) -> None:
    key_file, keys = with_keys(tmp_path)
    public, folder = tmp_path / "public.json", tmp_path / "streams"
    public.write_text(keys.as_text(private=False))
    folder.mkdir()
    plan = Plan(streams=12, seconds=4.0, rounds=0)
    recordings = load(None, level_s=plan.seconds, at_most=plan.streams, seed=plan.seed)
    with shipped_server(key_file, policy="deadline") as server:  # batches of several rows on any machine
        finals = asyncio.run(Streams(f"ws://{server.host}", recordings, plan).run(folder))
        batches = server.metric("tutti_batches_total"), server.metric("tutti_batch_rows_total")
    assert finals > plan.streams
    assert batches[1] > 2.0 * batches[0], "streams were in batches together"
    found = audit(folder, public, "AVX2")
    assert (found.exit_code, found.output) == (0, "12 streams replayed, 0 differ; signatures are valid")

    for path in folder.iterdir():
        if path.stem not in ("0002", "0003"):
            path.unlink()
    messages = folder / "0003.jsonl"
    messages.write_text(messages.read_text().replace('"word":"', '"word":"x', 1))
    found = audit(folder, public, "this one")
    assert found.exit_code == 1
    assert found.output.startswith("0003.jsonl: words: the message of receipt ")
    assert unmet(report_of(plan, 0, [found], []).bars)


def test_the_cost_is_the_median_of_the_rounds() -> None:
    audits = (Audited("this one", 1.0, 0, "2 of 2 streams replayed: no difference"),)
    report = report_of(Plan(streams=2), 7, audits, [(1.0, 1.01), (2.0, 2.5), (1.0, 1.015)])
    assert [bar.found for bar in report.bars] == [0, 0.015]
    assert not unmet(report.bars)
    assert unmet(report_of(Plan(), 7, audits, [(1.0, 1.03)]).bars)
    assert "this one: 2 of 2 streams replayed: no difference (1 s)" in markdown(report, "")
