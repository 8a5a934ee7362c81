"""Streams with receipts at the same time, each replayed alone in a process of its own: nothing differs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loadtest.generator.recordings import load
from loadtest.reports.criteria import unmet
from tests.support.servers.receipted import shipped_server, with_keys
from tutti_asr_lab.trials.scenarios.receipts import Plan, Streams, audit, report_of


def test_streams_under_load_are_the_same_alone_as_on_a_processor_with_avx2(tmp_path: Path) -> None:
    key_file, keys = with_keys(tmp_path)
    public, folder = tmp_path / "public.json", tmp_path / "streams"
    public.write_text(keys.as_text(private=False))
    folder.mkdir()
    plan = Plan(streams=12, seconds=4.0)
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
    assert unmet(report_of(plan, finals, [found]).bars)
    assert found.output.startswith("0003.jsonl: words: the message of receipt ")
