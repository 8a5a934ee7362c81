"""Turns through a server: silences at which its `EndOfTurn` came, and the whole ruler against a server."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from loadtest.errors import BadManifest
from loadtest.rulers.settings import Ruler, RulerSettings
from loadtest.rulers.silences import Turn
from loadtest.rulers.turns import TurnTake, measure, observed, read_turns
from model.recordings import Utterance
from tests.support.servers.live_server import LiveServer


def turn(name: str = "a") -> Turn:
    utterance = Utterance(Path(name), "one two three", "source", "speaker", 4.0)
    return Turn(utterance, "A", np.zeros(64_000, np.int16), ((1.0, 0.5), (2.0, 0.15), (3.0, None)))


def ended(*arrivals_s: float) -> TurnTake:
    take = TurnTake(turn())
    take.started(100.0)
    for arrival_s in arrivals_s:
        take.message(b'{"type":"TurnInfo","event":"EndOfTurn","words":[]}', 100.0 + arrival_s)
    take.message(b'{"type":"TurnInfo","event":"Update","words":[]}', 104.0)
    assert not take.over
    take.message(b'{"type":"ConfigureSuccess"}', 105.0)
    assert take.over
    return take


@pytest.mark.parametrize(
    ("arrivals_s", "fired_s"),
    [
        ((1.3, 3.4), (0.3, 0.4)),
        ((3.9,), (math.inf, 0.9)),
        ((1.8,), (0.5, math.inf)),  # after the hold: it cut the speaker all the same
        ((2.1, 3.2, 3.6), (math.inf, 0.2)),  # within a silence that is no hold; twice within the end
        ((0.5,), (math.inf, math.inf)),
    ],
)
def test_an_end_of_turn_belongs_to_the_silence_before_it(
    arrivals_s: tuple[float, ...], fired_s: tuple[float, ...]
) -> None:
    take = ended(*arrivals_s)
    spans = list(take.turn.spans())
    assert [span.length_s for span in spans] == [0.5, None]
    np.testing.assert_allclose(take.fired(spans), fired_s, atol=1e-3)
    if fired_s[0] == 0.5:
        assert take.fired(spans)[0] < 0.5


def test_only_recordings_of_every_threshold_are_compared() -> None:
    taken = {0.5: {"a": ended(1.3), "b": ended(3.3)}, 0.9: {"b": ended(3.8)}}
    spans, firings = observed(taken)
    assert len(spans) == 2
    np.testing.assert_allclose(firings[0.5], [math.inf, 0.3], atol=1e-6)
    np.testing.assert_allclose(firings[0.9], [math.inf, 0.8], atol=1e-6)


def test_the_ruler_plays_each_recording_at_each_threshold(live_server: type[LiveServer]) -> None:
    server = live_server()
    settings = RulerSettings(f"ws://{server.host}", Ruler.TURNS, streams=(4,), recordings=4)
    document = measure(settings, lambda _: None, thresholds=(0.7,))
    (level,) = document.levels
    assert (level.failed, level.problems) == (0, {})
    assert level.score.all.ends == 4
    assert document.thresholds == (0.7,)


def test_recordings_of_one_part_are_refused(tmp_path: Path) -> None:
    manifest = tmp_path / "one.jsonl"
    sample = Path("model/samples/yes.flac").resolve()
    manifest.write_text(json.dumps({"audio": str(sample), "text": "yes"}))
    with pytest.raises(BadManifest, match="two are needed"):
        read_turns(RulerSettings("ws://x", Ruler.TURNS, manifest=manifest))
