"""Zipformer 2 with its weights packed for the compiled step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from model.int8.vectors import LANES
from model.machine.memory import ALIGNED, KeptArrays, offsets_of, whole_lines
from model.published.compiled.linears import NO_SYMBOL, Linear, LinearTable, Scratch
from model.published.compiled.packed import PackedLayers
from model.published.compiled.zipformer2 import plan as plans
from model.published.compiled.zipformer2.constants import Floats, require
from model.published.compiled.zipformer2.embedding import PAIR, THIRD_BIN
from model.published.compiled.zipformer2.kernels import MASKED
from model.published.compiled.zipformer2.step import step
from model.published.compiled.zipformer2.weights import (
    Depthwise,
    Layer,
    Stack,
    Zipformer2Weights,
    read_weights,
    reduced,
)
from model.published.contracts import Contract
from model.published.graphs.metadata import Graph
from model.published.graphs.onnx_graph import OnnxGraph

BLOCK = 16
"""Most streams of a compiled call. Source: measured on a busy machine; 8, 16 and 32 did not differ beyond noise."""


class Zipformer2Network:
    """Weights of a graph; `step` packs them with the scales of the linear layers."""

    def __init__(self, weights: Zipformer2Weights) -> None:
        self._weights = weights

    @classmethod
    def read(cls, source: OnnxGraph, graph: Graph, contract: Contract) -> Zipformer2Network:
        """Read a published graph. Raises: PublishedModelError with the reason why there is no compiled step for it."""
        weights = read_weights(source, graph, contract)
        for stack in weights.stacks:
            sizes = (stack.width, 3 * stack.width // 4, stack.heads * stack.value)
            require(all(size % LANES == 0 for size in sizes), f"its sizes {sizes} are not multiples of {LANES}")
        return cls(weights)

    @property
    def linears(self) -> Sequence[Linear]:
        """Linear layers, without scales."""
        return self._weights.linears

    def step(self, linears: Sequence[Linear], _packed: PackedLayers | None = None, /) -> Zipformer2Step:
        """Return the step with these layers, in the same order. Raises: ValueError for sizes that do not fit."""
        return Zipformer2Step(self._weights, linears)


class Zipformer2Step:
    """The packed network, shared by all its slots."""

    def __init__(self, weights: Zipformer2Weights, linears: Sequence[Linear]) -> None:
        self._arrays = KeptArrays()  # their addresses are in the plan
        self.block = BLOCK
        stacks, frames = weights.stacks, weights.frames
        layers = _packed_linears(weights, linears)
        self._embedding = self._embedding_plan(weights)
        self._table = LinearTable(layers, rows=max(BLOCK, self._embedding.third_bins) * frames)
        self.result_shape = frames // 2, linears[-1].weight.shape[1]
        widths = [stack.width for stack in stacks]
        self._offset = ALIGNED  # in a stream's state, of the next cache; the number of steps comes first
        embed_cache = self._cache(plans.SIDE * self._embedding.third_bins * plans.CHANNELS[2])
        self._stacks = _stack_plans(stacks, self._arrays.keep)
        layer_rows = [
            self._layer(layer, stack, plan)
            for stack, plan in zip(stacks, self._stacks, strict=True)
            for layer in stack.layers
        ]
        pieces = _pieces(widths)
        self._sizes = plans.Sizes(
            frames=frames,
            stacks=len(stacks),
            pieces=len(pieces),
            wide=max(widths),
            row=sum(widths),
            head=len(layers) - 1,
            symbols=self.result_shape[1],
            log_probs=int(weights.log_probs),
            embed_cache=embed_cache,
        )
        longest = max(plan.keys for plan in self._stacks)
        mask = np.concatenate([np.zeros(longest, np.float32), np.full(longest, MASKED, np.float32)])
        self._constants = plans.Constants(
            linears=self._table.address,
            stacks=self._arrays.keep(np.array(self._stacks, np.int64)),
            layers=self._arrays.keep(np.array(layer_rows, np.int64)),
            pieces=self._arrays.keep(np.array(pieces, np.int64)),
            downsampling=self._arrays.keep(weights.downsampling),
            mask=self._arrays.keep(mask) + longest * 4,
        )
        self.fresh = np.zeros(self._offset, np.uint8)
        self._offsets, self.work_bytes = self._work_offsets()
        self._plans: dict[tuple[int, int], plans.Plan] = {}  # by work space and team

    @property
    def weight_bytes(self) -> int:
        """Size of the weights that a step reads, in bytes."""
        return self._table.weight_bytes + self._arrays.nbytes

    def run(self, work: int, memory: tuple[int, int, int, int, int, int], count: int, team: int = 0, /) -> None:
        """Step `count` streams; see `FastConformerStep.run`."""
        if (work, team) not in self._plans:
            places = {name: work + offset for name, offset in self._offsets.items()}
            scratch = Scratch.taken_from(places, team=team)
            self._plans[work, team] = plans.Plan(
                self._sizes, self._constants, self._embedding, plans.Work(**places), scratch
            )
        step(self._plans[work, team], memory, count)

    def _cache(self, floats: int) -> int:
        """Reserve a part of a stream's state; return its offset."""
        offset = self._offset
        self._offset += whole_lines(floats * 4)
        return offset

    def _layer(self, layer: Layer, stack: Stack, plan: plans.StackPlan) -> list[int]:
        """Return a row of the table of layers."""
        positions = np.zeros((*layer.positions.shape[:2], plan.relative), np.float32)
        positions[:, :, : layer.positions.shape[2]] = layer.positions
        ends = [positions, layer.middle, layer.end, layer.norm.bias, np.array([layer.norm.scale], np.float32)]
        convolved: list[Floats] = []
        for name in ("causal", "causal_bias", "chunk", "chunk_bias", "edge"):
            convolved += [_part(convolution, name) for convolution in layer.convolutions]
        values = plan.slots * stack.heads * stack.value + LANES  # a vector may be read after the last value
        caches = [stack.heads * stack.query * plan.keys, plan.slots * plan.inner, values, values]
        caches += [stack.taps // 2 * stack.width] * 2
        return [*map(self._arrays.keep, ends + convolved), *map(self._cache, caches)]

    def _embedding_plan(self, weights: Zipformer2Weights) -> plans.EmbeddingPlan:
        embedding, bins = weights.embedding, weights.bins
        pairs, second = -(-bins // PAIR), reduced(bins)
        (first, *others), repeats = embedding.convolutions, (second, reduced(second))
        arrays = [_pairs(first[0]), *(weight.transpose(2, 3, 1, 0) for weight, _ in others)]
        biases = [np.tile(first[1], pairs * PAIR)]
        biases += [np.tile(bias, count) for (_, bias), count in zip(others, repeats, strict=True)]
        w0, w1, w2 = map(self._arrays.keep, arrays)
        b0, b1, b2 = map(self._arrays.keep, biases)
        return plans.EmbeddingPlan(
            window=weights.window,
            bins=bins,
            pairs=pairs,
            second_bins=second,
            third_bins=repeats[1],
            features_row=4 * LANES * -(-(bins + PAIR + 1) // LANES),  # between zeros
            first_row=4 * plans.CHANNELS[0] * pairs * PAIR,
            second_row=4 * plans.CHANNELS[1] * second,
            third_row=THIRD_BIN * (repeats[1] + 2 * plans.SIDE),  # between bins of zeros
            weights=(w0, w1, w2),
            biases=(b0, b1, b2),
            depthwise=self._arrays.keep(embedding.depthwise[0].transpose(2, 3, 1, 0)),
            depthwise_bias=self._arrays.keep(embedding.depthwise[1]),
            norm_bias=self._arrays.keep(embedding.norm.bias),
            norm_scale=self._arrays.keep(np.array([embedding.norm.scale], np.float32)),
        )

    def _work_offsets(self) -> tuple[dict[str, int], int]:
        """Return the offsets of the parts of the work space, and its size in bytes."""
        sizes, stacks = self._sizes, self._stacks
        frames, rows = sizes.frames, BLOCK * sizes.frames
        channels, head = plans.CHANNELS[2], -(-sizes.symbols // LANES) * LANES
        inputs, sums, hidden = self._table.scratch_bytes

        def most(size: Any) -> int:
            return max(int(size(stack)) for stack in stacks)

        projected = most(
            lambda s: s.frames * max(2 * s.width, 3 * s.inner, s.heads * (2 * s.query + s.place), s.value_row)
        )
        floats = {
            "bins": self._embedding.window * self._embedding.features_row // 4,
            "first": self._embedding.window * self._embedding.first_row // 4,
            "second": self._embedding.window * self._embedding.second_row // 4,
            "third": (frames + 2 * plans.SIDE) * self._embedding.third_row // 4,
            "convnext": frames * self._embedding.third_bins * channels,
            "embedded": rows * stacks[0].width,
            "entered": rows * sizes.wide,
            "x": rows * sizes.wide,
            "before": rows * sizes.wide,
            "projected": BLOCK * max(projected, frames // 2 * head),
            "mixed": BLOCK * most(lambda s: s.frames * max(s.width, s.value_row)),
            "attention": BLOCK * most(lambda s: s.heads * s.frames * s.keys),
            "relative": most(lambda s: s.frames * s.relative),
            "turned": most(lambda s: s.keys),
            "joined": most(lambda s: (s.taps // 2 + s.frames) * s.width),
            "outputs": rows * sizes.row,
            "final": rows * sizes.wide,
            "spare": head,
        }
        lengths = {name: 4 * count for name, count in floats.items()}
        return offsets_of({"inputs": inputs, "sums": sums, "hidden": hidden} | lengths)


def _packed_linears(weights: Zipformer2Weights, linears: Sequence[Linear]) -> list[Linear]:
    """Return the layers as the step uses them: inputs of the embedding by bin, whole vectors of symbols."""
    layers = list(linears)
    out, head = layers[2], layers[-1]
    by_bin = out.weight.reshape(plans.CHANNELS[2], -1, out.weight.shape[1]).transpose(1, 0, 2)
    layers[2] = replace(out, weight=np.ascontiguousarray(by_bin.reshape(out.weight.shape)))
    layers[-1] = head.widened(NO_SYMBOL if weights.log_probs else 0.0)
    return layers


def _stack_plans(stacks: Sequence[Stack], keep: Any) -> list[plans.StackPlan]:
    stack_plans: list[plans.StackPlan] = []
    for stack in stacks:
        slots = stack.left + stack.frames
        stack_plans.append(
            plans.StackPlan(
                width=stack.width,
                factor=stack.factor,
                frames=stack.frames,
                slots=slots,
                keys=-(-slots // LANES) * LANES,
                relative=-(-(slots + stack.frames - 1) // LANES) * LANES,
                heads=stack.heads,
                query=stack.query,
                place=stack.layers[0].positions.shape[1],
                value=stack.value,
                value_row=stack.heads * stack.value + LANES,
                taps=stack.taps,
                inner=3 * stack.width // 4,
                first_layer=sum(plan.layers for plan in stack_plans),
                layers=len(stack.layers),
                downsampling=keep(stack.downsampling),
                combination=0 if stack.combination is None else keep(stack.combination),
                output=sum(plan.width for plan in stack_plans),
            )
        )
    return stack_plans


def _pieces(widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return where the channels of the final frames come from: the last stack that has them."""
    pieces, width = [], 0
    for number in range(len(widths) - 1, -1, -1):
        if widths[number] > width:
            pieces.append((sum(widths[:number]) + width, width, (widths[number] - width) // LANES))
            width = widths[number]
    return pieces


def _part(convolution: Depthwise, name: str) -> Floats:
    part: Floats = getattr(convolution, name)
    return part


def _pairs(weight: Floats) -> Floats:
    """Return weights (8, 1, 3, 3) as (3 * 4, 2 * 8): four bins of each frame to two bins of outputs."""
    pairs = np.zeros((3, PAIR + 2, PAIR, len(weight)), np.float32)
    for first in range(PAIR):
        pairs[:, first : first + 3, first] = weight[:, 0].transpose(1, 2, 0)
    return pairs.reshape(3 * (PAIR + 2), PAIR * len(weight))
