"""The quantized network packed for its compiled step: constants, layout of states, work space."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.attention import step as compiled
from model.attention.plan import FOUR, QUERY_ROWS, Constants, Fields, Plan, Sizes, Work
from model.attention.quantized import LARGEST_KEY, LARGEST_QUERY, NORMS, QuantizedAttention, product_shapes
from model.attention_config import HOPS, AttentionConfig, StepForm
from model.audio.mel import slaney_filters
from model.int8.features import FeatureTables
from model.int8.product import COLUMNS
from model.int8.product_table import head_row, limits_record, product_row
from model.int8.vectors import LANES, ROW
from model.int8.vectors import ROWS as VECTOR_ROWS
from model.machine.memory import ALIGNED, KeptArrays, aligned, offsets_of, whole_lines

ROWS = 160  # frames of a block of streams: their work space fits the second-level cache
HIDDEN = -1e30  # added to the score of a column without a frame
REACH = 200  # frames before and after it that a frame of a segment attends to. Source: model/LOG.md
LONGEST, NEIGHBORS = 1_500, 100  # frames of a segment that are computed in one call, and of its neighbors with them


class PackedWeights:
    """Weights in the format of the compiled step, for all forms of steps."""

    def __init__(self, network: QuantizedAttention) -> None:
        """Pack the network. Raises: ValueError for sizes that it cannot have."""
        config = network.config
        for name in ("mel_bins", "width", "feed_forward"):
            if getattr(config, name) % LANES:
                raise ValueError(f"{name} must be a multiple of {LANES}, not {getattr(config, name)}")
        if config.head_width % FOUR:
            raise ValueError(f"the values of a key must be a multiple of {FOUR}, not {config.head_width}")
        self.config = config
        self.silent_feature = network.products["stem"].input_zero
        self._arrays = KeptArrays()  # their addresses are in the constants
        keep, tensors = self._arrays.keep, network.tensors
        tables = FeatureTables.of(config, slaney_filters(config))
        self.features = tables.plan(config, keep, tensors["features.mean"], tensors["features.scale"])
        self.products = keep(np.array(self._products(network), np.int64))
        self.blocks = keep(np.array([self._block(network, block) for block in range(config.blocks)], np.int64))
        self.zero_points = keep(np.full(config.width, LARGEST_QUERY + 1, np.uint8))
        self.masks = keep(np.array([0.0, HIDDEN], np.float32))

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return self._arrays.nbytes

    def _products(self, network: QuantizedAttention) -> list[list[int]]:
        config, keep = self.config, self._arrays.keep
        rows = []
        for name in product_shapes(config):
            product, letters = network.products[name], len(config.vocabulary)
            block, _, linear = name.removeprefix("blocks.").partition(".")
            norm = NORMS.get(linear)
            rows.append(
                (head_row(product, letters, keep) if name == "head" else product_row(product, keep))
                + [keep(network.tensors[f"blocks.{block}.{norm}.{part}"]) if norm else 0 for part in ("weight", "bias")]
            )
        return rows

    def _block(self, network: QuantizedAttention, block: int) -> list[int]:
        keep, tensors = self._arrays.keep, network.tensors
        prefix = f"blocks.{block}."
        return [
            keep(np.ascontiguousarray(tensors[f"{prefix}depthwise.weight"].T)),
            *(keep(tensors[f"{prefix}{name}"]) for name in ("depthwise.bias", "norm.weight", "norm.bias")),
            keep(integer_limits(LARGEST_QUERY, LARGEST_QUERY + 1)),
            *(keep(integer_limits(LARGEST_KEY, 0)) for _ in ("keys", "values")),
            keep(tensors[f"{prefix}factors"]),
        ]


class PackedAttention:
    """A network and one form of its steps; implements `model.int8.slots.CompiledNetwork` by structure."""

    chunks: Sequence[int] = (1,)
    thread_steps = 1  # a step has the frames of a window, which fill the rows of a product

    def __init__(self, weights: PackedWeights, form: StepForm, reach: int | None = None) -> None:
        """Lay out states and work space; `reach`: see `Sizes`. Raises: ValueError for frames not multiples of four."""
        if any(frames % FOUR for frames in (form.new, form.ahead, form.left)):
            raise ValueError(f"the frames of a step must be multiples of {FOUR}: {form}")
        self.weights, self.form = weights, form
        self.config = dataclasses.replace(weights.config, form=form)
        self._arrays = KeptArrays()
        self.sizes = _sizes(self.config, form, reach)
        self.most = max(1, ROWS // form.window)
        self.plan = Plan(self.sizes, _fields(self.config, self.sizes), self._constants())
        self.fresh = self._fresh()

    def work_space(self) -> AttentionWork:
        """Return the work space of a thread."""
        return AttentionWork(self)

    def run(self, work: AttentionWork, memory: tuple[int, int, int, int], count: int, steps: int = 1) -> None:
        """Advance `count` streams by one step; `memory`: see `compiled.step`."""
        assert steps == 1
        compiled.step(self.plan, work.addresses, memory, count)

    def _constants(self) -> Constants:
        config, keep, weights = self.config, self._arrays.keep, self.weights
        rows, window = self.most * self.form.window, self.form.window
        windows = np.arange(self.most, dtype=np.int64)[:, None] * (HOPS * window + 1) + np.arange(window) * HOPS
        zeros = max(self.sizes.columns, 2 * COLUMNS, VECTOR_ROWS * config.width)
        return Constants(
            features=weights.features,
            products=weights.products,
            blocks=weights.blocks,
            row_offsets=keep(np.arange(rows, dtype=np.int64) * config.width),
            inner_offsets=keep(np.arange(rows, dtype=np.int64) * config.feed_forward),
            stem_offsets=keep(windows.ravel() * config.mel_bins),
            probability_offsets=keep(np.arange(QUERY_ROWS, dtype=np.int64) * self.sizes.columns),
            zero_points=weights.zero_points,
            no_sums=keep(np.zeros(zeros, np.int32)),
            masks=weights.masks,
        )

    def _fresh(self) -> NDArray[np.uint8]:
        """State of a new stream: zeros, features at the zero point, no frame yet."""
        fields = self.plan.fields
        state = np.zeros(fields.first_block + self.config.blocks * fields.block, np.uint8)
        state[fields.position :][:8].view(np.int64)[0] = -self.form.ahead
        state[fields.mel : fields.mel + _kept_mel(self.config, self.form)] = self.weights.silent_feature
        return state


class AttentionWork:
    """Work space of one thread."""

    def __init__(self, network: PackedAttention) -> None:
        config, sizes, most = network.config, network.sizes, network.most
        rows = most * sizes.window
        wide = max(config.feed_forward, 3 * config.width, config.outputs + LANES)
        columns = -(-wide // COLUMNS) * COLUMNS
        deep = -(-config.head_width // COLUMNS) * COLUMNS
        lengths = {
            "pcm": most * (sizes.overlap + sizes.samples) * 2 + 2 * config.fft_size,  # it may be read past its end
            "frames": LANES * 8,
            "transform": config.fft_size * ROW,
            "power": (config.fft_size // 2 + 1) * ROW,
            "band": LANES,
            "mel": most * (HOPS * sizes.window + 1) * config.mel_bins + ALIGNED,
            "bytes": rows * config.feed_forward + ALIGNED,
            "sums": rows * columns * 4,
            "x": rows * config.width * 4,
            "queries": rows * config.width + ALIGNED,
            "keys": rows * config.width + ALIGNED,
            "values": rows * config.width + ALIGNED,
            "mask": sizes.columns * 4,
            "scores": (QUERY_ROWS + 1) * sizes.columns * 4,
            "rows": VECTOR_ROWS * sizes.columns * 4,
            "probabilities": QUERY_ROWS * sizes.columns + ALIGNED,
            "totals": QUERY_ROWS * ROW,
            "panels": sizes.columns * deep,
            "average_sums": QUERY_ROWS * deep * 4,
            "mixed": rows * (config.width + LANES) * 4,
            "joined": (config.kernel + sizes.window) * config.width * 4,
            "outputs": columns * 4,
        }
        offsets, total = offsets_of(lengths)
        self._memory = aligned(total)
        start = int(self._memory.ctypes.data)
        del offsets["transform"]  # is before the power, where the compiled code expects it
        self.addresses = Work(most=most, **{name: start + offset for name, offset in offsets.items()})


def integer_limits(largest: int, zero: int) -> NDArray[np.uint8]:
    """Return the record for integers that need no scale, within ±`largest`."""
    return limits_record(np.float32(1.0), -largest, largest, zero)


def _sizes(config: AttentionConfig, form: StepForm, reach: int | None) -> Sizes:
    ring = form.left + form.new
    columns = -(-(ring + form.ahead) // COLUMNS) * COLUMNS
    return Sizes(
        samples=form.new * config.frame_samples,
        overlap=config.window_samples - config.hop_samples,
        hops=HOPS * form.new,
        bands=config.mel_bins,
        width=config.width,
        heads=config.heads,
        inner=config.feed_forward,
        blocks=config.blocks,
        taps=config.kernel,
        new=form.new,
        window=form.window,
        ring=ring,
        columns=columns,
        reach=columns if reach is None else reach,
        letters=len(config.vocabulary),
        phones=config.outputs - len(config.vocabulary),
    )


def _kept_mel(config: AttentionConfig, form: StepForm) -> int:
    """Bytes of the features that the next window begins with."""
    return (HOPS * form.ahead + 1) * config.mel_bins


def _fields(config: AttentionConfig, sizes: Sizes) -> Fields:
    pcm = 8  # after the position
    mel = pcm + sizes.overlap * 2
    ahead = sizes.window - sizes.new
    first_block = whole_lines(mel + (HOPS * ahead + 1) * config.mel_bins)
    values = config.width * sizes.columns
    convolution = 2 * values
    block = convolution + config.before * config.width * 2
    size = first_block + config.blocks * block
    return Fields(0, pcm, mel, first_block, values, convolution, block, stride=whole_lines(size))


def read_segment(weights: PackedWeights, pcm: NDArray[np.int16]) -> NDArray[np.float32]:
    """Return log-probs (T, outputs) of a segment (S,): frames attend to those of `REACH` before and after them."""
    config = weights.config
    samples, count = config.frame_samples, -(-len(pcm) // config.frame_samples)
    rows: list[NDArray[np.float32]] = []
    for begin in range(0, count, LONGEST):
        end = min(count, begin + LONGEST)
        first, last = max(0, begin - NEIGHBORS), min(count, end + NEIGHBORS)
        outputs = _read_window(weights, pcm[first * samples : last * samples])
        rows.append(outputs[begin - first : end - first])
    return np.concatenate(rows) if rows else np.zeros((0, config.outputs), np.float32)


def _read_window(weights: PackedWeights, pcm: NDArray[np.int16]) -> NDArray[np.float32]:
    """Return log-probs of all frames, which are one step of a new stream."""
    config = weights.config
    frames = -(-len(pcm) // (FOUR * config.frame_samples)) * FOUR
    packed = PackedAttention(weights, StepForm(new=frames, ahead=0, left=FOUR), REACH)
    inputs = np.pad(pcm, (0, frames * config.frame_samples - len(pcm)))
    slots, state = np.zeros(1, np.int64), aligned(len(packed.fresh))
    state[:] = packed.fresh
    out = np.empty((frames, config.outputs), np.float32)
    memory = (inputs.ctypes.data, slots.ctypes.data, state.ctypes.data, out.ctypes.data)
    packed.run(packed.work_space(), memory, 1)
    return out
