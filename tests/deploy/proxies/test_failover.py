"""Failover: a small run with real servers and proxy, and the computation of its criteria."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadtest.errors import BadSettings
from loadtest.reports.criteria import unmet
from tests.support.deployment.edge import need
from tutti_asr_client.connection_events import AudioLost, Connected
from tutti_asr_client.continuity import Beginning
from tutti_asr_client.messages import Alternative, Channel, Results
from tutti_asr_lab.trials.figures import figures, resume_times, since
from tutti_asr_lab.trials.scenarios.failover import Fault, Plan, failover, judge
from tutti_asr_lab.trials.streams import Audio, Outcome, audios
from tutti_asr_lab.trials.trial import TrialReport

SMALL = Plan(fault=Fault.KILL, replicas=2, streams=6, stream_s=8.0, fault_after_s=4.0)


@pytest.fixture(scope="module")
def killed() -> TrialReport:
    """Run six streams through HAProxy, of whose two replicas one is killed."""
    need("haproxy")
    return asyncio.run(failover(SMALL))


def test_streams_of_a_killed_replica_resume_with_the_same_text(killed: TrialReport) -> None:
    assert not unmet(killed.bars), killed.lines
    found = killed.figures["Resumable"]
    assert (found.streams, found.finished, found.equal, found.lost_s) == (6, 6, 6, 0.0)
    assert found.interrupted == found.reconnections == found.by_ticket
    assert 2 <= found.interrupted <= 4, "half of the streams, by least connections"
    assert set(found.closes) == {1006}
    assert killed.figures["resume_ms"].count == killed.figures["since_fault_ms"].count == found.interrupted


def outcome(text: str = "a b", *, finished: bool = True, told_s: float = 2.0) -> Outcome:
    made = Outcome(Audio("x", np.zeros(32_000, np.int16)), text=text, finished=finished)
    made.take(final(0.0, told_s))
    return made


def final(start: float, duration: float) -> Results:
    return Results(Channel((Alternative("a b"),)), start, duration, is_final=True)


def judged(*outcomes: Outcome) -> list[str]:
    [*_, interrupted] = outcomes
    interrupted.lost_at.append(1.0)
    return [bar.what for bar in judge(figures(outcomes, {"x": "a b"}), None) if not bar.met]


def test_each_criterion_can_fail() -> None:
    assert judged(outcome()) == []
    assert judged(outcome("a")) == ["transcripts that differ from a run without faults"]
    assert judged(outcome(finished=False)) == ["resumable streams that did not finish"]
    assert judged(outcome(told_s=1.9)) == ["audio lost"]
    assert [bar.what for bar in judge(figures([outcome()], {"x": "a b"}), None) if not bar.met] == [
        "faults without an interrupted stream"
    ]
    plain = outcome(finished=False)
    plain.closes.append(1012)
    assert len([bar for bar in judge(figures([], {}), figures([plain], {"x": "a b"})) if not bar.met]) == 3


def test_a_gap_between_finals_counts_as_lost_and_an_overlap_does_not() -> None:
    with_gap, overlapping = outcome(told_s=0.5), outcome(told_s=1.5)
    with_gap.take(final(0.7, 1.3))
    overlapping.take(final(1.2, 0.8))
    assert with_gap.lost_s == pytest.approx(0.2)
    assert overlapping.lost_s == 0.0
    forgotten = outcome()
    forgotten.events.add(AudioLost(0.4))
    assert forgotten.lost_s == 0.4


def test_times_are_measured_from_the_loss_and_from_the_fault() -> None:
    lost = outcome()
    for took_s in (0.0, 0.25):
        lost.events.add(Connected("url", None, Beginning.TICKET, 0.0, took_s))
    lost.connected_at += [1.0, 13.5]
    lost.lost_at.append(13.25)
    untouched = outcome()
    untouched.connected_at.append(12.5)
    resume, fault = resume_times([lost, untouched]).spread(), since([lost, untouched], 12.0).spread()
    assert resume is not None
    assert fault is not None
    assert (resume.count, resume.max, fault.count, fault.max) == (1, 250.0, 1, 1500.0)


def test_audios_have_the_given_length_and_differ() -> None:
    made = audios(3, 4.0, seed=1)
    assert [audio.duration_s for audio in made] == [4.0] * 3
    assert len({audio.pcm.tobytes() for audio in made}) == 3
    assert all((a.pcm == b.pcm).all() for a, b in zip(made, audios(3, 4.0, seed=1), strict=True))


@pytest.mark.parametrize(
    "wrong", [{"proxy": "varnish"}, {"fault_after_s": 0.5}, {"fault_after_s": 9.0}, {"previous": Path()}]
)
def test_an_invalid_plan_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(BadSettings):
        replace(SMALL, **wrong)  # type: ignore[arg-type]
