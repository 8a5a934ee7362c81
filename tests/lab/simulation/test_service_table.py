"""Service tables and calibration files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_asr_lab.simulation.calibration import (
    Calibration,
    Interference,
    Overheads,
    Provenance,
    SecondPasses,
    Spread,
    Spreads,
    shipped,
)
from tutti_asr_lab.simulation.service_table import ServiceTable


def test_between_two_sizes_the_time_is_interpolated_and_beyond_the_last_extended():
    table = ServiceTable.constant({1: 0.001, 9: 0.005, 17: 0.007})
    assert [table.median(rows) for rows in (1, 5, 9, 13, 17, 25)] == pytest.approx(
        [0.001, 0.003, 0.005, 0.006, 0.007, 0.009]
    )


def test_one_size_grows_in_proportion():
    assert ServiceTable.constant({4: 0.004}).median(8) == pytest.approx(0.008)


def test_draws_follow_the_measured_quantiles():
    table = ServiceTable.of({1: [0.001] * 90 + [0.010] * 10}, (0.0, 0.5, 0.89, 0.91, 1.0))
    draws = table.draws(1)
    assert draws == sorted(draws)
    assert sum(value > 0.009 for value in draws) / len(draws) == pytest.approx(0.1, abs=0.02)


@given(st.integers(1, 400), st.integers(1, 400))
def test_a_larger_batch_of_rising_times_is_never_faster(one, other):
    table = ServiceTable((1, 8, 128), (0.1, 0.9), ((0.001, 0.002), (0.002, 0.003), (0.01, 0.02)))
    low, high = sorted((one, other))
    assert all(a <= b for a, b in zip(table.draws(low), table.draws(high), strict=True))


@pytest.mark.parametrize(
    ("rows", "quantiles", "seconds"),
    [
        ((), (), ()),
        ((2, 1), (0.5,), ((0.1,), (0.1,))),
        ((0,), (0.5,), ((0.1,),)),
        ((1,), (0.5,), ((0.0,),)),
        ((1,), (0.5, 1.1), ((0.1, 0.2),)),
        ((1,), (0.1, 0.9), ((0.2, 0.1),)),
        ((1,), (0.5,), ((0.1, 0.2),)),
    ],
)
def test_a_malformed_table_is_refused(rows, quantiles, seconds):
    with pytest.raises(ValueError):
        ServiceTable(rows, quantiles, seconds)


def test_a_saved_calibration_loads_equal(tmp_path):
    before = Calibration(
        Provenance("a machine", 2, versions={"torch": "1"}),
        0.08,
        ServiceTable((1, 8), (0.1, 0.9), ((0.001, 0.002), (0.002, 0.003))),
        Overheads(receive_s=1e-5),
        Interference(1e-4, 2e-3, Spread((0.1, 0.9), (0.5, 2.0))),
        Spreads(wake=Spread((0.5, 1.0), (1.0, 3.0))),
        5,
        {"context": SecondPasses(250, (13, 22), (0.01, 0.003), -1e-5)},
    )
    before.save(tmp_path / "some" / "calibration.json")
    assert Calibration.load(tmp_path / "some" / "calibration.json") == before


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"table": {}, "provenance": {}, "overheads": {}})])
def test_another_file_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json is not a calibration file"):
        Calibration.load(path)


def test_the_shipped_calibration_names_its_machine_and_model():
    found = shipped()
    assert found.provenance.hardware
    assert found.provenance.digest
    assert found.step_s == 0.24
    assert found.table.rows[0] == 1
