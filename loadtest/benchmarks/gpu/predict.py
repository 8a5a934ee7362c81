"""Times predicted before anything was measured: the cost model, its constants, and every figure that it foretells.

A prediction is computed from ceilings by a formula ("computed"), or was set as a bound before the first run ("target").
`python -m loadtest.benchmarks.gpu predict` prints them all from any machine. Times are µs unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from loadtest.benchmarks.gpu.networks import NETWORKS, step_flop, weight_bytes
from loadtest.benchmarks.gpu.records import Case, Results, Row
from model.config import ModelConfig

Kind = Literal["computed", "target"]
Bound = Literal["about", "at most", "at least"]

CLOCK_MHZ = 1_755.0  # of an H100 SXM under load
NODE_US = 1.3  # from one kernel of a graph to the next. Source: Hazy Research, "Look Ma, No Bubbles" (2025), on an H100
LAUNCH_US = 4.5  # of one torch call on the host
CACHE_TB_S = 5.5  # second-level cache to all multiprocessors. Source: Luo et al., arXiv 2402.13499
FIXED_CYCLES = 620  # of a frame: barrier, sum of eight partial sums, gates, publication
EXCHANGE_US = 0.15  # the least that a store and a load by way of the second-level cache take
MMA_CYCLES = 4 / 0.62  # of m16n8k16 on one of four schedulers: 4 at the dense peak, of which mma.sync reaches 62 %
WARPS, SCHEDULERS, TILE_UNITS, TILE_ROWS = 8, 4, 16, 8
CUDNN_FRAME_US = 10.0  # guessed, 8 to 12: cuDNN without its persistent algorithm launches some kernels a frame
EAGER_CALLS = {"tutti-small": 106, "ds2-5x1760": 148, "ds2-7x1760": 190}  # launches of a step, gather and copies too
HOST_BATCH_US, HOST_ROW_US = 90.0, 12.0  # Python of the model thread. Source: loadtest/LOG.md, on a slow core
MISSED = 1.3


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device can do: bytes and operations a second."""

    read_tb_s: float = 3.0  # an H100's memory, as a large copy reaches it
    product_tflop_s: float = 798.0  # fp16, a large product
    cache_tb_s: float = CACHE_TB_S

    @classmethod
    def of_device(cls, device: torch.device) -> Ceilings:
        """Those of the device at hand; of an H100 where it is not known."""
        return cls.of_name(torch.cuda.get_device_name(device) if device.type == "cuda" else "")

    @classmethod
    def of_name(cls, name: str) -> Ceilings:
        """Those of a device by its name."""
        return cls(read_tb_s=4.3) if "H200" in name else cls()


H100 = Ceilings()


@dataclass(frozen=True, slots=True)
class Prediction:
    """One figure: the value `name` of the row of `section` whose case has these entries."""

    section: str
    case: Case
    name: str
    predicted: float
    kind: Kind
    bound: Bound
    formula: str

    @property
    def key(self) -> str:
        """A name of the figure, under which a reason for missing it is kept."""
        parts = " ".join(f"{key}={value}" for key, value in self.case.items())
        return f"{self.section}: {parts}: {self.name}" + (", target" if self.kind == "target" else "")

    def missed(self, measured: float) -> bool:
        """Whether it is off by more than `MISSED`: to either side, or beyond its bound."""
        ratio = measured / self.predicted
        too_high, too_low = ratio > MISSED, ratio < 1 / MISSED
        return {"about": too_high or too_low, "at most": too_high, "at least": too_low}[self.bound]


def step_roofline_us(config: ModelConfig, rows: int, ceilings: Ceilings = H100) -> float:
    """The least time of a step: its weights from memory once, or its operations. A small network stays in the cache."""
    bytes_ = weight_bytes(config)
    rate = ceilings.cache_tb_s if bytes_ < 32e6 else ceilings.read_tb_s
    return max(bytes_ / rate / 1e6, rows * step_flop(config) / ceilings.product_tflop_s / 1e6)


def frame_us(hidden: int, rows: int, ceilings: Ceilings = H100) -> float:
    """One frame of the persistent recurrence: products, the exchange of the state, and a fixed part.

    Every block reads all of the state, 4 bytes of exchange words a half, and multiplies three tiles of 16 units.
    """
    blocks = hidden // TILE_UNITS
    tiles = -(-rows // TILE_ROWS)
    products = 3 * -(-(hidden // 16) // WARPS) * (WARPS // SCHEDULERS) * tiles
    exchange = max(EXCHANGE_US, blocks * hidden * 4 * rows / ceilings.cache_tb_s / 1e6)
    return FIXED_CYCLES / CLOCK_MHZ + products * MMA_CYCLES / CLOCK_MHZ + exchange


def layer_us(hidden: int, rows: int, frames: int, ceilings: Ceilings = H100) -> float:
    """One launch of the persistent recurrence: its weights from memory once, then frame after frame."""
    return NODE_US + 6 * hidden**2 / ceilings.read_tb_s / 1e6 + frames * frame_us(hidden, rows, ceilings)


def nodes(config: ModelConfig, rung: str, steps: int = 1) -> int:
    """Kernels of a step: 11 around the layers, two a layer; in the rung `graph` two more a layer and frame."""
    frames = steps * config.frames_per_step
    return 11 + 2 * config.layers + (2 * config.layers * frames if rung == "graph" else 0)


def step_us(config: ModelConfig, rung: str, rows: int, steps: int = 1, ceilings: Ceilings = H100) -> float:
    """A step as a graph: the roofline, the nodes, and what the recurrence adds to them.

    Without the persistent kernel the recurrent weights are read from the cache again for every frame but the first.
    """
    frames = steps * config.frames_per_step
    total = step_roofline_us(config, rows * steps, ceilings) + NODE_US * nodes(config, rung, steps)
    if rung == "graph":
        return total + (frames - 1) * config.layers * 6 * config.hidden**2 / ceilings.cache_tb_s / 1e6
    return total + frames * config.layers * frame_us(config.hidden, rows, ceilings)


def batch_rows(streams: int, fixed_us: float, row_us: float, step_s: float = 0.08) -> float:
    """Mean rows of eager batches: steps come at rate λ, a batch takes fixed + row * rows: b = λa / (1 - λc)."""
    rate = streams / step_s / 1e6
    return rate * fixed_us / (1 - rate * row_us)


def predictions(ceilings: Ceilings = H100) -> list[Prediction]:
    """All of them, in the order of the sections."""
    return [
        *_probe(ceilings),
        *_recurrence(ceilings),
        *_products(ceilings),
        *_steps(ceilings),
        *_streams(),
    ]


def _probe(ceilings: Ceilings) -> Iterator[Prediction]:
    read, about = ceilings.read_tb_s * 1e3, "read off such a device before"
    yield Prediction("probe", {"what": "copy"}, "gb_s", read, "computed", "about", about)
    yield Prediction("probe", {"what": "read"}, "gb_s", read, "computed", "about", about)
    yield Prediction("probe", {"what": "product"}, "tflop_s", ceilings.product_tflop_s, "computed", "about", about)
    shared = ceilings.cache_tb_s * 1e3
    yield Prediction("probe", {"what": "one buffer by all"}, "gb_s", shared, "computed", "about", "arXiv 2402.13499")
    yield Prediction("probe", {"what": "graph node"}, "us", NODE_US, "computed", "about", "Hazy Research 2025")
    yield Prediction("probe", {"what": "launch and wait"}, "launch_us", 10.0, "computed", "about", "one graph launch")


def _recurrence(ceilings: Ceilings) -> Iterator[Prediction]:
    for hidden in (1_760, 416, 1_024, 2_048):
        for rows in (1, 2, 4, 8, 16):
            for frames in (2, 4, 16, 64):
                case: Case = {"hidden": hidden, "how": "persistent", "frames": frames, "rows": rows}
                formula = "node + weights / memory + frames * (620 cycles + products + exchange)"
                value = layer_us(hidden, rows, frames, ceilings)
                yield Prediction("recurrence", case, "us", value, "computed", "about", formula)
    for rows, frames in ((8, 2), (1, 16)):
        case = {"hidden": 1_760, "how": "whole layer", "frames": frames, "rows": rows}
        value = layer_us(1_760, rows, frames, ceilings) + 6 * 1_760**2 / ceilings.read_tb_s / 1e6
        yield Prediction("recurrence", case, "us", value, "computed", "about", "as above, W from memory too")
    for frames in (2, 16):
        case = {"hidden": 1_760, "how": "cuDNN layer", "frames": frames, "rows": 8}
        guess = frames * CUDNN_FRAME_US + 2 * 6 * 1_760**2 / ceilings.read_tb_s / 1e6
        yield Prediction("recurrence", case, "us", guess, "computed", "about", "10 a frame, guessed; all weights once")
    case = {"hidden": 1_760, "how": "persistent", "frames": 256, "rows": 4}
    yield Prediction("recurrence", case, "tflop_s", 50.0, "target", "at least", "18 times the 2.8 of 2016")


def _products(ceilings: Ceilings) -> Iterator[Prediction]:
    config = NETWORKS["ds2-7x1760"]
    hidden = config.hidden
    for what, (rows, depth) in {"input": (3 * hidden, hidden), "dense": (hidden, hidden)}.items():
        for columns in (2, 16, 64):
            case: Case = {"network": config.name, "product": what, "columns": columns, "how": "ours"}
            value = NODE_US + 2 * rows * depth / ceilings.read_tb_s / 1e6
            yield Prediction("products", case, "us", value, "computed", "about", "node + weights / memory")


def _steps(ceilings: Ceilings) -> Iterator[Prediction]:
    for name in ("ds2-7x1760", "ds2-5x1760", "tutti-small"):
        config = NETWORKS[name]
        for rung in ("persistent", "graph"):
            for rows in (1, 2, 4, 8, 16, 32, 64):
                case: Case = {"network": name, "rung": rung, "rows": rows}
                formula = "roofline + nodes + " + ("recurrence" if rung == "persistent" else "U again from the cache")
                value = step_us(config, rung, rows, ceilings=ceilings)
                yield Prediction("steps", case, "us", value, "computed", "about", formula)
        case = {"network": name, "rung": "eager", "rows": 1}
        calls = EAGER_CALLS[name]
        yield Prediction("steps", case, "us", calls * LAUNCH_US, "computed", "about", f"{calls} launches of 4.5")
    config = NETWORKS["ds2-7x1760"]
    for steps in (4, 8):
        case = {"network": config.name, "rung": "persistent", "rows": 8, "steps": steps}
        value = step_us(config, "persistent", 8, steps, ceilings)
        yield Prediction("steps", case, "us", value, "computed", "about", "as a step, of so many frames")
    for rung, at_most in (("graph", 330.0), ("persistent", 160.0)):
        case = {"network": config.name, "rung": rung, "rows": 8}
        yield Prediction("steps", case, "us", at_most, "target", "at most", "set before the first run")
    case = {"network": "tutti-small", "rung": "persistent", "rows": 8}
    yield Prediction("steps", case, "us", 40.0, "target", "at most", "set before the first run")


def _streams() -> Iterator[Prediction]:
    at_most = {1: {"ms_p50": 0.30, "ms_p98": 0.40}, 10: {"ms_p98": 0.70}, 100: {"ms_p98": 0.80}}
    at_most |= {1_000: {"ms_p98": 1.2}, 4_000: {"ms_p98": 3.0}}
    for streams, bounds in at_most.items():
        for name, value in bounds.items():
            case: Case = {"network": "ds2-7x1760", "rung": "persistent", "streams": streams}
            formula = "a hundredth of the 70 ms of 2015" if streams == 10 else "set before the first run"
            yield Prediction("streams", case, name, value, "target", "at most", formula)
    case = {"network": "ds2-7x1760", "rung": "persistent", "streams": 4_000}
    rows = batch_rows(4_000, 150.0 + HOST_BATCH_US, 1.1 + HOST_ROW_US)
    yield Prediction("streams", case, "rows_mean", rows, "computed", "about", "λa / (1 - λc), a = 240, c = 13.1")


@dataclass(frozen=True, slots=True)
class Compared:
    """A prediction, and the row that has the figure; None where it was never measured."""

    prediction: Prediction
    row: Row | None = None

    @property
    def measured(self) -> float | None:
        """The figure."""
        return None if self.row is None else float(self.row.values[self.prediction.name] or 0.0)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return None if self.measured is None else self.measured / self.prediction.predicted

    @property
    def missed(self) -> bool:
        """Whether the figure is off by more than `MISSED`."""
        return self.measured is not None and self.prediction.missed(self.measured)


def compared(results: Results) -> list[Compared]:
    """Every prediction, for the device of the last run, with what was measured."""
    return [Compared(each, _row(results, each)) for each in predictions(ceilings_of(results))]


def ceilings_of(results: Results) -> Ceilings:
    """Those of the device of the last run; of an H100 where there is none."""
    return Ceilings.of_name(str(results.runs[-1].machine.get("device", ""))) if results.runs else H100


def _row(results: Results, prediction: Prediction) -> Row | None:
    """The latest row whose case has the prediction's entries and, of a step, no others."""
    case = ({"steps": None, "how": None} if prediction.section == "steps" else {}) | prediction.case
    for row in reversed(results.latest(prediction.section)):
        number = row.values.get(prediction.name)
        measured = isinstance(number, int | float) and not isinstance(number, bool)
        if measured and all(row.case.get(key) == value for key, value in case.items()):
            return row
    return None
