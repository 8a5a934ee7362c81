"""Bit-identity of a row's results in different batches, chunks and rungs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
from torch import Tensor

from tutti_asr_lab.benchmarks.gpu.networks import noise
from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.subjects import EAGER, GRAPH, PERSISTENT, SPLIT, Bench, bench, bucket, rungs

STEPS = 4  # compared steps of one stream
CHUNKS = (2, 4, 8)
Result = tuple[Tensor, dict[str, Tensor]]  # outputs and states, on the host


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield cases for each network: batch sizes, chunks, and rungs."""
    for name in context.scale.networks[:2]:
        for rung in rungs(context.device):
            if rung in {EAGER, SPLIT}:
                continue  # bits of cuBLAS may depend on the batch; SPLIT is compared below
            for rows in context.scale.batch_sizes:
                case: Case = {"what": "alone = in company", "network": name, "rung": rung, "rows": rows}
                yield case, partial(_in_batch, context, name, rung, rows)
            for chunk in CHUNKS:
                case = {"what": "chunk = single steps", "network": name, "rung": rung, "steps": chunk}
                yield case, partial(_chunk, context, name, rung, chunk)
        if context.device.type == "cuda":
            for rung in (PERSISTENT, SPLIT):
                yield {"what": f"{rung} = {GRAPH}", "network": name}, partial(_rungs, context, name, rung)


@cache
def _bench(context: Context, name: str, rung: str, steps: int = 1) -> Bench:
    """Return the bench for all cases of a rung: with the largest batch, or with two rows for chunks."""
    most = max(context.scale.batch_sizes)
    return bench(name, rung, context.device, rows=2 if steps > 1 else bucket(most), capacity=most, steps=steps)


def _audio(context: Context, made: Bench, steps: int) -> Tensor:
    return noise(max(context.scale.batch_sizes), steps * made.config.step_samples, seed=5)


def _in_batch(context: Context, name: str, rung: str, rows: int) -> Values:
    """Step a batch in random slot order; compare some rows with the same slots alone."""
    made = _bench(context, name, rung)
    audio = _audio(context, made, 1)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(rows)).tolist()
    chosen = sorted({0, 1, rows // 2, rows - 1})
    slots = [order[i] for i in chosen]
    made.warm_states()
    found = made.outputs(order, audio[order])[chosen], made.states(slots)
    made.warm_states()
    singles = torch.cat([made.outputs([slot], audio[slot][None]) for slot in slots])
    return _compared(found, (singles, made.states(slots)))


def _compared(found: Result, expected: Result) -> Values:
    """Compare outputs and states bit by bit."""
    unequal = [name for name, state in found[1].items() if not torch.equal(state, expected[1][name])]
    return {
        "equal": bool(torch.equal(found[0], expected[0])) and not unequal,
        "finite": bool(found[0].isfinite().all()),
        "largest_difference": float((found[0] - expected[0]).abs().max()),
        "states_different": " ".join(unequal),
    }


def _chunk(context: Context, name: str, rung: str, steps: int) -> Values:
    """Compare one chunk of `steps` steps with single steps, for two streams."""
    made = _bench(context, name, rung, max(CHUNKS))
    slots = [0, 1]
    audio = _audio(context, made, steps)[:2]
    made.warm_states()
    whole = made.outputs(slots, audio), made.states(slots)
    return _compared(whole, _by_single_steps(made, slots, audio, steps))


def _by_single_steps(made: Bench, slots: list[int], audio: Tensor, steps: int) -> Result:
    made.warm_states()
    parts = [made.outputs(slots, part) for part in audio.chunk(steps, dim=1)]
    return torch.cat(parts, dim=1), made.states(slots)


def _rungs(context: Context, name: str, rung: str) -> Values:
    """Compare several steps of one batch between two rungs."""
    slots = list(range(min(16, max(context.scale.batch_sizes))))
    benches = [_bench(context, name, each) for each in (rung, GRAPH)]
    audio = _audio(context, benches[0], STEPS)[: len(slots)]
    found, expected = (_by_single_steps(made, slots, audio, STEPS) for made in benches)
    return _compared(found, expected)
