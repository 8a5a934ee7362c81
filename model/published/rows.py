"""Whether a stream's outputs depend on the rows beside it: the same audio alone and in batches, compared.

ONNX Runtime may choose another kernel for another number of rows, which changes last bits, and a graph of dynamically
quantised products scales each batch by its largest value, which may change symbols. Any model over slots can be
checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.description import ModelDescription
from model.recordings import read_pcm

SPEECH = Path(__file__).parents[1] / "samples" / "demo.flac"
SIZES = (1, 2, 3, 8, 32)
COMPARED = 8  # rows of a batch: the others differ in nothing but their audio
AUDIO_S = 3.0  # of each row, and `LEAST_WINDOWS` at least
LEAST_WINDOWS = 4
QUICK_SIZES = (2, 8)
QUICK_COMPARED = 2
QUICK_WINDOWS = 2
"""With the quick sizes 24 windows in all. Measured: 0.8 s of a zipformer of random weights of 207 MB, on one core."""


class Slots(Protocol):
    """What is stepped here of a `batching.SlotModel`."""

    @property
    def inputs(self) -> NDArray[Any]:
        """Rows to write the next steps into, (largest, S) int16."""

    def run(self, slots: Sequence[int]) -> NDArray[Any]:
        """Step these slots."""

    def reset(self, slot: int) -> None:
        """Make a slot that of a fresh stream."""


class Slotted(Protocol):
    """A model that can be put over slots: a published one, or our own."""

    @property
    def config(self) -> ModelDescription:
        """Its steps and frames."""

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> Slots:
        """The model over slots."""


@dataclass(frozen=True, slots=True)
class RowCheck:
    """By batch size: whether the rows are those of streams alone, to the bit, and whether their symbols are."""

    equal_bits: Mapping[int, bool]
    equal_tokens: Mapping[int, bool]
    largest_difference: float  # of any output

    @property
    def dependent_bits(self) -> tuple[int, ...]:
        """Sizes of batches in which some bit differs."""
        return tuple(size for size, equal in self.equal_bits.items() if not equal)

    @property
    def dependent_tokens(self) -> tuple[int, ...]:
        """Sizes of batches in which some symbol differs."""
        return tuple(size for size, equal in self.equal_tokens.items() if not equal)


def check_rows(model: Slotted, blank: int, *, tile_rows: int | None = None) -> RowCheck:
    """Compare streams of speech alone and in batches of all `SIZES` that the model takes."""
    step_s = model.config.step_samples / model.config.sample_rate
    windows = max(LEAST_WINDOWS, round(AUDIO_S / step_s))
    return _compare(model, blank, sizes=SIZES, compared=COMPARED, windows=windows, tile_rows=tile_rows)


def check_rows_quickly(model: Slotted, blank: int) -> RowCheck:
    """Compare a few windows, in a second at most for a model of 100 MB: enough for bits, hardly for symbols."""
    return _compare(model, blank, sizes=QUICK_SIZES, compared=QUICK_COMPARED, windows=QUICK_WINDOWS, tile_rows=None)


def tokens_of(outputs: NDArray[np.float32], blank: int) -> list[int]:
    """Symbols of one stream's outputs: of log-probs (T, V) the best path, of a transducer (T, E, 2) those it wrote."""
    if outputs.ndim == 3:
        written = outputs[..., 0].ravel()
        return [int(symbol) for symbol in written[written >= 0]]
    best = outputs.argmax(axis=1).tolist()
    return [here for here, before in zip(best, [blank, *best], strict=False) if here not in (blank, before)]


def _compare(
    model: Slotted, blank: int, *, sizes: Sequence[int], compared: int, windows: int, tile_rows: int | None
) -> RowCheck:
    slots = model.slots(capacity=max(sizes), largest=max(sizes), tile_rows=tile_rows)
    config, largest = model.config, len(slots.inputs)
    audio = _speech(config, largest, windows)
    skipped = config.delay_frames
    alone = [_outputs(slots, audio[row : row + 1], [row])[0] for row in range(min(compared, largest))]
    bits, tokens, difference = {}, {}, 0.0
    for size in (size for size in sizes if size <= largest):
        # Other slots than alone, so that an exchanged state shows too.
        batch = _outputs(slots, audio[:size], [largest - 1 - row for row in range(size)])
        pairs = [(one[skipped:], row[skipped:]) for one, row in zip(alone, batch, strict=False)]
        bits[size] = all(np.array_equal(one, row) for one, row in pairs)
        tokens[size] = all(tokens_of(one, blank) == tokens_of(row, blank) for one, row in pairs)
        difference = max(difference, *(float(np.abs(one - row).max()) for one, row in pairs))
    return RowCheck(bits, tokens, difference)


def _speech(config: ModelDescription, rows: int, windows: int) -> NDArray[np.int16]:
    """(B, N, S): other stretches of a recording in each row, enough steps for so many windows."""
    steps = config.delay_frames // config.frames_per_step + windows
    samples = steps * config.step_samples
    speech = read_pcm(SPEECH, config.sample_rate)
    starts = np.linspace(0, len(speech), rows, endpoint=False).astype(int)
    places = (starts[:, np.newaxis] + np.arange(samples)) % len(speech)  # (B, N * S)
    return speech[places].reshape(rows, steps, config.step_samples)


def _outputs(slots: Slots, audio: NDArray[np.int16], members: Sequence[int]) -> NDArray[np.float32]:
    """Outputs (B, T, …) of fresh streams in these slots, with audio (B, N, S), in one batch."""
    for slot in members:
        slots.reset(slot)
    found = []
    for step in range(audio.shape[1]):
        slots.inputs[: len(members)] = audio[:, step]
        found.append(slots.run(members))
    return np.concatenate(found, axis=1)
