"""Choice of the fp16 kernels for a device (the rung), and the slot model with these kernels."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from model.errors import PrecisionError
from model.gpu.slots import RecordedSlots, RecordedStep
from model.torch_network.network import GRULayer, Network
from model.torch_network.slabs import RowSpec

if TYPE_CHECKING:
    from model.gpu.cuda.layer import PersistentLayer
    from model.gpu.cuda.persistent import PersistentGru

RUNGS = ("auto", "persistent", "graph", "eager")
"""`eager`: calls of torch. `graph`: kernels for small batches, recorded as one CUDA graph. `persistent`: the
same, with one kernel per recurrent layer whose weights stay on the chip. `auto`: the last one that runs here."""


def choose_rung(rung: str, network: Network, device: torch.device) -> str:
    """Resolve `auto` to a rung. Raises: PrecisionError if the rung is unknown, or does not run here."""
    if rung not in RUNGS:
        raise PrecisionError(f"rung must be one of {', '.join(RUNGS)}, not {rung!r}")
    if device.type != "cuda":
        return "graph" if rung == "auto" else rung  # on a CPU, in tests, the reference replaces the kernels
    if rung == "auto":
        if find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
            return "eager"
        return "persistent" if _persistent_fits(network, device) else "graph"
    if rung != "eager" and find_spec("triton") is None:
        raise PrecisionError(f"rung {rung} needs Triton, which is part of CUDA builds of torch: pip install triton")
    if rung == "persistent" and not _persistent_fits(network, device):
        raise PrecisionError(f"rung persistent does not support hidden size {network.config.hidden} on this GPU")
    return rung


def recorded_slots(network: Network, rung: str, device: torch.device, *, capacity: int, largest: int) -> RecordedSlots:
    """Return the slot model of a network in fp16; on a CPU it uses the steps of the reference."""

    def make_step(slabs: Mapping[str, Tensor], rows: int, steps: int) -> RecordedStep:
        if device.type != "cuda":
            from model.gpu.reference import ReferenceStep

            return ReferenceStep(network, slabs)
        from model.gpu.triton.step import TritonStep

        layers, recurrence = None, None
        if rung == "persistent":
            layers, recurrence = persistent_parts(network, device)
        return TritonStep(network, slabs, largest_rows=rows, largest_steps=steps, recurrence=recurrence, layers=layers)

    config = network.config
    return RecordedSlots(
        make_step,
        inputs=RowSpec((config.step_samples,), torch.int16),
        outputs=RowSpec((config.frames_per_step, config.outputs), torch.float32),
        states={name: RowSpec(shape, dtype) for name, (shape, dtype) in network.state_shapes().items()},
        device=device,
        capacity=capacity,
        largest=largest,
    )


def persistent_parts(
    network: Network, device: torch.device
) -> tuple[list[PersistentLayer] | None, list[PersistentGru]]:
    """Return layers of one launch for small batches, if they fit a multiprocessor, and recurrences for the others."""
    from model.gpu.cuda.layer import PersistentLayer, layer_fits, layer_layout
    from model.gpu.cuda.pack import layout_of
    from model.gpu.cuda.persistent import PersistentGru, Workspace

    hidden, grus = network.config.hidden, [cast(GRULayer, gru) for gru in network.grus]
    shared = Workspace(layout_of(hidden), device)
    recurrences = [PersistentGru(gru.recurrent.weight, gru.recurrent.bias, device, shared) for gru in grus]
    if not layer_fits(hidden, torch.cuda.get_device_properties(device)):
        return None, recurrences
    shared = Workspace(layer_layout(hidden)[0], device)
    norms = [cast(nn.LayerNorm, norm) for norm in network.norms]
    return [PersistentLayer(norm, gru, device, shared) for norm, gru in zip(norms, grus, strict=True)], recurrences


def _persistent_fits(network: Network, device: torch.device) -> bool:
    from model.gpu.cuda.persistent import fits

    return fits(network.config.hidden, torch.cuda.get_device_properties(device))
