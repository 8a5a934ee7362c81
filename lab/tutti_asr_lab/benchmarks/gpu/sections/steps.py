"""A step: device time by rows and rung, share of the roofline, and host-to-host time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch

from tutti_asr_lab.benchmarks.gpu.networks import Ceilings, noise, step_roofline_us
from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.subjects import EAGER, Bench, bench, bucket, fastest, rungs
from tutti_asr_lab.benchmarks.gpu.timing import device_event, device_time, host_times, percentile, synchronize

CHUNKS = (1, 4, 8)
CHUNK_ROWS = 8
CALLED_ROWS = (1, 8, 64)  # the launch time of torch calls hardly depends on the rows
IN_GRAPH, HOST_TO_HOST = "in a graph", "host to host"


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield cases by network: each rung's graph by rows, host to host, chunks, and eager calls."""
    scale = context.scale
    for name in scale.networks:
        for rung in rungs(context.device):
            case: Case = {"network": name, "rung": rung}
            case |= {"how": IN_GRAPH} if rung == EAGER else {}
            for rows in scale.step_rows:
                yield case | {"rows": rows}, partial(_graph, context, name, rung, rows)
        for rows in CALLED_ROWS:
            if rows in scale.step_rows:
                yield {"network": name, "rung": EAGER, "rows": rows}, partial(_called, context, name, rows)
        rung = fastest(context.device)
        for rows in scale.step_rows[::2]:
            yield (
                {"network": name, "rung": rung, "rows": rows, "how": HOST_TO_HOST},
                partial(_host_to_host, context, name, rung, rows),
            )
        if rung != EAGER:
            for steps in CHUNKS:
                yield (
                    {"network": name, "rung": rung, "rows": CHUNK_ROWS, "steps": steps},
                    partial(_chunk, context, name, rung, steps),
                )


@cache
def _bench(context: Context, name: str, rung: str, rows: int, steps: int = 1) -> Bench:
    made = bench(name, rung, context.device, rows=rows, steps=steps)
    made.warm_states()
    return made


def _filled(context: Context, name: str, rung: str, rows: int) -> Bench:
    """Return the bench of a rung with `rows` streams in its block."""
    made = _bench(context, name, rung, bucket(max(context.scale.step_rows)))
    made.fill(range(rows))
    return made


def _graph(context: Context, name: str, rung: str, rows: int) -> Values:
    made = _filled(context, name, rung, rows)
    took = device_time(made.replay(bucket(rows)), context.device)
    made.check()
    roofline = step_roofline_us(made.config, rows, Ceilings.of_device(context.device))
    return took.values() | {"roofline_us": round(roofline, 2), "share": round(roofline / took.median_us, 3)}


def _called(context: Context, name: str, rows: int) -> Values:
    """Measure the step as separate torch calls: the host launches every kernel."""
    made = _filled(context, name, EAGER, rows)
    return device_time(lambda: made.step.enqueue(made.block(), rows, 1), context.device, groups=8).values()


def _host_to_host(context: Context, name: str, rung: str, rows: int) -> Values:
    """Measure host µs from audio to log-probs in pinned memory, including the wait for an event."""
    made = _filled(context, name, rung, rows)
    replay, device, block = made.replay(bucket(rows)), context.device, made.block()
    pinned = device.type == "cuda"
    pcm = noise(rows, made.config.step_samples)
    pcm = pcm.pin_memory() if pinned else pcm
    out = torch.empty(block.out[:rows].shape, pin_memory=pinned)
    event = device_event() if pinned else None

    def step() -> None:
        block.pcm[:rows].copy_(pcm, non_blocking=True)
        replay()
        out.copy_(block.out[:rows], non_blocking=True)
        if event:
            event.record()
            event.synchronize()

    host_times(step, min(50, context.scale.replays))
    synchronize(device)
    times = host_times(step, context.scale.replays)
    named = {f"us_p{int(100 * share)}": round(percentile(times, share), 1) for share in (0.5, 0.98, 0.99)}
    return {**named, "count": len(times)}


def _chunk(context: Context, name: str, rung: str, steps: int) -> Values:
    """Measure `CHUNK_ROWS` streams with `steps` steps each in one replay."""
    made = _bench(context, name, rung, CHUNK_ROWS, max(CHUNKS))
    made.fill(range(CHUNK_ROWS))
    took = device_time(made.replay(CHUNK_ROWS, steps), context.device)
    return took.values() | {"us_a_step": round(took.median_us / steps, 2)}
