"""`tutti plan --cores`: streams that a server with front-end processes is predicted to carry, and what limits it.

Arithmetic with the processor time of a step in each part, measured on two cores; nothing is simulated. Which machine
runs how many processes is decided elsewhere and given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from batching.capacity import HEADROOM
from loadtest.planning.plan import Output

STEP_S = 0.08
"""Audio of one step of the shipped model."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time of a step in each part, in µs."""

    measured_on: str = "2 cores of an Intel Xeon (avx512_bf16, VNNI, AMX)"
    front_end_us: float = 150.0
    """Event loop of a front end. Measured 153 to 178 next to engine and client, 110 to 130 in larger batches."""
    loop_us: float = 131.0
    """Event loop of a server that is one process, in the largest batches."""
    model_us: float = 27.0
    """Model thread of a server that is one process, without the step."""
    engine_us: float = 15.0
    """Python and sockets of an engine process: 11 with a model that does nothing, 17 to 19 in a prototype."""
    engine_on_gpu_us: float = 11.0
    step_us: float = 60.0
    """The int8 step in batches of 16 rows and more; threads divide it."""


COSTS = Costs()
"""Source: loadtest/LOG.md, "cost of a step by thread". Beam search, language model, an answer to every step."""
RUN = {2: "one process: 400 to 500 streams, clients on the same cores"}
"""What was run, by cores."""
RUN_ON_GPU = "an H100's engine alone: 4,000 streams"
"""Source: loadtest/results/gpu.md, live streams on one thread; p98 27.9 ms, of a larger network."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted streams of one machine: `bounds` are those that each part carries. `front_ends` 0 is one process."""

    cores: int
    gpu: bool
    front_ends: int
    engine_threads: int
    bounds: dict[str, int]

    @property
    def streams(self) -> int:
        """Predicted streams: those of the part that carries the fewest."""
        return min(self.bounds.values())

    @property
    def bound_by(self) -> str:
        """The part, or the parts, that carry the fewest."""
        return " and ".join(part for part, streams in self.bounds.items() if streams == self.streams)

    @property
    def run(self) -> str:
        """What was ever run on such a machine, "nothing" for most."""
        return RUN_ON_GPU if self.gpu else RUN.get(self.cores, "nothing")


def predict(cores: int, front_ends: int, engine_threads: int, *, gpu: bool, costs: Costs = COSTS) -> Prediction:
    """Predict the streams of one machine by the processor time of a step in each part."""
    step_us = 0.0 if gpu else costs.step_us
    if front_ends:
        engine_us = costs.engine_on_gpu_us if gpu else costs.engine_us
        bounds = {
            "event loops": _streams(costs.front_end_us / front_ends),
            "engine": _streams(engine_us + step_us / engine_threads),
        }
    else:
        bounds = {
            "event loops": _streams(costs.loop_us),
            "engine": _streams(costs.model_us + step_us / engine_threads),
            "cores": _streams((costs.loop_us + costs.model_us + step_us) / cores),
        }
    return Prediction(cores, gpu, front_ends, engine_threads, bounds)


def _streams(step_us: float) -> int:
    """Return the streams whose steps take the share of the time of a core that `HEADROOM` leaves."""
    return round(HEADROOM * STEP_S / (step_us * 1e-6))


def forecast(machines: Sequence[Prediction], costs: Costs = COSTS) -> Output:
    """Return a table of machines, each figure marked as predicted, and the same as a document."""
    rows = [
        ("cores", "front ends", "engine threads", "event loops*", "engine*", "streams*", "bound by*", "what was run"),
        *(_cells(machine) for machine in machines),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines = (
        *table,
        f"* predicted, not measured: streams that each part carries with {HEADROOM:.0%} of its time. Costs of a step",
        f"  measured on {costs.measured_on}: event loop {costs.front_end_us:g} µs in a front end,",
        f"  {costs.loop_us:g} in one process; engine {costs.engine_us:g}, with a GPU {costs.engine_on_gpu_us:g};",
        f"  int8 step {costs.step_us:g}, divided by the engine's threads. Beam search, an answer to every step.",
    )
    document = {
        "costs": asdict(costs),
        "machines": [
            {
                "cores": machine.cores,
                "gpu": machine.gpu,
                "front_ends": machine.front_ends,
                "engine_threads": machine.engine_threads,
                "predicted": {"streams": machine.streams, "bound_by": machine.bound_by, "bounds": machine.bounds},
                "run": machine.run,
            }
            for machine in machines
        ],
    }
    return Output(lines, json.dumps(document))


def _cells(machine: Prediction) -> tuple[str, ...]:
    return (
        f"{machine.cores} and a GPU" if machine.gpu else str(machine.cores),
        str(machine.front_ends) if machine.front_ends else "one process",
        str(machine.engine_threads),
        *(f"{machine.bounds[part]:,}" for part in ("event loops", "engine")),
        f"{machine.streams:,}",
        machine.bound_by,
        machine.run,
    )
