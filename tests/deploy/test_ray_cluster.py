"""A real HAProxy, a Ray cluster of two nodes and real servers: a fleet grows, loses a node and shrinks."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from tests.support.needs import missing


@pytest.mark.timeout(420)
def test_a_fleet_that_grows_loses_a_node_and_shrinks_loses_no_word() -> None:
    if importlib.util.find_spec("ray") is None:
        missing("ray not installed")
    outcomes, texts = importlib.import_module("tests.support.deployment.ray_fleet").lose_a_node(4, 25.0)
    for one in outcomes:
        assert one.finished, one.problem
        assert (one.text, one.lost_s) == (texts[one.audio.name], 0.0)
    assert any(one.lost_at for one in outcomes), "no stream was interrupted: the lost node had none"
