"""The autoscaler's rule: Kubernetes' arithmetic, its limits on change, and its window when replicas are removed."""

import pytest

from tutti_asr_lab.trials.autoscaling import AgedLoad, Autoscaler, ScalingRule, load_in_replicas

RULE = ScalingRule(fill=0.5, least=2, most=40)


@pytest.mark.parametrize(
    ("replicas", "load", "wanted"), [(4, 2.0, 4), (4, 2.19, 4), (4, 2.3, 5), (4, 3.6, 8), (4, None, 4), (4, 30.0, 8)]
)
def test_the_target_is_kept_within_a_tolerance_and_at_most_doubled(replicas, load, wanted):
    assert Autoscaler(RULE).decide(0.0, replicas, load) == wanted


def test_more_are_added_only_when_the_period_has_passed():
    scaler = Autoscaler(RULE)
    numbers = [4]
    for at_s in range(0, 121, 15):
        numbers.append(scaler.decide(float(at_s), numbers[-1], 15.0))
    assert numbers[1:5] == [8, 8, 8, 8]  # doubled once within a minute
    assert numbers[5:9] == [16, 16, 16, 16]
    assert numbers[9] == 30


def test_replicas_are_removed_after_the_window_and_a_fifth_in_a_minute():
    scaler = Autoscaler(RULE)
    assert scaler.decide(0.0, 20, 10.0) == 20
    assert {scaler.decide(float(at_s), 20, 2.0) for at_s in range(15, 300, 15)} == {20}
    assert scaler.decide(300.0, 20, 2.0) == 16
    assert scaler.decide(315.0, 16, 2.0) == 16
    assert scaler.decide(360.0, 16, 2.0) == 12
    assert Autoscaler(RULE).decide(0.0, 3, 0.1) == 2, "one at a time where a fifth is less than one"


def test_bounds_hold_for_any_load():
    assert Autoscaler(RULE).decide(0.0, 2, 0.0) == 2
    assert Autoscaler(RULE).decide(0.0, 39, 100.0) == 40


@pytest.mark.parametrize("bad", [{"fill": 0.0}, {"fill": 1.1}, {"least": 0}, {"least": 9, "most": 8}])
def test_a_rule_that_cannot_be_kept_is_rejected(bad):
    with pytest.raises(ValueError, match="autoscaler"):
        ScalingRule(**bad)


def test_the_load_counts_replicas_of_different_sizes_by_their_mean():
    assert load_in_replicas([]) is None
    assert load_in_replicas([(6, 12), (12, 12), (3, 12)]) == 1.75
    assert load_in_replicas([(10, 20), (5, 10)]) == 1.0


def test_a_load_is_seen_after_its_age():
    load = AgedLoad(10.0)
    assert [load.see(float(at_s), 1.0 + at_s) for at_s in (0, 5, 9, 10, 14, 15, 40)] == [None] * 3 + [
        1.0,
        1.0,
        6.0,
        16.0,
    ]
    assert AgedLoad(0.0).see(3.0, 2.0) == 2.0


def test_a_faster_rule_has_shorter_times_and_the_same_numbers():
    assert ScalingRule(least=2).faster(5) == ScalingRule(least=2, sync_s=3, period_s=12, down_window_s=60)
