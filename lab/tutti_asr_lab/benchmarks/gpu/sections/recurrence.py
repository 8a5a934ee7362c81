"""The recurrence of one layer: our persistent kernel, cuDNN as called by torch, and torch's loop in a graph.

Weights are read from memory, not from the cache: several copies of the layer are used in turn, except in warm rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from model.gpu.cuda.layer import layer_layout
from model.gpu.cuda.pack import fits_layer, has_layout
from model.torch_network.network import GRULayer
from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.subjects import checked, cudnn_layer, recurrence, whole_layers
from tutti_asr_lab.benchmarks.gpu.timing import Work, captured, device_time

PERSISTENT, WHOLE, CUDNN, LOOP = "persistent", "whole layer", "cuDNN layer", "torch loop"
CACHE_BYTES = 50 << 20  # L2 cache of an H100: the copies together must be larger
MOST_COPIES = 16


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield cases by hidden size for our kernel, cuDNN and torch; one long sequence at batch 4 comes last."""
    scale, subjects = context.scale, _subjects(context.device)
    for hidden in scale.hidden:
        for how in subjects:
            for frames in scale.frames:
                for rows in scale.recurrence_rows:
                    if how == WHOLE and not (has_layout(hidden, layer_layout) and fits_layer(rows, frames)):
                        continue  # uses a separate recurrence
                    case: Case = {"hidden": hidden, "how": how, "frames": frames, "rows": rows}
                    yield case, partial(_time, context, case, _copies(context, int(case["hidden"] or 0)))
        case = {"hidden": hidden, "how": subjects[0], "frames": scale.frames[0], "rows": 1, "weights": "warm"}
        yield case, partial(_time, context, case, 1)
    case = {"hidden": scale.hidden[0], "how": subjects[0], "frames": 4 * max(scale.frames), "rows": 4}
    yield case, partial(_time, context, case, _copies(context, scale.hidden[0]))


def _subjects(device: torch.device) -> tuple[str, ...]:
    return (PERSISTENT, WHOLE, CUDNN, LOOP) if device.type == "cuda" else (LOOP,)


def _copies(context: Context, hidden: int) -> int:
    """Return the number of copies whose weights are twice the cache, at most `MOST_COPIES`."""
    layer_bytes = 6 * hidden**2  # U in fp16
    return min(MOST_COPIES, max(context.scale.copies, -(-2 * CACHE_BYTES // layer_bytes)))


def _time(context: Context, case: Case, copies: int) -> Values:
    """Measure the device time of one layer over `frames` frames, by a graph that runs each copy once."""
    hidden, frames, rows, how = (case[name] for name in ("hidden", "frames", "rows", "how"))
    assert isinstance(hidden, int)
    assert isinstance(frames, int)
    assert isinstance(rows, int)
    works = _MAKERS[str(how)](context.device, hidden, frames, rows, copies)

    def all_copies() -> None:
        for work in works:
            work()

    replay: Work = all_copies
    captures = True
    try:
        replay = captured(all_copies, context.device)
    except RuntimeError:
        if how != CUDNN:
            raise
        captures = False  # the library does not support capture: time the torch calls
    took = device_time(replay, context.device, per_call=copies)
    if how in {PERSISTENT, WHOLE}:
        made = _layers if how == PERSISTENT else _whole_layers
        for layer in made(context.device, hidden, copies):
            checked(layer.workspace)
    flop = 2 * 3 * hidden**2 * frames * rows
    return took.values() | {
        "us_a_frame": round(took.median_us / frames, 3),
        "tflop_s": round(flop / took.median_us / 1e6, 3),
        "copies": copies,
        "graph": captures,
    }


def _draw(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, device=device).to(torch.float16 if device.type == "cuda" else torch.float32)


@cache
def _layers(device: torch.device, hidden: int, copies: int) -> list[Any]:
    """Return persistent kernels of random layers, cached for all rows and frames."""
    scale = hidden**-0.5
    return [
        recurrence(_draw(device, 3 * hidden, hidden) * scale, torch.randn(3 * hidden, device=device) * 0.1, device)
        for _ in range(copies)
    ]


def _persistent(device: torch.device, hidden: int, frames: int, rows: int, copies: int) -> list[Work]:
    """Return a call of the recurrence alone, with given input gates."""
    gates, x = _draw(device, rows, frames, 3 * hidden), _draw(device, rows, frames, hidden)
    shared = torch.empty_like(x), *_states(device, hidden, rows)
    return [partial(layer.enqueue, gates, x, *shared, frames) for layer in _layers(device, hidden, copies)]


def _states(device: torch.device, hidden: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return slab, read index, write index and number of rows."""
    index = torch.arange(rows, dtype=torch.int32, device=device)
    slab, count = _draw(device, rows + 2, hidden), torch.full((1,), rows, dtype=torch.int32, device=device)
    return slab, index, index, count


@cache
def _whole_layers(device: torch.device, hidden: int, copies: int) -> list[Any]:
    return whole_layers([_layer(device, hidden) for _ in range(copies)], device)


def _whole(device: torch.device, hidden: int, frames: int, rows: int, copies: int) -> list[Work]:
    """Return a call of normalization, input product and recurrence in one launch."""
    gates, x = _draw(device, rows, frames, 3 * hidden), _draw(device, rows, frames, hidden)
    error = torch.zeros(1, dtype=torch.int32, device=device)
    shared = torch.empty_like(x), gates, *_states(device, hidden, rows), error, frames, None
    return [partial(layer.enqueue, x, *shared) for layer in _whole_layers(device, hidden, copies)]


@cache
def _cudnn_layers(device: torch.device, hidden: int, copies: int) -> list[torch.nn.GRU]:
    return [cudnn_layer(hidden, device) for _ in range(copies)]


def _cudnn(device: torch.device, hidden: int, frames: int, rows: int, copies: int) -> list[Work]:
    x, state = _draw(device, rows, frames, hidden), _draw(device, 1, rows, hidden)
    return [partial(layer, x, state) for layer in _cudnn_layers(device, hidden, copies)]


def _layer(device: torch.device, hidden: int) -> GRULayer:
    layer = GRULayer(1, 1)  # small, since initializing the full size would take longer than the measurement
    layer.hidden = hidden
    layer.input, layer.recurrent = (torch.nn.Linear(hidden, 3 * hidden, device=device) for _ in range(2))
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    return layer.to(device=device, dtype=dtype).requires_grad_(False)


@cache
def _loops(device: torch.device, hidden: int, copies: int) -> list[GRULayer]:
    return [_layer(device, hidden) for _ in range(copies)]


def _loop(device: torch.device, hidden: int, frames: int, rows: int, copies: int) -> list[Work]:
    x, state = _draw(device, rows, frames, hidden), _draw(device, rows, hidden)
    return [partial(layer.steps, x, state) for layer in _loops(device, hidden, copies)]


_MAKERS: dict[str, Callable[..., list[Work]]] = {
    PERSISTENT: _persistent,
    WHOLE: _whole,
    CUDNN: _cudnn,
    LOOP: _loop,
}
