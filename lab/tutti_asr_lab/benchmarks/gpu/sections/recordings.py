"""The shipped model on the shipped recordings: fp16 on the device compared with fp32 on the CPU, and resume tickets.

The recordings are arrays written by `python -m tutti_asr_lab.benchmarks.gpu samples`, since a GPU host may lack a FLAC
decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from batching.slot_model import SlotModel
from model import checkpoint
from model.config import BLANK, ModelConfig
from model.torch_model import TorchModel
from model.torch_network.checkpoint import load_network
from model.torch_network.network import Network
from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.subjects import served, slots

SAMPLES = Path("build/gpu-samples.npz")
CAPACITY = 32
DRY_RECORDINGS = 1
DRY_STEPS = 6


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield cases: all recordings as one shrinking batch; one of them without and with a ticket."""
    rung = served(context.device)
    yield {"what": "letters and transcripts", "rung": rung}, partial(_letters, context, rung)
    yield {"what": "ticket", "rung": rung}, partial(_ticket, context, rung)


def write_samples(path: Path = SAMPLES) -> int:
    """Decode the shipped recordings into one file of arrays; returns their number. Needs soundfile."""
    from model.recordings import read_pcm

    folder = Path(checkpoint.__file__).parent / "samples"
    rate = ModelConfig().sample_rate
    decoded = {each.stem: read_pcm(each, rate) for each in sorted(folder.glob("*.flac"))}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **decoded)  # type: ignore[arg-type,unused-ignore]
    return len(decoded)


def _recordings(context: Context, config: ModelConfig) -> dict[str, NDArray[np.int16]]:
    """Return (n, S) steps by name, including the silence added when a stream closes."""
    if not SAMPLES.exists():
        raise FileNotFoundError(
            f"{SAMPLES}: missing; create it with `make {SAMPLES}` on a machine with soundfile and copy it here"
        )
    found = {}
    with np.load(SAMPLES) as arrays:
        for name in sorted(arrays.files):
            steps = config.steps_of(len(arrays[name]))
            whole = np.zeros(steps * config.step_samples, np.int16)
            whole[: len(arrays[name])] = arrays[name]
            found[name] = whole.reshape(steps, config.step_samples)
    if context.device.type != "cuda":
        shortest = sorted(found, key=lambda name: len(found[name]))[:DRY_RECORDINGS]
        found = {name: found[name][:DRY_STEPS] for name in shortest}
    return found


def _outputs(
    model: SlotModel, config: ModelConfig, recordings: dict[str, NDArray[np.int16]]
) -> dict[str, NDArray[np.float32]]:
    """Return log-probs (n * T, V) of each recording, all stepped in one batch, longest first."""
    order = sorted(recordings, key=lambda name: -len(recordings[name]))
    parts: dict[str, list[NDArray[np.float32]]] = {name: [] for name in order}
    for slot in range(len(order)):
        model.reset(slot)
    for step in range(len(recordings[order[0]])):
        left = [name for name in order if step < len(recordings[name])]
        for row, name in enumerate(left):
            model.inputs[row] = recordings[name][step]
        for name, out in zip(left, model.run(range(len(left))), strict=True):
            parts[name].append(out[:, : len(config.vocabulary)])
    return {name: np.concatenate(each) for name, each in parts.items()}


def greedy(config: ModelConfig, log_probs: NDArray[np.float32]) -> str:
    """Return the greedy transcript: the best letter of each frame without repetitions and blanks."""
    best = log_probs.argmax(-1).tolist()
    kept = [now for before, now in zip([BLANK, *best], best, strict=False) if now not in {before, BLANK}]
    return "".join(config.vocabulary[each] for each in kept)


def _networks() -> tuple[Network, Network]:
    """Return the shipped network twice: on the device, and in fp32 on the CPU."""
    return load_network(checkpoint.GRU)[0], load_network(checkpoint.GRU)[0]


def _letters(context: Context, rung: str) -> Values:
    network, plain = _networks()
    config = network.config
    recordings = _recordings(context, config)
    found = _outputs(slots(network, rung, context.device, capacity=CAPACITY, largest=CAPACITY), config, recordings)
    reference = TorchModel(plain, "fp32", device="cpu", precision="fp32")
    expected = _outputs(reference.slots(capacity=CAPACITY, largest=CAPACITY), config, recordings)
    frames = sum(len(each) for each in found.values())
    pairs = [(found[name], expected[name]) for name in recordings]
    return {
        "recordings": len(recordings),
        "frames": frames,
        "letters_different": int(sum((a.argmax(-1) != b.argmax(-1)).sum() for a, b in pairs)),
        "largest_change_of_probability": float(max(np.abs(np.exp(a) - np.exp(b)).max() for a, b in pairs)),
        "transcripts_different": sum(greedy(config, a) != greedy(config, b) for a, b in pairs),
        "example": greedy(config, found[min(recordings)]),
    }


def _ticket(context: Context, rung: str) -> Values:
    """Compare a recording with itself after its state is exported midway and restored to another slot."""
    network, _ = _networks()
    recordings = _recordings(context, network.config)
    name = min(recordings, key=lambda each: len(recordings[each]))
    steps = recordings[name]
    model = slots(network, rung, context.device, capacity=CAPACITY, largest=CAPACITY)

    def run(slot: int, part: NDArray[np.int16]) -> list[NDArray[np.float32]]:
        outputs = []
        for row in part:
            model.inputs[0] = row
            outputs.append(model.run([slot])[0])
        return outputs

    model.reset(0)
    whole = run(0, steps)
    middle = len(steps) // 2
    model.reset(1)
    first = run(1, steps[:middle])
    ticket = model.export(1)
    model.restore(2, ticket)
    second = run(2, steps[middle:])
    equal = all(
        torch.equal(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(whole, first + second, strict=True)
    )
    return {"equal": equal, "bytes": len(ticket), "steps": len(steps)}
