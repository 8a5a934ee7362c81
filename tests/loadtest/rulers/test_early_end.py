"""The ruler of early ends: which of a stream's events count, and from when."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadtest.errors import BadManifest
from loadtest.rulers.early_end import EarlyEnd, EarlyTake
from loadtest.rulers.playing import Played
from loadtest.rulers.recordings import Spoken
from loadtest.rulers.report import RulerLevel, faults
from model.recordings import read_pcm
from tests.support.audio.speech import samples

START_S = 100.0


def take(*events: tuple[float, str]) -> EarlyTake:
    """A recording whose speech ends after 2 s, and its events at times of the clock."""
    one = EarlyTake((b"",) * 200, 2.0, "")
    one.started(START_S)
    for now, event in events:
        one.message(json.dumps({"type": "TurnInfo", "event": event}).encode(), START_S + now)
    return one


def test_events_count_from_the_end_of_speech() -> None:
    one = take((1.0, "EagerEndOfTurn"), (1.2, "TurnResumed"), (2.25, "EagerEndOfTurn"), (2.5, "EndOfTurn"))
    assert (one.early_s, one.resumed_s, one.ended_s) == (pytest.approx(0.25), None, pytest.approx(0.5))


def test_an_end_just_before_it_belongs_to_it_and_the_first_of_each_kind_counts() -> None:
    one = take(
        (1.95, "EagerEndOfTurn"), (2.1, "TurnResumed"), (2.2, "EagerEndOfTurn"), (2.3, "TurnResumed"),
        (2.9, "EndOfTurn"), (3.0, "EagerEndOfTurn"),
    )  # fmt: skip
    assert one.early_s == pytest.approx(-0.05)
    assert one.resumed_s == pytest.approx(0.1)
    assert one.ended_s == pytest.approx(0.9)


def test_a_take_is_over_with_the_answer_that_follows_all_events() -> None:
    one = take((2.2, "EagerEndOfTurn"))
    assert not one.over
    (piece,) = one.marks
    assert piece > len(one.frames)
    assert one.after(piece, 0.0)
    one.message(b'{"type":"ConfigureSuccess"}', 0.0)
    assert one.over


def test_figures_leave_out_what_did_not_come() -> None:
    spoken = [Spoken(each.audio, read_pcm(each.audio), each.text) for each in samples()[:1]]
    ruler, played = EarlyEnd(spoken), Played()
    played.takes += [take((2.2, "EagerEndOfTurn"), (2.6, "EndOfTurn")), take((2.8, "EndOfTurn"))]
    counts = {figure.name: figure.count for figure in ruler.figures(played)}
    assert counts == {"early-end": 1, "taken-back": 0, "end": 2}
    assert not faults(RulerLevel(1, 2, 0, ruler.figures(played), {}, None, 0.0))
    missing = faults(RulerLevel(1, 2, 0, ruler.figures(Played()), {}, None, 0.0))
    assert missing[0] == "early-end: nothing was measured from silero's end of speech to first EagerEndOfTurn"
    assert len(missing) == 2, "an early end need not be taken back"
    assert ruler.recordings == 1
    (one,) = [next(iter(ruler.takes(iter([0]))))]
    assert 0 < one._end_s < len(spoken[0].samples) / 16_000 + 0.1


def test_recordings_without_speech_are_refused() -> None:
    with pytest.raises(BadManifest, match="no speech"):
        EarlyEnd([Spoken(Path("silence.wav"), np.zeros(16_000, np.int16), "")])
