"""Forecasts: batched equals alone, thousands of devices, what a gateway gets; better than repeating the value."""

from __future__ import annotations

import json

import numpy as np
import pytest
from starlette.testclient import TestClient

from examples.forecast import DAY, HORIZONS, Forecaster, application, series, train
from tests.support.networks.example_models import forecaster
from tests.support.streams.random_joins import alone, together


def test_batched_equals_alone_with_random_joins() -> None:
    dice = np.random.default_rng(4)
    devices = [series(dice, 1, int(length)).T for length in dice.integers(1, 20, 60)]  # (steps, 1)
    found = together(forecaster().slots(20, 17), devices, seed=6)
    for values, rows in zip(devices, found, strict=True):
        assert np.array_equal(rows, alone(forecaster().slots(1, 1), values))


def test_thousands_of_devices_get_what_each_gets_alone() -> None:
    values = series(np.random.default_rng(5), 3000, 2)
    app = application(forecaster())
    with TestClient(app) as client, client.websocket_connect("/gateway?deadline_ms=10000") as gateway:
        for column in values.T:
            gateway.send_text(json.dumps([[f"d{i}", float(value)] for i, value in enumerate(column)]))
            lines = gateway.receive_json()
    for i in (0, 1, 255, 256, 1500, 2999):
        expected = alone(forecaster().slots(1, 1), values[i][:, None])[-1]
        assert lines[i] == [f"d{i}", [round(float(each), 2) for each in expected], False]


def test_a_device_may_send_several_values_in_a_message() -> None:
    app = application(forecaster())
    with TestClient(app) as client, client.websocket_connect("/gateway?deadline_ms=10000") as gateway:
        gateway.send_text('[["a", 20], ["b", 21], ["a", 22.5]]')
        lines = gateway.receive_json()
    expected = alone(forecaster().slots(1, 1), np.array([[20], [22.5]], np.float32))
    for line, row in zip((lines[0], lines[2]), expected, strict=True):
        assert line == ["a", [round(float(each), 2) for each in row], False]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("{", "Invalid JSON"),
        ('{"device": 1}', "valid array"),
        ('[["a"]]', "Field required"),
        ('[["a", NaN]]', "finite number"),
        ('[["a", "warm"]]', "valid number"),
    ],
)
def test_readings_that_mean_nothing_are_refused(message: str, said: str) -> None:
    app = application(forecaster())
    with TestClient(app) as client, client.websocket_connect("/gateway") as gateway:
        gateway.send_text(message)
        assert said in gateway.receive_json()["error"]
        gateway.send_text('[["a", 20]]')
        assert len(gateway.receive_json()) == 1


def test_a_device_beyond_the_capacity_is_refused_and_the_others_are_answered() -> None:
    app = application(forecaster(), devices=2)
    with TestClient(app) as client, client.websocket_connect("/gateway?deadline_ms=10000") as gateway:
        gateway.send_text('[["a", 20], ["b", 20], ["c", 20]]')
        a, b, c = gateway.receive_json()
    assert c == ["c", "all 2 slots are in use"]
    assert a[1] == b[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trained_network_is_better_than_repeating_the_value() -> None:
    values = series(np.random.default_rng(8), 200, 2 * DAY + max(HORIZONS))
    slots = Forecaster(train()).slots(len(values), len(values))
    for slot in range(len(values)):
        slots.reset(slot)
    errors = []
    for step in range(2 * DAY):
        slots.inputs[:] = values[:, step, None]
        forecasts = slots.run(range(len(values)))  # (devices, horizons)
        ahead = np.stack([values[:, step + each] for each in HORIZONS], axis=1)
        errors.append(np.abs([forecasts - ahead, values[:, step, None] - ahead]).mean(axis=1))
    ours, same = np.mean(errors[DAY:], axis=0)  # the second day
    assert (ours < 0.7 * same).all(), (ours, same)
