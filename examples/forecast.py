"""Forecasts of sensor values by a GRU: one stream per device, thousands of devices, which gateways connect.

A gateway opens the WebSocket /gateway and sends readings, a JSON array of [device, value]; each message is answered by
an array of [device, values 1, 6 and 24 steps ahead, late]. The network learns from series that this program makes.

    python -m examples.forecast --demo
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import typer
from fastapi import FastAPI, WebSocket
from numpy.typing import NDArray
from pydantic import FiniteFloat, TypeAdapter, ValidationError
from websockets.asyncio.client import connect

from batching import BatchingError
from examples.network import Arrays, Floats, Product, Slots, cached, gru, one_thread, quantized
from examples.serving import Deadline, Serving, Stream, accepted, run

DEVICES, LARGEST_BATCH = 8192, 256
HIDDEN = 48
HORIZONS = (1, 6, 24)  # steps ahead
DAY = 48  # steps
RANGES = ((16.0, 24.0), (2.0, 5.0), (0.5, 1.5))  # degrees: a device's mean, daily and faster wave
MIDDLE, SPREAD = 20.0, 12.0  # degrees: a value is clipped to MIDDLE ± SPREAD
UPDATES, SERIES, STEPS = 300, 64, 3 * DAY
READINGS = TypeAdapter(list[tuple[str, FiniteFloat]])


def series(dice: np.random.Generator, devices: int, steps: int) -> Floats:
    """Temperatures (devices, steps): a mean, a daily and a faster wave of each device's own, and noise of 0.1."""
    mean, daily, faster = (dice.uniform(low, high, (devices, 1)) for low, high in RANGES)
    days = np.arange(steps) / DAY + dice.uniform(0, 1, (devices, 1))  # (devices, steps)
    waves = daily * np.sin(2 * np.pi * days) + faster * np.sin(8 * np.pi * days)
    return np.asarray(mean + waves + dice.normal(0, 0.1, days.shape), np.float32)


@one_thread()
def train(updates: int = UPDATES) -> Arrays:
    """Weights after this many updates in torch; after 0 the random ones."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    dice = np.random.default_rng(1)
    network = nn.ModuleDict({"gru": nn.GRU(1, HIDDEN, batch_first=True), "head": nn.Linear(HIDDEN, len(HORIZONS))})
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(updates):
        values = torch.from_numpy((series(dice, SERIES, STEPS + max(HORIZONS)) - MIDDLE) / SPREAD)
        now = values[:, :STEPS, None]
        ahead = torch.stack([values[:, lead : STEPS + lead] for lead in HORIZONS], dim=2)  # (SERIES, STEPS, horizons)
        outputs, _ = network["gru"](now)
        loss = nn.functional.mse_loss(now + network["head"](outputs), ahead)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return {name: weights.detach().numpy() for name, weights in network.state_dict().items()}


class Forecaster:
    """A GRU whose outputs are the expected changes of a value."""

    def __init__(self, arrays: Arrays) -> None:
        """Round the weights of `train` to 8 bits."""
        self._inputs = Product.of(arrays["gru.weight_ih_l0"], arrays["gru.bias_ih_l0"])
        self._recurrent = Product.of(arrays["gru.weight_hh_l0"], arrays["gru.bias_hh_l0"])
        self._head = Product.of(arrays["head.weight"], arrays["head.bias"])

    def step(self, inputs: NDArray[Any], hidden: Floats) -> tuple[Floats, Floats]:
        """(B, 1) values, (B, H) -> values HORIZONS steps ahead (B, 3), (B, H)."""
        scaled = (inputs - np.float32(MIDDLE)) / np.float32(SPREAD)
        after = gru(self._inputs(quantized(scaled)), self._recurrent(quantized(hidden)), hidden)
        return inputs + self._head(quantized(after)) * np.float32(SPREAD), after

    def slots(self, capacity: int = DEVICES, largest: int = LARGEST_BATCH) -> Slots:
        """States for this many devices."""
        return Slots(self.step, state=HIDDEN, inputs=(1,), dtype=np.float32, capacity=capacity, largest=largest)


async def forecast(stream: Stream, device: str, value: float) -> list[Any]:
    """One line of an answer: the forecasts, or why there are none."""
    try:
        answer = await stream.step(np.array([value], np.float32))
    except BatchingError as error:
        return [device, str(error)]
    return [device, [round(float(forecast_value), 2) for forecast_value in answer.output], answer.late]


def application(forecaster: Forecaster | None = None, devices: int = DEVICES) -> FastAPI:
    """Serve this many devices at a time; by default with weights that are trained at the first start."""
    serving = Serving((forecaster or Forecaster(cached("forecast", train))).slots(devices))
    app = FastAPI(title="forecast", lifespan=serving.running)

    @app.websocket("/gateway")
    async def gateway(connection: WebSocket, deadline_ms: Deadline = 1000) -> None:
        streams: dict[str, Stream] = {}
        try:
            async with accepted(connection):
                while True:
                    try:
                        readings = READINGS.validate_json(await connection.receive_text())
                    except ValidationError as error:
                        await connection.send_json({"error": f"readings: {error.errors()[0]['msg']}"})
                        continue
                    for device, _ in readings:
                        if device not in streams:
                            streams[device] = serving.open(deadline_ms)
                    lines = [forecast(streams[device], device, value) for device, value in readings]
                    answers = await asyncio.gather(*lines)
                    await connection.send_json(answers)
                    for device in {line[0] for line in answers if len(line) == 2}:
                        streams.pop(device).close()  # a device without room tries again with its next message
        finally:
            for stream in streams.values():
                stream.close()

    return app


async def client(port: int) -> None:
    """Send 60 readings of each of 4,000 devices by four gateways; print how far the forecasts are off."""
    devices, steps = 1000, DAY + 12

    async def gateway(number: int) -> tuple[NDArray[Any], int]:
        values = series(np.random.default_rng([7, number]), devices, steps + max(HORIZONS))  # (devices, steps)
        errors_by_step, late = [], 0
        async with connect(f"ws://127.0.0.1:{port}/gateway", proxy=None, max_size=None) as connection:
            for step in range(steps):
                await connection.send(json.dumps([[str(i), float(value)] for i, value in enumerate(values[:, step])]))
                answers = json.loads(await connection.recv())
                late += sum(answer[2] for answer in answers)
                ahead = np.stack([values[:, step + lead] for lead in HORIZONS], axis=1)  # (devices, horizons)
                errors = np.array([answer[1] for answer in answers]) - ahead, values[:, step, None] - ahead
                errors_by_step.append(np.abs(errors).mean(axis=1))  # (2, horizons)
        return np.mean(errors_by_step[DAY:], axis=0), late

    errors, late = zip(*await asyncio.gather(*map(gateway, range(4))), strict=True)
    typer.echo(f"{4 * devices * steps} forecasts of {4 * devices} devices, {sum(late)} later than their deadline")
    for steps_ahead, ours, same in zip(HORIZONS, *np.mean(errors, axis=0), strict=True):
        typer.echo(f"{steps_ahead:>3} steps ahead: mean error {ours:.2f} degrees; of the present value {same:.2f}")


if __name__ == "__main__":
    run(application, client)
