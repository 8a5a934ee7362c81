"""Real replicas scaled by the simulated rule: a short run with HAProxy, its schedule, and its criteria."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from loadtest.errors import BadSettings
from loadtest.reports.criteria import unmet
from tests.support.deployment.edge import need
from tutti_asr_lab.trials.autoscaling import ScalingRule
from tutti_asr_lab.trials.figures import figures
from tutti_asr_lab.trials.scaled_replicas import Moment, Record
from tutti_asr_lab.trials.scenarios.scaling import Plan, judge, report_of, scaled, schedule
from tutti_asr_lab.trials.streams import Audio, Outcome
from tutti_asr_lab.trials.trial import TrialReport

# Two replicas, a third when the calls double in eight seconds, and two again.
SHORT = Plan(calls=9, doublings=1, rise_s=8.0, hold_s=7.0, call_s=6.0, plain=0.1, least=2, down_window_s=4.0, audios=6)
pytestmark = pytest.mark.timeout(300)  # replicas start slowly on a busy machine


@pytest.fixture(scope="module")
def run() -> TrialReport:
    need("haproxy")
    return asyncio.run(scaled(SHORT))


def test_replicas_follow_a_load_that_doubles_and_no_call_is_cut_or_changed(run: TrialReport) -> None:
    resumable, plain, moments = (run.figures[name] for name in ("Resumable", "Plain", "moments"))
    assert not unmet(run.bars), run
    assert (max(row.ready for row in moments), moments[0].ready, moments[-1].ready) == (3, 2, 2)
    assert max(row.open for row in moments) >= 16
    assert resumable.equal == resumable.finished > 20
    assert plain.equal == plain.finished >= 1


def test_resumable_calls_of_a_drained_replica_move_by_their_tickets(run: TrialReport) -> None:
    resumable, plain = run.figures["Resumable"], run.figures["Plain"]
    assert run.figures["drains"] == 1
    assert resumable.by_ticket == resumable.interrupted >= 1
    assert resumable.by_replay == 0
    assert set(resumable.closes) == {1012}
    assert not plain.closes, "calls that cannot resume end by themselves within the drain"


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
    assert (plan.times.start_s, plan.times.metric_age_s) == (15, 10)


def test_an_invalid_plan_is_rejected() -> None:
    with pytest.raises(BadSettings, match="--most"):
        Plan(least=2, most=1)


def outcome(text: str = "a b", *, finished: bool = True, statuses: tuple[int, ...] = ()) -> Outcome:
    made = Outcome(Audio("x", np.zeros(16_000, np.int16)), text=text, finished=finished, covered_s=1.0)
    made.statuses.extend(statuses)
    return made


def moment(at_s: float, ready: int, starting: int = 0) -> Moment:
    return Moment(at_s, None, None, 0, ready, starting, 0)


# The rule wants 1 replica for 6 calls of 12 channels, 2 for 12, 4 (3 at most) for 24.
GOOD = [moment(10.0, 1), moment(70.0, 2), moment(75.0, 2), moment(125.0, 3), moment(300.0, 1)]


def missed(*changes: Moment, refused: float = 0.5, streams: Outcome | None = None, code: int = 0) -> list[str]:
    at = {each.at_s: each for each in (*GOOD, *changes)}
    moments = [at[at_s] for at_s in sorted(at)]
    kinds = [figures([streams or outcome()], {"x": "a b"}), figures([], {})]
    bars = judge(Plan(), refused, kinds, moments, Record(codes=[code]))
    return [each.what for each in bars if not each.met]


def test_each_criterion_can_fail() -> None:
    assert [Plan().ideal(each.at_s) for each in GOOD] == [1, 2, 2, 3, 1]
    assert missed() == []
    assert missed(refused=1.1) == ["calls refused"]
    assert missed(streams=outcome("a")) == ["transcripts that differ"]
    assert missed(streams=outcome(finished=False)) == ["accepted calls that did not finish"]
    lost = outcome()
    lost.gaps_s = 0.5
    assert missed(streams=lost) == ["audio of resumable calls lost"]
    assert missed(moment(70.0, 2, 1)) == ["replicas too many while the load rises"]
    assert missed(moment(125.0, 2, 1)) == ["replicas missing at the peak"]
    assert missed(moment(300.0, 2)) == ["replicas too many at the end"]
    assert missed(code=-9) == ["drained replicas with an exit code other than 0"]


def test_a_refused_plain_call_is_no_unfinished_one_and_a_failed_one_is() -> None:
    record = Record([Moment(3.0, 0.75, None, 9, 2, 0, 0), Moment(30.0, 1.5, 1.5, 18, 3, 0, 0)])
    resumed = outcome(statuses=(503,))  # it came back, and finished
    plain = [outcome(finished=False, statuses=(503,)), outcome(finished=False)]  # the second without an answer
    report = report_of(SHORT, [resumed], plain, {"x": "a b"}, record)
    assert report.lines[0].startswith("3 calls, 2 refused")
    assert (report.figures["Resumable"].streams, report.figures["Plain"].streams) == (1, 1)
    assert [each.found for each in report.bars if each.what == "accepted calls that did not finish"] == [1]
    late = report_of(SHORT, [resumed], [], {"x": "a b"}, Record([moment(1_000.0, 1)]))
    assert late.figures["moments"] == [], "after the profile's end"
