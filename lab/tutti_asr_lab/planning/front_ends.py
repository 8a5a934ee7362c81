"""`tutti plan --cores`: streams that a server with front-end processes is predicted to carry, and what limits it.

Arithmetic with the processor time of a step in each part (`batching.processes`), measured on two cores; nothing is
simulated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from batching.capacity import HEADROOM
from batching.processes import ON_GPU, OWN, Processes, StepCosts, steps_per_s
from server.recognition.decoding.segment_threads import threads_of
from tutti_asr_lab.planning.plan import Output

STEP_S = 0.24
"""Audio of one step of the default network."""
GPU_STEP_S = 0.08
"""Audio of one step of the GRU network, the one of ours that a GPU runs."""
MEASURED_ON = "2 cores of an Intel Xeon (avx512_bf16, VNNI, AMX)"
"""Source: loadtest/LOG.md, "cost of a step by thread". Beam search, language model, an answer to every step."""
OWN_MEASURED_ON = "2 cores of an AMD EPYC (Zen 4: avx512_bf16, VNNI)"
"""The default network. Source: the shipped calibration; for the event loop, with its batches of 3.5 rows."""
RUN = {2: "one process: 350 streams, 400 with fast, clients on the same cores"}
"""What was run with the default network, by cores."""
RUN_PUBLISHED = {2: "one process: 165 streams of 26 million parameters, 78 of 109 million, clients on the same cores"}
"""Source: loadtest/results/peers_compiled_26m.md and peers_compiled_109m.md."""
RUN_ON_GPU = "an H100's engine alone: 4,000 streams"
"""Source: loadtest/results/gpu.md, live streams on one thread; p98 27.9 ms, of a larger network."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted streams of one machine: `bounds` are those that each part carries."""

    cores: int
    processes: Processes
    costs: StepCosts
    bounds: dict[str, int]
    pass_us: float = 0.0

    @property
    def streams(self) -> int:
        """Predicted streams: those of the part that carries the fewest."""
        return min(self.bounds.values())

    @property
    def bound_by(self) -> str:
        """The part, or the parts, that carry the fewest."""
        return " and ".join(part for part, streams in self.bounds.items() if streams == self.streams)

    @property
    def gpu(self) -> bool:
        """Whether a GPU runs the model."""
        return self.costs == ON_GPU

    @property
    def run(self) -> str:
        """What was ever run on such a machine, "nothing" for most."""
        if self.gpu:
            return RUN_ON_GPU
        return (RUN if self.costs == OWN else RUN_PUBLISHED).get(self.cores, "nothing")


def predict(
    cores: int, processes: Processes, costs: StepCosts = OWN, step_s: float = STEP_S, pass_us: float = 0.0
) -> Prediction:
    """Predict the streams of one machine: each part may be busy for the share of its time that `HEADROOM` leaves.

    `step_s`: audio of a step. `pass_us`: processor time of second passes for a step; they share all cores.
    """
    steps = steps_per_s(processes, costs, cores)
    if pass_us:
        loops, loop_us = max(1, processes.front_ends), costs.front_end_us if processes.front_ends else costs.loop_us
        engine_us = costs.engine_us if processes.front_ends else costs.model_us
        steps["passes"] = 1e6 * loops * threads_of(loops, cores) / pass_us
        steps["cores"] = 1e6 * cores / (loop_us + engine_us + costs.step_us + pass_us)
    bounds = {part: round(HEADROOM * step_s * each_s) for part, each_s in steps.items()}
    return Prediction(cores, processes, costs, bounds, pass_us)


HEADINGS = ("cores", "front ends", "engines × threads", "loops*", "engines*", "passes*", "streams*", "bound by*", "run")


def forecast(machines: Sequence[Prediction]) -> Output:
    """Return a table of machines, each figure marked as predicted, and the same as a document."""
    rows = [HEADINGS, *(_cells(machine) for machine in machines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    costs = machines[0].costs
    step, measured_on = _said_of_step(machines[0]), OWN_MEASURED_ON if costs == OWN else MEASURED_ON
    lines = (
        *table,
        f"* predicted, not measured: streams that each part carries with {HEADROOM:.0%} of its time. Costs of a step",
        f"  measured on {measured_on}: event loop {costs.front_end_us:g} µs in a front end,",
        f"  {costs.loop_us:g} in one process; engine {costs.engine_us:g}; {step}.",
        *([f"  Second passes {machines[0].pass_us:.0f}, by the shipped calibration."] if machines[0].pass_us else []),
        "  Beam search, an answer to every step.",
    )
    return Output(lines, json.dumps({"costs": asdict(costs), "machines": [_document(each) for each in machines]}))


def _said_of_step(machine: Prediction) -> str:
    if machine.gpu:
        return "the model runs on the GPU"
    given = "" if machine.costs == OWN else " as given"
    return f"model {machine.costs.step_us:g}{given}, divided by the threads"


def _document(machine: Prediction) -> dict[str, object]:
    return {
        "cores": machine.cores,
        "gpu": machine.gpu,
        **machine.processes._asdict(),
        "predicted": {"streams": machine.streams, "bound_by": machine.bound_by, "bounds": machine.bounds},
        "run": machine.run,
    }


def _cells(machine: Prediction) -> tuple[str, ...]:
    front_ends, engines, threads = machine.processes
    loops, engine = list(machine.bounds.values())[:2]
    return (
        f"{machine.cores} and a GPU" if machine.gpu else str(machine.cores),
        str(front_ends) if front_ends else "one process",
        f"{engines} × {threads}",
        f"{loops:,}",
        f"{engine:,}",
        f"{machine.bounds['passes']:,}" if machine.pass_us else "–",
        f"{machine.streams:,}",
        machine.bound_by,
        machine.run,
    )
