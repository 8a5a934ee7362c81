"""Capacity planning: the real `Batcher` on a virtual clock with measured service times. Start with `simulator.py`.

It knows no audio, socket or metric; the cost of the rest of the server is a few measured times.
"""

from batching.simulation.calibration import Calibration, Client, Interference, Overheads, Provenance, shipped
from batching.simulation.outcome import Outcome, Percentiles
from batching.simulation.planning import Plan, Point, Serving, capacity, curve, plan, run_load
from batching.simulation.service_table import ServiceTable
from batching.simulation.simulator import Simulator
from batching.simulation.workload import Churn, Live, Uploads, Workload

__all__ = [
    "Calibration",
    "Churn",
    "Client",
    "Interference",
    "Live",
    "Outcome",
    "Overheads",
    "Percentiles",
    "Plan",
    "Point",
    "Provenance",
    "ServiceTable",
    "Serving",
    "Simulator",
    "Uploads",
    "Workload",
    "capacity",
    "curve",
    "plan",
    "run_load",
    "shipped",
]
