"""Real replicas scaled by the simulated rule: a short run with HAProxy, its schedule, and its criteria."""

from __future__ import annotations

import asyncio
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadtest.errors import BadSettings
from loadtest.reports.criteria import unmet
from loadtest.reports.environment import describe
from tests.support.deployment.edge import need
from tutti_asr_lab.simulation.autoscaling import ScalingRule
from tutti_asr_lab.trials.calls import Plan, schedule
from tutti_asr_lab.trials.figures import figures
from tutti_asr_lab.trials.scaled_replicas import Moment, Record
from tutti_asr_lab.trials.scaling.__main__ import scaled
from tutti_asr_lab.trials.scenarios.scaling import Played, Row, Scaling, concluded, judge, markdown, rows, write
from tutti_asr_lab.trials.streams import Audio, Outcome

# Two replicas, a third when the calls double in eight seconds, and two again.
SHORT = Plan(calls=9, doublings=1, rise_s=8.0, hold_s=7.0, call_s=6.0, plain=0.1, least=2, down_window_s=4.0, audios=6)
pytestmark = pytest.mark.timeout(300)  # replicas start slowly on a busy machine


@pytest.fixture(scope="module")
def run() -> tuple[Scaling, list[Row]]:
    need("haproxy")
    return asyncio.run(scaled(SHORT, "command", lambda _: None))


def test_replicas_follow_a_load_that_doubles_and_no_call_is_cut_or_changed(run: tuple[Scaling, list[Row]]) -> None:
    found, moments = run
    assert not unmet(found.bars), (found, moments)
    assert (found.ready_peak, moments[0].ready, moments[-1].ready) == (3, 2, 2)
    assert max(row.open for row in moments) >= 16
    assert found.resumable.equal == found.resumable.finished > 20
    assert found.plain.equal == found.plain.finished >= 1


def test_resumable_calls_of_a_drained_replica_move_by_their_tickets(run: tuple[Scaling, list[Row]]) -> None:
    found, _ = run
    assert found.drains == 1
    assert found.resumable.by_ticket == found.resumable.interrupted >= 1
    assert found.resumable.by_replay == 0
    assert set(found.resumable.closes) == {1012}
    assert not found.plain.closes, "calls that cannot resume end by themselves within the drain"


def test_document_page_table_and_plot_are_written(run: tuple[Scaling, list[Row]], tmp_path: Path) -> None:
    found, moments = run
    paths = write(found, moments, tmp_path)
    assert [path.name for path in paths] == [f"scaling.{suffix}" for suffix in ("json", "md", "csv", "png")]
    with paths[2].open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["at_s"]) for row in read] == [row.at_s for row in moments]
    assert {int(row["ideal"]) for row in read} == {2, 3}
    assert paths[3].stat().st_size > 10_000
    assert "| calls refused | 1 % |" in markdown(found)


def test_calls_follow_the_profile_whatever_their_lengths() -> None:
    plan = Plan(calls=6, doublings=2)
    lengths_s = [5.0, 8.0, 15.0]
    calls = schedule(plan, lengths_s)
    for at_s, wanted in ((1.0, 3), (10.0, 6), (42.0, 9), (61.9, 12), (75.0, 12), (102.0, 18), (130.0, 24)):
        running = sum(call.at_s <= at_s < call.at_s + lengths_s[call.audio] for call in calls)
        assert running == pytest.approx(wanted, abs=1), at_s
    assert sum(not call.resumable for call in calls) / len(calls) == pytest.approx(0.25, abs=0.06)
    assert calls == schedule(plan, lengths_s) != schedule(replace(plan, seed=2), lengths_s)


def test_all_times_of_the_rule_are_shortened_as_the_doubling_is() -> None:
    plan, rule = Plan(rise_s=40.0), ScalingRule()
    assert plan.faster == 3
    assert plan.rule == ScalingRule(least=1, most=3, sync_s=5, period_s=20, down_window_s=100)
    assert (plan.rule.fill, plan.rule.up_percent, plan.rule.down_percent) == (
        rule.fill,
        rule.up_percent,
        rule.down_percent,
    )
    assert (plan.settings.start_s, plan.settings.metric_age_s) == (15, 10)


@pytest.mark.parametrize("wrong", [{"channels": 0}, {"rise_s": 0.0}, {"plain": 1.1}, {"most": 0}])
def test_an_invalid_plan_is_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSettings, match=f"--{next(iter(wrong))}".replace("_", "-")):
        replace(SHORT, **wrong)  # type: ignore[arg-type]


def outcome(text: str = "a b", *, finished: bool = True, statuses: tuple[int, ...] = ()) -> Outcome:
    made = Outcome(Audio("x", np.zeros(16_000, np.int16)), text=text, finished=finished, covered_s=1.0)
    made.statuses.extend(statuses)
    return made


def row(at_s: float, ideal: int, ready: int, starting: int = 0) -> Row:
    return Row(at_s, 0.0, ideal, 0, ready, starting, 0, None, None)


GOOD = [row(3.0, 2, 2), row(10.0, 3, 2, 1), row(20.0, 3, 3), row(40.0, 2, 2)]


def missed(*changes: Row, refused: float = 0.5, streams: Outcome | None = None, code: int = 0) -> list[str]:
    moments = {each.at_s: each for each in (*GOOD, *changes)}
    found = [moments[at_s] for at_s in sorted(moments)]
    kinds = [figures([streams or outcome()], {"x": "a b"}), figures([], {})]
    return [each.what for each in judge(refused, kinds, found, Record(codes=[code]), 25.0) if not each.met]


def test_each_criterion_can_fail() -> None:
    assert missed() == []
    assert missed(refused=1.1) == ["calls refused"]
    assert missed(streams=outcome("a")) == ["transcripts that differ"]
    assert missed(streams=outcome(finished=False)) == ["accepted calls that did not finish"]
    lost = outcome()
    lost.gaps_s = 0.5
    assert missed(streams=lost) == ["audio of resumable calls lost"]
    assert missed(row(10.0, 2, 2, 1)) == ["replicas too many while the load rises"]
    assert missed(row(20.0, 3, 2, 1)) == ["replicas missing at the peak"]
    assert missed(row(40.0, 2, 3)) == ["replicas too many at the end"]
    assert missed(code=-9) == ["drained replicas with an exit code other than 0"]


def test_a_refused_plain_call_is_no_unfinished_one_and_a_failed_one_is() -> None:
    moments = [Moment(3.0, 0.75, None, 9, 2, 0, 0), Moment(30.0, 1.5, 1.5, 18, 3, 0, 0)]
    outcomes = [
        (True, outcome(statuses=(503,))),  # it came back, and finished
        (False, outcome(finished=False, statuses=(503,))),
        (False, outcome(finished=False)),  # no answer at all
    ]
    played = Played(outcomes, {"x": "a b"}, Record(moments))
    found, _ = concluded(SHORT, "command", played, describe(1))
    assert (found.placed, found.refused, found.resumable.streams, found.plain.streams) == (3, 2, 1, 1)
    assert [each.found for each in found.bars if each.what == "accepted calls that did not finish"] == [1]
    assert rows(SHORT, [Moment(1_000.0, None, None, 0, 0, 0, 0)]) == [], "after the profile's end"
