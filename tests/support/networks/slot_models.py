"""Every kind of slot model, for tests that hold for all of them (`SLOT_MODELS`), and small torch models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import torch
from torch import Tensor

from batching.slot_model import SlotModel
from model.gpu.slots import RecordedSlots, recorded_slots
from model.torch_model import TorchModel
from model.torch_network.network import cast
from model.torch_network.slabs import RowSpec
from model.torch_network.slots import TorchSlots
from model.vad.silero import SileroVad
from tests.support.needs import need_precision
from tests.support.networks.example_models import captioner, forecaster, language_model
from tests.support.networks.published import model_of
from tests.support.networks.quantized_networks import random_slots
from tests.support.networks.recorded_toys import recorded
from tests.support.servers.fakes import ChunkedModel, EchoModel, OverlappedChunksModel, OverlappedModel
from tutti_asr_lab.gpu.reference import ReferenceStep

MakeSlots = Callable[[int, int], SlotModel]
"""make(capacity, largest batch)"""


class EchoStep:
    """`EchoModel` as a torch step function; it raises for a negative first input."""

    def __init__(self, samples: int = 4, min_rows: int = 1) -> None:
        self.min_rows = min_rows
        self.device = torch.device("cpu")
        self.input_spec = RowSpec((samples,), torch.int16)
        self.state_spec: Mapping[str, RowSpec] = {
            "first": RowSpec((1,), torch.int64),
            "count": RowSpec((), torch.int64),
        }
        self.seen: list[list[int]] = []  # first inputs of each call so far

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, samples) int16 -> (B, 2) int64. Raises: ArithmeticError."""
        self.seen.append(inputs[:, 0].tolist())
        if (inputs[:, 0] < 0).any():
            raise ArithmeticError("negative")
        fresh = state["count"][:, None] == 0  # (B, 1)
        first = torch.where(fresh, inputs[:, :1].long(), state["first"])
        count = state["count"] + 1
        return torch.cat([first, count[:, None]], dim=1), {"first": first, "count": count}


class TinyGru:
    """A real recurrent network in fp32: below 16 rows a row of a product depends on the number of rows."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.cell = torch.nn.GRUCell(24, 48)
        self.head = torch.nn.Linear(48, 16)
        self.min_rows = 4
        self.device = torch.device("cpu")
        self.input_spec = RowSpec((24,), torch.float32)
        self.state_spec = {"hidden": RowSpec((48,), torch.float32)}

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, 24) float32 -> (B, 16) float32."""
        hidden = self.cell(inputs, state["hidden"])
        return self.head(hidden), {"hidden": hidden}


@cache
def _acoustic(precision: str) -> TorchModel:
    need_precision(precision)
    return TorchModel.random(precision=precision)


def _reference(capacity: int, largest: int) -> RecordedSlots:
    """What a GPU computes, by the contract of its kernels."""
    device = torch.device("cpu")
    network = cast(TorchModel.random(hidden=32, conv_channels=16, layers=1, lookahead=2).network, "fp16", device)
    steps = partial(ReferenceStep, network)
    return recorded_slots(
        network, device, capacity=capacity, largest=largest, make_step=lambda slabs, _rows, _steps: steps(slabs)
    )


SLOT_MODELS: dict[str, MakeSlots] = {
    "numpy": EchoModel,
    "overlapped": OverlappedModel,
    "chunked": ChunkedModel,
    "overlapped, chunked": OverlappedChunksModel,
    "torch": lambda capacity, largest: TorchSlots(EchoStep(min_rows=3), capacity=capacity, largest=largest),
    "torch, acoustic": lambda c, n: TorchSlots(_acoustic("fp32"), capacity=c, largest=n),
    "recorded fp32": lambda c, n: _acoustic("fp32").slots(capacity=c, largest=n),
    "recorded bf16": lambda c, n: _acoustic("bf16").slots(capacity=c, largest=n),
    "tiles": lambda c, n: _acoustic("fp32").slots(capacity=c, largest=n, tile_rows=16),
    "recorded in sizes": lambda c, n: recorded(EchoStep(min_rows=3), RowSpec((2,), torch.int64), c, n),
    "recorded in sizes, GRU": lambda c, n: recorded(TinyGru(), RowSpec((16,), torch.float32), c, n),
    "what a GPU computes": _reference,
    "int8": lambda c, n: random_slots(capacity=c, largest=n),
    "silero-vad": lambda c, n: SileroVad.load().slots(capacity=c, largest=n),
    "published, CTC": lambda c, n: model_of("t-one-ctc").slots(capacity=c, largest=n, tile_rows=1),
    "published, states on two axes": lambda c, n: model_of("zipformer2-ctc").slots(capacity=c, largest=n, tile_rows=1),
    "published, transducer": lambda c, n: model_of("nemo-transducer").slots(capacity=c, largest=n, tile_rows=1),
    "example, typing": lambda c, n: language_model().slots(c, n),
    "example, captions": lambda c, n: captioner().slots(c, n),
    "example, forecast": lambda c, n: forecaster().slots(c, n),
}
