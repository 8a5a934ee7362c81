"""The recurrence of one layer in training: gradients of the persistent kernels, and time of forward and backward pass.

On a CPU, in a dry run, torch's scan takes the place of the kernels and of cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import cast

import torch
from torch import Tensor

from model.gpu.cuda.pack import backward_layout_of, has_layout
from model.gpu.training import PersistentRecurrence, largest_error, launched_kernels
from model.torch_network.network import GRULayer
from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.timing import device_time

PERSISTENT, LIBRARY = "persistent", "torch"  # as in `model.gpu.training`
FRAMES = 256  # 10 s
ROWS = (4, 16, 64)
WIDTH = 64  # of the layer's input: the recurrence is measured, not the input product


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield cases: gradients against the scan and from run to run, then times, by hidden size."""
    on_gpu = context.device.type == "cuda"
    sizes = [hidden for hidden in context.scale.hidden if has_layout(hidden, backward_layout_of)]
    for hidden in sizes if on_gpu else ():
        yield {"what": "gradients", "hidden": hidden}, partial(_gradients, context.device, hidden)
    frames, rows = (FRAMES, ROWS) if on_gpu else (max(context.scale.frames), context.scale.recurrence_rows)
    for hidden in sizes:
        for how in (PERSISTENT, LIBRARY) if on_gpu else (LIBRARY,):
            for count in rows:
                case: Case = {"hidden": hidden, "how": how, "frames": frames, "rows": count}
                yield case, partial(_time, context.device, case)


@cache
def _recurrence(device: torch.device, hidden: int) -> PersistentRecurrence:
    return PersistentRecurrence(launched_kernels(hidden, device))


def _gradients(device: torch.device, hidden: int) -> Values:
    """Return the largest error against the scan in fp32, and whether ten more passes give the same bits."""
    recurrence = _recurrence(device, hidden)
    with torch.inference_mode(mode=False), torch.enable_grad():
        error = largest_error(recurrence.kernels, hidden, device)
        passes = [_pass(*_layer(device, hidden, PERSISTENT, 64, 32)) for _ in range(11)]
    recurrence.check()
    equal = all(torch.equal(a, b) for other in passes[1:] for a, b in zip(passes[0], other, strict=True))
    return {"largest_error": error, "equal": equal}


def _layer(device: torch.device, hidden: int, how: str, frames: int, rows: int) -> tuple[GRULayer, Tensor, Tensor]:
    """Return a layer, inputs (B, T, WIDTH) and output gradients (B, T, H); always the same numbers."""
    torch.manual_seed(7)
    layer = GRULayer(WIDTH, WIDTH)  # small, since initializing the full size would take longer than the measurement
    layer.hidden = hidden
    layer.input, layer.recurrent = torch.nn.Linear(WIDTH, 3 * hidden), torch.nn.Linear(hidden, 3 * hidden)
    layer = layer.to(device)
    if how == PERSISTENT:
        layer.recurrence = _recurrence(device, hidden)
    return layer, torch.randn(rows, frames, WIDTH, device=device), torch.randn(rows, frames, hidden, device=device)


def _pass(layer: GRULayer, x: Tensor, outputs: Tensor) -> list[Tensor]:
    """Return outputs and gradients of all parameters, with products in bf16 on a GPU."""
    state = torch.zeros(len(x), layer.hidden, device=x.device)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        out, _ = layer(x, state)
    return [out, *torch.autograd.grad(out, list(layer.parameters()), outputs.to(out.dtype))]


def _time(device: torch.device, case: Case) -> Values:
    """Measure forward and backward pass together; not in a graph, as in training."""
    hidden, frames, rows = (cast(int, case[name]) for name in ("hidden", "frames", "rows"))
    with torch.inference_mode(mode=False), torch.enable_grad():
        given = _layer(device, hidden, str(case["how"]), frames, rows)
        took = device_time(partial(_pass, *given), device, groups=10)
    if case["how"] == PERSISTENT:
        _recurrence(device, hidden).check()
    flop = 3 * 2 * 3 * hidden**2 * frames * rows  # U h, U^T dp, and the gradient of U
    return took.values() | {
        "us_a_frame": round(took.median_us / frames, 3),
        "tflop_s": round(flop / took.median_us / 1e6, 3),
    }
