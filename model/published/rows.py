"""Check of batch dependence: compares the outputs of the same audio alone and in batches.

ONNX Runtime may choose a different kernel for a different number of rows, which changes last bits, and a graph with
dynamically quantized products scales each batch by its largest value, which may change symbols. Any model with slots
can be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.description import ModelDescription
from model.facts import AcousticModel, ModelFacts, Slots
from model.published.transducer.greedy_search import GreedySearch
from model.recordings import read_pcm

SPEECH = Path(__file__).parents[1] / "samples" / "demo.flac"
SIZES = (1, 2, 3, 8, 32)
COMPARED = 8  # rows of a batch that are compared; the others only differ in their audio
AUDIO_S = 3.0  # seconds of audio per row, but at least `LEAST_WINDOWS` windows
LEAST_WINDOWS = 4
QUICK_SIZES = (2, 8)
QUICK_COMPARED = 2
QUICK_WINDOWS = 2
"""The quick check runs 24 windows: 0.8 s for a zipformer with random weights of 207 MB, measured on one core."""


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Result by batch size: whether rows equal those of single streams, in all bits and in their symbols."""

    equal_bits: Mapping[int, bool]
    equal_tokens: Mapping[int, bool]
    largest_difference: float  # of all outputs

    @property
    def dependent_bits(self) -> tuple[int, ...]:
        """Batch sizes with a different bit."""
        return tuple(size for size, equal in self.equal_bits.items() if not equal)


def check_rows(model: AcousticModel, blank: int, *, tile_rows: int | None = None) -> RowCheck:
    """Compare streams of speech alone and in batches of all `SIZES` that the model supports."""
    step_s = model.config.step_samples / model.config.sample_rate
    windows = max(LEAST_WINDOWS, round(AUDIO_S / step_s))
    return _compare(model, blank, sizes=SIZES, compared=COMPARED, windows=windows, tile_rows=tile_rows)


def check_rows_quickly(model: AcousticModel, blank: int) -> RowCheck:
    """Compare a few windows, within a second for a model of 100 MB: sufficient for bits, hardly for symbols."""
    return _compare(model, blank, sizes=QUICK_SIZES, compared=QUICK_COMPARED, windows=QUICK_WINDOWS, tile_rows=None)


def tokens_of(outputs: NDArray[np.float32], blank: int) -> list[int]:
    """Return the symbols of one stream's outputs: best path of log-probs (T, V), or those found in frames (T, E, 2)."""
    if outputs.ndim == 3:
        written = outputs[..., 0].ravel()
        return [int(symbol) for symbol in written[written >= 0]]
    best = outputs.argmax(axis=1).tolist()
    return [symbol for symbol, before in zip(best, [blank, *best], strict=False) if symbol not in (blank, before)]


def searched(facts: ModelFacts, outputs: NDArray[np.float32], *, alone: bool = False) -> NDArray[np.float32]:
    """Return outputs (B, T, …) after the delay; of a transducer what its greedy search finds in them, (B, T, E, 2).

    `alone`: search rows one at a time if they depend on each other.
    """
    outputs = outputs[:, facts.config.delay_frames :]
    if facts.transducer is None:
        return outputs
    networks = facts.transducer.load()
    context, output = (np.repeat(part, len(outputs), axis=0) for part in networks.start)
    return GreedySearch(networks, alone=alone).search(context, output, outputs)


def _compare(
    model: AcousticModel, blank: int, *, sizes: Sequence[int], compared: int, windows: int, tile_rows: int | None
) -> RowCheck:
    slots = model.slots(capacity=max(sizes), largest=max(sizes), tile_rows=tile_rows)
    facts, largest = model.facts, len(slots.inputs)
    audio = speech(model.config, largest, windows)

    def outputs(size: int, members: Sequence[int], first: int = 0) -> NDArray[np.float32]:
        outputs = _outputs(slots, audio[first : first + size], members)
        return searched(facts, outputs, alone=tile_rows is not None)

    alone = [outputs(1, [row], row)[0] for row in range(min(compared, largest))]
    bits, tokens, difference = {}, {}, 0.0
    for size in (size for size in sizes if size <= largest):
        # Different slots than alone, so that exchanged states are detected too.
        batch = outputs(size, [largest - 1 - row for row in range(size)])
        pairs = list(zip(alone, batch, strict=False))
        bits[size] = all(np.array_equal(one, row) for one, row in pairs)
        tokens[size] = all(tokens_of(one, blank) == tokens_of(row, blank) for one, row in pairs)
        difference = max(difference, *(float(np.abs(one - row).max()) for one, row in pairs))
    return RowCheck(bits, tokens, difference)


def speech(config: ModelDescription, rows: int, windows: int) -> NDArray[np.int16]:
    """Return (B, N, S): a different stretch of a recording in each row, with enough steps for `windows` windows."""
    steps = config.delay_frames // config.frames_per_step + windows
    samples = steps * config.step_samples
    speech = read_pcm(SPEECH, config.sample_rate)
    starts = np.linspace(0, len(speech), rows, endpoint=False).astype(int)
    places = (starts[:, np.newaxis] + np.arange(samples)) % len(speech)  # (B, N * S)
    return speech[places].reshape(rows, steps, config.step_samples)


def _outputs(slots: Slots, audio: NDArray[np.int16], members: Sequence[int]) -> NDArray[np.float32]:
    """Return outputs (B, T, …) of new streams in these slots, with audio (B, N, S), run in one batch."""
    for slot in members:
        slots.reset(slot)
    outputs = []
    for step in range(audio.shape[1]):
        slots.inputs[: len(members), : audio.shape[2]] = audio[:, step]
        outputs.append(slots.run(members))
    return np.concatenate(outputs, axis=1)
