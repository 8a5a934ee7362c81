"""A real HAProxy, a Ray cluster of two nodes and real servers: a fleet grows, loses a node and shrinks."""

from __future__ import annotations

import importlib
import importlib.util
import shutil

import pytest

from tests.support.needs import missing


@pytest.mark.timeout(420)
def test_a_fleet_that_grows_loses_a_node_and_shrinks_loses_no_word() -> None:
    if shutil.which("haproxy", path="/usr/sbin:/usr/bin") is None:
        missing("haproxy not installed")
    if importlib.util.find_spec("ray") is None:
        missing("ray not installed")
    trial = importlib.import_module("tutti_asr_lab.benchmarks.ray.trial")
    found = trial.run(trial.Trial(streams=4, stream_s=25, compared=0), "c", lambda _: None)
    assert found.problems == ()
    assert [bar.what for bar in found.bars if not bar.met] == []
