"""The fleet: calls are conserved, losses follow theory, and the autoscaler's rule holds while the load doubles."""

import math
from dataclasses import replace

import pytest

from tutti_asr_lab.simulation.autoscaling import ScalingRule
from tutti_asr_lab.simulation.fleet import Fleet, FleetSettings
from tutti_asr_lab.simulation.profile import Profile

STEADY = Profile((0.0, 40_000.0), (0.1, 0.1))
SHORT = Profile((0.0, 2_000.0), (0.1, 0.1))
FIXED = ScalingRule(least=3, most=3)
QUIET = FleetSettings(users=90, limit=4, stream_s=60.0, failures_per_day=0.0, rule=FIXED)
DOUBLING = Profile((0.0, 1_200.0, 1_320.0, 3_600.0), (0.02, 0.02, 0.04, 0.04))


def erlang_b(load, servers):
    """Share of calls refused by `servers` that are offered `load` erlangs. Source: Erlang, 1917."""
    terms = [load**k / math.factorial(k) for k in range(servers + 1)]
    return terms[-1] / sum(terms)


def totals(moments):
    return {
        name: sum(getattr(each, name) for each in moments) for name in ("calls", "refused", "moved", "cut", "failures")
    }


def test_refusals_of_a_fixed_fleet_follow_erlangs_formula():
    done = totals(Fleet(replace(QUIET, stream_s=20.0), STEADY).run())
    assert done["refused"] / done["calls"] == pytest.approx(erlang_b(9.0, 12), rel=0.1)


def test_a_call_with_two_channels_takes_twice_the_room():
    assert Fleet(replace(QUIET, limit=8, channels=2), SHORT).run() == [
        replace(moment, fullest=2 * moment.fullest) for moment in Fleet(QUIET, SHORT).run()
    ]


def test_the_same_seed_gives_the_same_day():
    assert Fleet(QUIET, SHORT, 3).run() == Fleet(QUIET, SHORT, 3).run() != Fleet(QUIET, SHORT, 4).run()


def test_calls_of_failed_replicas_move_and_each_is_replaced():
    settings = replace(QUIET, limit=20, failures_per_day=200.0, rule=ScalingRule(fill=0.5, least=3, most=3))
    moments = Fleet(settings, STEADY).run()
    done = totals(moments)
    assert done["failures"] > 50
    assert done["moved"] > done["failures"]
    assert max(each.ready + each.starting for each in moments) == 3
    assert min(each.ready for each in moments) < 3


def test_removed_replicas_drain_and_cut_only_what_outlasts_the_drain():
    falling = Profile((0.0, 600.0, 601.0, 6_000.0), (0.2, 0.2, 0.02, 0.02))
    settings = FleetSettings(users=2_000, limit=40, stream_s=120.0, failures_per_day=0.0)
    patient, hasty = (totals(Fleet(replace(settings, drain_s=each), falling).run()) for each in (3_600.0, 10.0))
    assert patient["cut"] == 0 < hasty["cut"]
    moments = Fleet(replace(settings, resumable=1.0), falling).run()
    assert totals(moments)["moved"] > 0
    assert totals(moments)["cut"] == 0
    assert moments[-1].ready == ScalingRule().least < moments[0].ready


@pytest.mark.parametrize("limit", [60, 150, 400])
@pytest.mark.parametrize("seed", range(3))
def test_the_rule_holds_while_the_load_doubles_within_two_minutes(limit, seed):
    """Fewer than 1 % of the calls of these five minutes are refused, and never a third too many replicas exist."""
    settings = FleetSettings(users=100_000, limit=limit, failures_per_day=0.0, rule=ScalingRule(most=1_000))
    moments = Fleet(settings, DOUBLING, seed).run(15.0)
    rise = totals([each for each in moments if 1_200 < each.at_s <= 1_500])
    assert rise["refused"] < 0.01 * rise["calls"]
    after = [each for each in moments if each.at_s > 1_200]
    assert max((each.ready + each.starting) / each.needed for each in after) < 4 / 3


def test_a_fill_of_seven_tenths_refuses_more_than_that():
    settings = FleetSettings(users=100_000, limit=400, failures_per_day=0.0, rule=ScalingRule(fill=0.7, most=100))
    rise = totals([each for each in Fleet(settings, DOUBLING).run(15.0) if 1_200 < each.at_s <= 1_500])
    assert rise["refused"] > 0.01 * rise["calls"]


@pytest.mark.parametrize("bad", [{"users": 0}, {"limit": 1, "channels": 2}, {"stream_s": 0.0}])
def test_a_fleet_that_carries_nothing_is_rejected(bad):
    with pytest.raises(ValueError, match="a day needs"):
        FleetSettings(**({"users": 1, "limit": 4} | bad))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hour,share\n00:00,0.1\n", "first line"),
        ("time,speaking\n00:00,0.1\nlater,0.2\n", "line 3"),
        ("time,speaking\n00:00,0.1\n", "two times"),
        ("time,speaking\n00:00,0.1\n01:00,1.5\n", "share"),
        ("time,speaking\n00:10,0.1\n01:00,0.5\n", "begin with 00:00"),
    ],
)
def test_a_profile_of_another_form_is_rejected_with_the_reason(tmp_path, text, problem):
    path = tmp_path / "day.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        Profile.load(path)


def test_a_profile_is_linear_between_its_times(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("time,speaking\n00:00,0.1\n01:00:10,0.3\n")
    profile = Profile.load(path)
    assert profile.seconds == 3_610
    assert profile.speaking(1_805) == pytest.approx(0.2)
