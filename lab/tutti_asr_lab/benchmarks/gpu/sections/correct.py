"""Errors of every rung's step and of the recurrence against plain arithmetic on the CPU; outputs start as NaN."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from model.config import ModelConfig
from model.torch_network.network import Network
from tutti_asr_lab.benchmarks.gpu.networks import NETWORKS, noise, random_network
from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.subjects import EAGER, GRAPH, PERSISTENT, REFERENCE, Bench, bench, recurrence, rungs

ROWS = 8
SLOTS = 16
STEPS = 6
CPU = torch.device("cpu")
RECURRENCE_ROWS = (1, 3, 8, 17)
RECURRENCE_FRAMES = 5


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield cases: the recurrence of each size; each rung against fp32 and the reference; long random sequences."""
    if context.device.type == "cuda":
        for hidden in context.scale.hidden:
            for rows in RECURRENCE_ROWS:
                case: Case = {"what": "recurrence against float64", "hidden": hidden, "rows": rows}
                yield case, partial(_recurrence, context, hidden, rows)
    for name in context.scale.networks[:2][::-1]:
        for rung in rungs(context.device):
            case = {"what": "step against fp32", "network": name, "rung": rung}
            yield case, partial(_step, context, name, rung)
    small = context.scale.networks[:2][-1]
    for rung in rungs(context.device):
        if rung not in {EAGER, REFERENCE}:
            case = {"what": "step against the contract", "network": small, "rung": rung}
            yield case, partial(_contract, context, small, rung)
    case = {"what": "changing batches", "network": small}
    yield case, partial(_changing, context, small)


def _rounded(name: str) -> Network:
    """Return the named network in fp32 with weights rounded to fp16."""
    network = random_network(NETWORKS[name])
    features = copy.deepcopy(network.features)
    network = network.half().float()
    network.features = features
    return network.requires_grad_(False)


def _compared(config: ModelConfig, found: Tensor, expected: Tensor) -> Values:
    """Compare log-probs (B, T, outputs) with the expected ones."""
    changed = found.exp() - expected.exp()
    letters, wanted = (each[..., : len(config.vocabulary)].argmax(-1) for each in (found, expected))
    return {
        "finite": bool(found.isfinite().all()),
        "equal": bool(torch.equal(found, expected)),
        "frames": found.shape[0] * found.shape[1],
        "letters_different": int((letters != wanted).sum()),
        "largest_change_of_probability": float(changed.abs().max()),
        "largest_change_of_log": float((found - expected).abs().max()),
    }


def _streams(made: Bench, rows: int, steps: int) -> Tensor:
    """Return outputs of fresh streams in scattered slots, (B, steps * T, outputs)."""
    order = torch.randperm(made.capacity, generator=torch.Generator().manual_seed(11))[:rows].tolist()
    audio = noise(rows, steps * made.config.step_samples, seed=12)
    for slab in made.slabs.values():
        slab[:-1].zero_()
    return torch.cat([made.outputs(order, part) for part in audio.chunk(steps, dim=1)], dim=1)


def _rows(context: Context) -> int:
    return min(ROWS, max(context.scale.batch_sizes))


def _step(context: Context, name: str, rung: str) -> Values:
    network, rows = _rounded(name), _rows(context)
    found = _streams(bench(name, rung, context.device, rows=ROWS, capacity=SLOTS), rows, STEPS)
    audio = noise(rows, STEPS * network.config.step_samples, seed=12)
    expected, _ = network(audio, network.fresh_state(rows))
    return _compared(network.config, found, expected)


def _contract(context: Context, name: str, rung: str) -> Values:
    """Compare with the reference on the CPU, which differs only in the exponential function."""
    rows = _rows(context)
    pair = [
        bench(name, how, where, rows=ROWS, capacity=SLOTS) for how, where in ((rung, context.device), (REFERENCE, CPU))
    ]
    found, expected = (_streams(made, rows, STEPS) for made in pair)
    return _compared(pair[0].config, found, expected)


def _changing(context: Context, name: str) -> Values:
    """Run many steps with random batches and slots; compare outputs with fp32, and rungs with each other."""
    generator = torch.Generator().manual_seed(13)
    chosen = [rung for rung in rungs(context.device) if rung in {GRAPH, PERSISTENT}] or [rungs(context.device)[-1]]
    benches = [bench(name, rung, context.device, rows=SLOTS, capacity=SLOTS) for rung in chosen]
    network = _rounded(name)
    states = network.fresh_state(SLOTS)
    worst, equal, began, steps = 0.0, True, time.monotonic(), 0
    for steps in range(1, context.scale.sequence + 1):
        rows = int(torch.randint(1, SLOTS + 1, (1,), generator=generator))
        slots = torch.randperm(SLOTS, generator=generator)[:rows]
        audio = noise(rows, network.config.step_samples, seed=steps)
        outputs = [made.outputs(slots.tolist(), audio) for made in benches]
        expected, after = network(audio, {key: state[slots] for key, state in states.items()})
        for key, state in states.items():
            state[slots] = after[key]
        worst = max(worst, float((outputs[0].exp() - expected.exp()).abs().max()))
        equal = equal and all(torch.equal(outputs[0], output) for output in outputs[1:])
        if context.left_s < 5 or time.monotonic() - began > 60:  # leave time for the rest of the section
            break
    return {"steps": steps, "rungs": " ".join(chosen), "rungs_equal": equal, "largest_change_of_probability": worst}


def _recurrence(context: Context, hidden: int, rows: int) -> Values:
    """Compare two consecutive launches over several frames, from states in scattered slots."""
    device = context.device
    generator = torch.Generator().manual_seed(hidden + rows)
    weight = (torch.randn(3 * hidden, hidden, generator=generator) * hidden**-0.5).half()
    bias = 0.1 * torch.randn(3 * hidden, generator=generator)
    shape = (rows, 2 * RECURRENCE_FRAMES, hidden)
    gates = torch.randn(rows, shape[1], 3 * hidden, generator=generator).half()
    x = torch.randn(shape, generator=generator).half()
    slab = torch.tanh(torch.randn(rows + 4, hidden, generator=generator)).half()  # states of a GRU lie in [-1, 1]
    index = (torch.randperm(rows + 2, generator=generator)[:rows]).to(torch.int32)
    layer = recurrence(weight.to(device), bias.to(device), device)
    there, count = slab.to(device), torch.full((1,), rows, dtype=torch.int32, device=device)
    place, parts = index.to(device), []
    for part in range(2):
        cut = slice(part * RECURRENCE_FRAMES, (part + 1) * RECURRENCE_FRAMES)
        out = torch.full((rows, RECURRENCE_FRAMES, hidden), float("nan"), dtype=torch.float16, device=device)
        inputs = gates[:, cut].contiguous().to(device), x[:, cut].contiguous().to(device)
        layer.enqueue(*inputs, out, there, place, place, count, RECURRENCE_FRAMES)
        parts.append(out.cpu())
    expected, last = _exact(gates, x, slab[index.long()], weight, bias)
    found = torch.cat(parts, dim=1)
    others = [i for i in range(rows + 4) if i not in index.tolist()]
    return {
        "relative_error": float((found.double() - expected).norm() / expected.norm()),
        "largest_error": float((found.double() - expected).abs().max()),
        "state_error": float((there.cpu()[index.long()].double() - last).abs().max()),
        "others_untouched": bool(torch.equal(there.cpu()[others], slab[others])),
    }


def _exact(gates: Tensor, x: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the recurrence in float64, with states rounded to fp16 after each frame as in the reference."""
    h, u, c = state.double(), weight.double().t(), bias.double()
    outputs = []
    for frame in range(gates.shape[1]):
        g, p = gates[:, frame].double().chunk(3, dim=-1), (h @ u + c).chunk(3, dim=-1)
        r, z = torch.sigmoid(g[0] + p[0]), torch.sigmoid(g[1] + p[1])
        n = torch.tanh(g[2] + r * p[2])
        h = (n + z * (h - n)).half().double()
        outputs.append(x[:, frame].double() + h)
    return torch.stack(outputs, dim=1), h
