"""Uploads alongside live streams: upload speed and live latency, by chunk size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from loadtest.benchmarks.gpu.records import Case, Values
from loadtest.benchmarks.gpu.scale import Context
from loadtest.benchmarks.gpu.sections.streams import MAX_QUEUED, Thread, _slots
from loadtest.benchmarks.gpu.subjects import network_of, precision_of, served

LARGEST_CHUNK = 8
MOST_S = 20.0


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield cases: without uploads, with uploads of single steps, with uploads in chunks."""
    name, rung = context.scale.networks[0], served(context.device)
    for chunk, uploads in ((1, 0), (1, context.scale.uploads), (LARGEST_CHUNK, context.scale.uploads)):
        case: Case = {"network": name, "rung": rung, "live": context.scale.live, "uploads": uploads, "chunk": chunk}
        yield case, partial(_measure, context, name, rung, chunk, uploads)


def _measure(context: Context, name: str, rung: str, chunk: int, uploads: int) -> Values:
    model = _slots(context, name, rung, chunk)
    config = network_of(name, context.device, precision_of(rung, context.device)).config
    step_s = config.step_samples / config.sample_rate
    thread = Thread(model, step_s)
    live = range(1, context.scale.live + 1)
    background = range(len(live) + 1, len(live) + uploads + 1)
    thread.open(live)
    thread.open(background, background=True)
    thread.run(live, min(1.0, context.scale.level_s))
    thread.forget()
    total, sent = uploads * context.scale.upload_steps, 0
    began = time.perf_counter()
    rounds = max(1, -(-context.scale.upload_steps // MAX_QUEUED))
    for _ in range(rounds if uploads else 1):  # a queue holds `MAX_QUEUED` steps of a stream
        count = min(MAX_QUEUED, context.scale.upload_steps - sent // max(1, uploads))
        thread.upload(background, count)
        sent += count * uploads
        finished = (lambda sent=sent: thread.delivered.uploaded >= sent) if uploads else (lambda: False)
        thread.run(live, context.scale.level_s if not uploads else MOST_S, until=finished)
    took_s = time.perf_counter() - began
    thread.close()
    done = thread.delivered.uploaded
    return thread.values() | {
        "uploaded_share": round(done / total, 3) if total else None,
        "upload_speed": round(done * step_s / took_s, 1) if uploads else None,  # seconds of audio a second
    }
