"""A cache-aware FastConformer with a compiled step: packed weights, the layout of states, and work space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.int8.vectors import LANES
from model.machine.memory import ALIGNED, KeptArrays, aligned, offsets_of
from model.published.compiled.fastconformer import step as compiled
from model.published.compiled.fastconformer.plan import BORDER, Constants, Dimensions, Fields, Plan, Work
from model.published.compiled.fastconformer.weights import FastConformerWeights, Layer, halved, read_weights
from model.published.compiled.linears import PARTS, Linear, LinearTable, Scratch
from model.published.compiled.packed import PackedLayers
from model.published.contracts import Contract
from model.published.graphs.metadata import Graph
from model.published.graphs.onnx_graph import OnnxGraph

ROWS = 64  # frames of a call: their work space fits the second-level cache
LARGEST_BLOCK = 32  # streams of a call


@dataclass(frozen=True)
class FastConformer:
    """Weights of a published FastConformer."""

    weights: FastConformerWeights

    @classmethod
    def read(cls, graph: OnnxGraph, metadata: Graph, contract: Contract) -> FastConformer:
        """Read a published graph. Raises: PublishedModelError with the reason if it is another network."""
        return cls(read_weights(graph, metadata, contract))

    @cached_property
    def linears(self) -> Sequence[Linear]:
        """Linear layers: those of the subsampling, those of each layer, of the languages, and the output layer."""
        weights = self.weights
        head = [] if weights.head is None else [weights.head]
        layers = (linear for layer in weights.layers for linear in layer.linears)
        return [*weights.subsampling, *layers, *weights.prompt, *head]

    def step(self, linears: Sequence[Linear], packed: PackedLayers | None = None, /) -> FastConformerStep:
        """Return the compiled step with these linear layers, in the order of `linears`."""
        return FastConformerStep(self.weights, linears, packed)


class FastConformerStep:
    """The packed network, shared by all its slots."""

    def __init__(
        self, weights: FastConformerWeights, linears: Sequence[Linear], packed: PackedLayers | None = None
    ) -> None:
        sizes = weights.sizes
        self._sizes = sizes
        self._arrays = KeptArrays()  # their addresses are in the plan
        self.block = max(1, min(LARGEST_BLOCK, ROWS // sizes.frames))
        self.result_shape: tuple[int, ...] = (sizes.frames, sizes.outputs)
        place_rows = halved(sizes.window, 2) * halved(sizes.bins, 2)
        self._halves = any(linear.scale is not None for linear in linears)  # then floats are not exact anyway
        rows = self.block * sizes.frames
        self._subsampling = LinearTable(linears[:3], rows=max(place_rows, rows), packed=packed)
        self._linears = LinearTable(linears[3:], rows=rows, packed=packed)
        self._plan = Plan(self._dimensions(weights), self._constants(weights), self._fields())
        self._offsets, self.work_bytes = self._work_offsets()
        self._works: dict[tuple[int, int], Work] = {}  # by work space and team
        self.fresh = np.zeros(self._plan.fields.first_layer + len(weights.layers) * self._plan.fields.layer, np.uint8)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights that a step reads."""
        return self._arrays.nbytes + self._subsampling.weight_bytes + self._linears.weight_bytes

    def run(self, work: int, memory: tuple[int, int, int, int, int, int], count: int, team: int = 0, /) -> None:
        """Step `count` streams, with work space at the address `work`.

        `memory`: addresses of the windows (count, L, F) float32, of the slots (count,) int64, of the slab of states,
        the bytes from one state to the next, and the addresses of the results (count, …) float32 and of the numbers of
        the streams' languages (count,) int64. `team`: address of a `Team` whose threads help, 0 for none.
        """
        if (work, team) not in self._works:
            self._works[work, team] = self._work(work, team)
        compiled.step(self._plan, self._works[work, team], memory, count)

    def _dimensions(self, weights: FastConformerWeights) -> Dimensions:
        sizes, head = self._sizes, weights.head
        return Dimensions(
            window=sizes.window,
            bins=sizes.bins,
            many=halved(sizes.bins, 1),
            fewer=halved(sizes.bins, 2),
            fewest=halved(sizes.bins, 3),
            first=sizes.subsampled - sizes.frames,
            frames=sizes.frames,
            channels=sizes.channels,
            hidden=sizes.hidden,
            heads=sizes.heads,
            layers=len(weights.layers),
            left=sizes.left,
            ring=_whole_vectors(sizes.left + sizes.frames),
            places=_whole_vectors(sizes.left + 2 * sizes.frames - 1),
            halves=int(self._halves),
            taps=sizes.taps,
            outputs=sizes.outputs,
            padded_outputs=0 if head is None else head.weight.shape[1],
            prompts=sizes.prompts,
        )

    def _constants(self, weights: FastConformerWeights) -> Constants:
        sizes = self._sizes
        images = [self._arrays.keep(array) for part in weights.images for array in (part.weight, part.bias)]
        head_size = np.float32(sizes.hidden // sizes.heads)
        return Constants(
            images=self._arrays.keep(np.array(images, np.int64)),
            subsampling=self._subsampling.address,
            linears=self._linears.address,
            layers=self._arrays.keep(
                np.array([self._layer(layer, weights.positions) for layer in weights.layers], np.int64)
            ),
            scale=self._arrays.keep(np.array([sizes.scale], np.float32)),
            half=self._arrays.keep(np.array([0.5], np.float32)),
            attention_scale=self._arrays.keep(np.array([1 / np.sqrt(head_size)], np.float32)),
        )

    def _layer(self, layer: Layer, positions: NDArray[np.float32]) -> list[int]:
        norms = [self._arrays.keep(array) for norm in layer.norms for array in (norm.weight, norm.bias)]
        mixed = layer.convolution_norm
        return [
            *norms,
            self._arrays.keep(layer.content_offset),
            self._arrays.keep(layer.position_offset),
            self._arrays.keep(self._places(layer.position, positions)),
            self._arrays.keep(layer.depthwise.weight),
            self._arrays.keep(layer.depthwise.bias),
            *([0, 0] if mixed is None else [self._arrays.keep(mixed.weight), self._arrays.keep(mixed.bias)]),
        ]

    def _places(self, position: Linear, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """Project the positions left + frames - 1 … 1 - frames for a layer, by head: (H, D / H, padded positions)."""
        sizes = self._sizes
        middle, furthest = len(table) // 2, sizes.left + sizes.frames - 1
        wanted = np.ascontiguousarray(table[middle - furthest : middle + sizes.frames])
        projected = np.zeros_like(wanted)
        packed = LinearTable([position], rows=1)
        scratch = [aligned(size) for size in packed.scratch_bytes]
        compiled.project_positions(
            packed.address,
            0,
            len(wanted),
            wanted.ctypes.data,
            Scratch(*(int(memory.ctypes.data) for memory in scratch)),
            projected.ctypes.data,
            sizes.hidden * 4,
        )
        by_head = projected.T.reshape(sizes.heads, sizes.hidden // sizes.heads, len(wanted))
        return np.pad(by_head, ((0, 0), (0, 0), (0, _whole_vectors(len(wanted)) - len(wanted))))

    def _fields(self) -> Fields:
        sizes = self._sizes
        frame = sizes.hidden * (2 if self._halves else 4)
        ring, joined = _whole_vectors(sizes.left + sizes.frames) * frame, (sizes.taps - 1) * sizes.hidden * 4
        return Fields(first_layer=ALIGNED, convolution=2 * ring, layer=2 * ring + joined)

    def _work_offsets(self) -> tuple[dict[str, int], int]:
        """Return the offsets of the parts of the work space, and its size in bytes."""
        sizes, plan = self._sizes, self._plan.sizes
        rows, hidden = self.block * sizes.frames, sizes.hidden * 4
        places = [(halved(sizes.window, times), halved(sizes.bins, times)) for times in (1, 2)]
        images = [(frames + BORDER) * (bins + BORDER) * sizes.channels * 4 for frames, bins in places]
        flat = places[1][0] * places[1][1] * sizes.channels * 4
        parts = {
            "features": (sizes.window + BORDER) * (sizes.bins + BORDER) * 4,
            "image": images[0],
            "places": flat,
            "rows": flat,
            "image_again": images[1],
            "reduced": rows * plan.fewest * sizes.channels * 4,
            "x": rows * hidden,
            "normed": rows * hidden,
            "wide": rows * max(2 * hidden, plan.padded_outputs * 4, hidden + sizes.prompts * 4),
            **dict.fromkeys(("query", "key", "value", "content", "position"), rows * hidden),
            "place_scores": sizes.heads * rows * plan.places * 4,
            "scores": max(sizes.frames * plan.ring * 4, hidden),
            "joined": (sizes.taps - 1 + sizes.frames) * hidden,
            "prompted": rows * sizes.prompted * 4,
        }
        for name, table in (("subsampling", self._subsampling), ("scratch", self._linears)):
            parts |= {f"{name}.{part}": size for part, size in zip(PARTS, table.scratch_bytes, strict=True)}
        return offsets_of(parts)

    def _work(self, start: int, team: int) -> Work:
        """Return the addresses of a work space that begins at `start`, with those of a team."""
        places: dict[str, Any] = {name: start + offset for name, offset in self._offsets.items()}
        for name in ("subsampling", "scratch"):
            places[name] = Scratch.taken_from(places, f"{name}.", team)
        return Work(**places)


def _whole_vectors(width: int) -> int:
    """Return the next multiple of the vector size."""
    return -(-width // LANES) * LANES
