"""Ceilings of the device: bandwidth of memory and cache, arithmetic rate, and times of a launch, a node and a wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.timing import captured, device_event, device_time, host_times, percentile, synchronize

WORD_BYTES = 4
SHARED_BYTES = 64 << 10  # state of 16 rows of 1,760 units, which every multiprocessor reads in each frame
NODES = 1_000
HOST_CALLS = 500
STEP_SAMPLES = 1_280


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield a case per ceiling; those that need a GPU are omitted on a CPU."""
    for name, probe in (("copy", _copy), ("product", _product), ("launch and wait", _launch)):
        yield {"what": name}, partial(probe, context)
    if context.device.type != "cuda":
        return
    for name, probe in (
        ("read", _read),
        ("read from the cache", _read_cached),
        ("one buffer by all", _read_shared),
        ("graph node", _node),
        ("graph node of torch", _torch_node),
    ):
        yield {"what": name}, partial(probe, context)
    for rows in (1, 8, 128):
        yield {"what": "host copies", "rows": rows}, partial(_host_copies, context, rows)
        yield {"what": "mapped reads", "rows": rows}, partial(_mapped, context, rows)


def _words(context: Context, count: int) -> Tensor:
    return torch.randint(-(2**31), 2**31 - 1, (count,), dtype=torch.int32, device=context.device)


def _rate(count_bytes: float, us: float) -> float:
    return round(count_bytes / us / 1e3, 2)  # GB/s


def _copy(context: Context) -> Values:
    source = _words(context, context.scale.buffer_bytes // WORD_BYTES)
    target = torch.empty_like(source)
    took = device_time(lambda: target.copy_(source), context.device)
    return took.values() | {"gb_s": _rate(2 * context.scale.buffer_bytes, took.median_us)}


def _product(context: Context) -> Values:
    edge = context.scale.product
    dtype = torch.float16 if context.device.type == "cuda" else torch.float32
    a, b = (torch.randn(edge, edge, device=context.device, dtype=dtype) for _ in range(2))
    took = device_time(lambda: a @ b, context.device)
    return took.values() | {"tflop_s": round(2 * edge**3 / took.median_us / 1e6, 1)}


def _launch(context: Context) -> Values:
    """Measure the host time to launch a graph of one small node, without and with waiting for it."""
    x = torch.randn(64, device=context.device)
    replay = captured(lambda: x.mul_(1.0), context.device)
    launches = host_times(replay, min(HOST_CALLS, context.scale.replays))
    synchronize(context.device)
    event = device_event() if context.device.type == "cuda" else None

    def launch_and_wait() -> None:
        replay()
        if event:
            event.record()
            event.synchronize()

    waits = host_times(launch_and_wait, min(HOST_CALLS, context.scale.replays))
    return {
        "launch_us": round(percentile(launches, 0.5), 2),
        "launch_and_wait_us": round(percentile(waits, 0.5), 2),
        "launch_and_wait_us_p98": round(percentile(waits, 0.98), 2),
    }


def _read(context: Context, buffer_bytes: int = 0) -> Values:
    from tutti_asr_lab.benchmarks.gpu.sections import probe_kernels as kernels

    words = (buffer_bytes or context.scale.buffer_bytes) // WORD_BYTES
    best: Values = {}
    for block, loops in ((4096, 1), (4096, 4), (2048, 8), (8192, 4)):
        source = _words(context, words)
        programs = words // (block * loops)
        sums = torch.empty(programs, dtype=torch.int32, device=context.device)
        replay = captured(lambda: kernels.read_all[programs,](source, sums, LOOPS=loops, BLOCK=block), context.device)  # noqa: B023
        took = device_time(replay, context.device)
        found = took.values() | {"gb_s": _rate(words * WORD_BYTES, took.median_us), "block": block, "loops": loops}
        if not best or float(found["gb_s"] or 0) > float(best["gb_s"] or 0):
            best = found
    return best


def _read_cached(context: Context) -> Values:
    """Read 8 MB, the size of tutti-small's weights, which stay in the cache between steps."""
    return _read(context, 8 << 20)


def _read_shared(context: Context) -> Values:
    from tutti_asr_lab.benchmarks.gpu.sections import probe_kernels as kernels

    block, times = 2048, 200
    blocks = SHARED_BYTES // WORD_BYTES // block
    processors = torch.cuda.get_device_properties(context.device).multi_processor_count
    best: Values = {}
    for each in (1, 2, 4):
        programs = processors * each
        source, sums = _words(context, blocks * block), _words(context, programs)
        replay = captured(
            lambda: kernels.read_shared[programs,](source, sums, times, BLOCKS=blocks, BLOCK=block),  # noqa: B023
            context.device,
        )
        took = device_time(replay, context.device)
        rate = _rate(programs * times * SHARED_BYTES, took.median_us)
        if not best or rate > float(best["gb_s"] or 0):
            best = {"gb_s": rate, "programs_each": each, "us_a_read": round(took.median_us / times / each, 3)}
    return best


def _node(context: Context) -> Values:
    from tutti_asr_lab.benchmarks.gpu.sections import probe_kernels as kernels

    x = torch.zeros(1, device=context.device)

    def nodes() -> None:
        for _ in range(NODES):
            kernels.empty[1,](x)

    return device_time(captured(nodes, context.device), context.device, per_call=NODES).values()


def _torch_node(context: Context) -> Values:
    x = torch.randn(4_096, device=context.device)

    def nodes() -> None:
        for _ in range(NODES):
            x.mul_(1.0)

    return device_time(captured(nodes, context.device), context.device, per_call=NODES).values()


def _host_copies(context: Context, rows: int) -> Values:
    """Measure the host time to copy audio to the device and log-probs back by pinned memory, with a wait."""
    device = context.device
    pcm = torch.zeros(rows, STEP_SAMPLES, dtype=torch.int16, pin_memory=True)
    there = torch.empty(rows, STEP_SAMPLES, dtype=torch.int16, device=device)
    out = torch.randn(rows, 2, 29, device=device)
    here = torch.empty(rows, 2, 29, pin_memory=True)
    event = device_event()

    def both() -> None:
        there.copy_(pcm, non_blocking=True)
        here.copy_(out, non_blocking=True)
        event.record()
        event.synchronize()

    host_times(both, 20)
    times = host_times(both, HOST_CALLS)
    return {"host_us": round(percentile(times, 0.5), 2), "host_us_p98": round(percentile(times, 0.98), 2)}


def _mapped(context: Context, rows: int) -> Values:
    """Measure the device time to read and write the same bytes by kernels on mapped pinned memory, in a graph."""
    from tutti_asr_lab.benchmarks.gpu.sections import probe_kernels as kernels

    words = rows * STEP_SAMPLES // 2
    pcm = torch.zeros(words, dtype=torch.int32, pin_memory=True)
    there = torch.empty(words, dtype=torch.int32, device=context.device)
    back = rows * 58
    here = torch.zeros(back, dtype=torch.int32, pin_memory=True)

    def both() -> None:
        kernels.copy[-(-words // 1024),](pcm, there, words, BLOCK=1024)
        kernels.copy[-(-back // 1024),](there, here, back, BLOCK=1024)

    return device_time(captured(both, context.device), context.device).values()
