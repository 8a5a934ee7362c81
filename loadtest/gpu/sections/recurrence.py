"""The recurrence of one layer: our persistent kernel, cuDNN as torch calls it, and torch's loop in a graph.

Weights come from memory and not from the cache: several copies of the layer are taken in turn, unless a row says warm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from loadtest.gpu.records import Case, Values
from loadtest.gpu.scale import Context
from loadtest.gpu.subjects import cudnn_layer, recurrence
from loadtest.gpu.timing import Work, captured, device_time
from model.network import GRULayer

PERSISTENT, PERSISTENT_LAYER, CUDNN, LOOP = "persistent", "persistent and input product", "cuDNN layer", "torch loop"
CACHE_BYTES = 50 << 20  # second-level cache of an H100: copies in turn must be larger
MOST_COPIES = 16


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """By hidden size: the kernel beside what torch offers. One long sequence at batch 4, as in 2016, comes last."""
    scale, subjects = context.scale, _subjects(context.device)
    for hidden in scale.hidden:
        for how in subjects:
            for frames in scale.frames:
                for rows in scale.recurrence_rows:
                    case: Case = {"hidden": hidden, "how": how, "frames": frames, "rows": rows}
                    yield case, partial(_time, context, case, _copies(context, int(case["hidden"] or 0)))
        case = {"hidden": hidden, "how": subjects[0], "frames": scale.frames[0], "rows": 1, "weights": "warm"}
        yield case, partial(_time, context, case, 1)
    case = {"hidden": scale.hidden[0], "how": subjects[0], "frames": 4 * max(scale.frames), "rows": 4}
    yield case, partial(_time, context, case, _copies(context, scale.hidden[0]))


def _subjects(device: torch.device) -> tuple[str, ...]:
    return (PERSISTENT, PERSISTENT_LAYER, CUDNN, LOOP) if device.type == "cuda" else (LOOP,)


def _copies(context: Context, hidden: int) -> int:
    """So many that their weights are twice the cache, within reason; a layer of 416 stays in the cache when serving."""
    layer_bytes = 6 * hidden**2  # U in fp16
    return min(MOST_COPIES, max(context.scale.copies, -(-2 * CACHE_BYTES // layer_bytes)))


def _time(context: Context, case: Case, copies: int) -> Values:
    """Device time of one layer over `frames` frames, from a graph that runs each copy once."""
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
        captures = False  # a library that refuses to be captured is timed as torch calls it
    took = device_time(replay, context.device, per_call=copies)
    if how in {PERSISTENT, PERSISTENT_LAYER}:
        for layer in _layers(context.device, hidden, copies):
            layer.check()
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
    """Persistent kernels of random layers; made once for all rows and frames."""
    scale = hidden**-0.5
    return [
        recurrence(_draw(device, 3 * hidden, hidden) * scale, torch.randn(3 * hidden, device=device) * 0.1, device)
        for _ in range(copies)
    ]


@cache
def _products(device: torch.device, hidden: int, copies: int) -> list[tuple[Tensor, Tensor]]:
    return [(_draw(device, 3 * hidden, hidden) * hidden**-0.5, _draw(device, 3 * hidden) * 0.1) for _ in range(copies)]


def _persistent(
    device: torch.device, hidden: int, frames: int, rows: int, copies: int, *, with_product: bool = False
) -> list[Callable[[], object]]:
    """Work of each copy; with the input product by cuBLAS where it is to be compared with cuDNN's whole layer."""
    gates, x = _draw(device, rows, frames, 3 * hidden), _draw(device, rows, frames, hidden)
    out = torch.empty_like(x)
    slab = torch.zeros(rows + 2, hidden, dtype=x.dtype, device=device)
    index = torch.arange(rows, dtype=torch.int32, device=device)
    count = torch.full((1,), rows, dtype=torch.int32, device=device)
    layers = _layers(device, hidden, copies)
    products = _products(device, hidden, copies) if with_product else [None] * copies

    def work(layer: Any, product: tuple[Tensor, Tensor] | None) -> None:
        if product is not None:
            flat = gates.view(-1, 3 * hidden)
            torch.addmm(product[1], x.view(-1, hidden), product[0].t(), out=flat)
        layer.enqueue(gates, x, out, slab, index, index, count, frames)

    return [partial(work, *pair) for pair in zip(layers, products, strict=True)]


def _persistent_layer(device: torch.device, hidden: int, frames: int, rows: int, copies: int) -> list[Any]:
    return list(_persistent(device, hidden, frames, rows, copies, with_product=True))


@cache
def _cudnn_layers(device: torch.device, hidden: int, copies: int) -> list[torch.nn.GRU]:
    return [cudnn_layer(hidden, device) for _ in range(copies)]


def _cudnn(device: torch.device, hidden: int, frames: int, rows: int, copies: int) -> list[Callable[[], object]]:
    x, state = _draw(device, rows, frames, hidden), _draw(device, 1, rows, hidden)
    return [partial(layer, x, state) for layer in _cudnn_layers(device, hidden, copies)]


@cache
def _loops(device: torch.device, hidden: int, copies: int) -> list[GRULayer]:
    made = []
    for _ in range(copies):
        layer = GRULayer(1, 1)  # its own initialisation would take longer than the measurement
        layer.hidden = hidden
        layer.input, layer.recurrent = (torch.nn.Linear(hidden, 3 * hidden, device=device) for _ in range(2))
        dtype = torch.float16 if device.type == "cuda" else torch.float32
        made.append(layer.to(device=device, dtype=dtype).requires_grad_(False))
    return made


def _loop(device: torch.device, hidden: int, frames: int, rows: int, copies: int) -> list[Callable[[], object]]:
    x, state = _draw(device, rows, frames, hidden), _draw(device, rows, hidden)
    return [partial(layer.steps, x, state) for layer in _loops(device, hidden, copies)]


_MAKERS: dict[str, Callable[..., list[Callable[[], object]]]] = {
    PERSISTENT: _persistent,
    PERSISTENT_LAYER: _persistent_layer,
    CUDNN: _cudnn,
    LOOP: _loop,
}
