"""A streaming step of Zipformer 2 in numpy, for one stream: the readable counterpart of the compiled step.

Frames come first: (T, D). Values of modules are kept by name, to compare them with those of a graph. Source: icefall's
Zipformer2, whose methods `streaming_forward` are followed one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from model.published.compiled.linears import Linear
from model.published.compiled.zipformer2.constants import Norm
from model.published.compiled.zipformer2.weights import PRODUCTS, Depthwise, Layer, Stack, Zipformer2Weights

Floats = NDArray[np.float32]


def swoosh(x: Floats, shift: float, offset: float) -> Floats:
    return np.asarray(np.logaddexp(np.float32(0), x - np.float32(shift)) - 0.08 * x - offset, np.float32)


def swoosh_l(x: Floats) -> Floats:
    return swoosh(x, 4.0, 0.035)


def swoosh_r(x: Floats) -> Floats:
    return swoosh(x, 1.0, 0.313261687)


def linear(layer: Linear, x: Floats) -> Floats:
    return x @ layer.weight + layer.bias


def bias_norm(norm: Norm, x: Floats) -> Floats:
    return np.asarray(x * np.mean((x - norm.bias) ** 2, axis=-1, keepdims=True) ** -0.5 * norm.scale, np.float32)


def softmax(x: Floats) -> Floats:
    power = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(power / power.sum(axis=-1, keepdims=True), np.float32)


def bypass(before: Floats, after: Floats, scale: Floats) -> Floats:
    return before + (after - before) * scale


def channels_of(x: Floats, width: int) -> Floats:
    """The first `width` channels, or all of them and zeros."""
    return x[:, :width] if x.shape[1] >= width else np.pad(x, ((0, 0), (0, width - x.shape[1])))


def downsample(x: Floats, weights: Floats) -> Floats:
    return np.asarray(np.einsum("tfd,f->td", x.reshape(-1, len(weights), x.shape[1]), weights), np.float32)


class Stream:
    """A stream's state, and its steps."""

    def __init__(self, weights: Zipformer2Weights) -> None:
        self._weights = weights
        self._processed = 0
        self._caches: dict[str, Floats] = {}
        self.values: dict[str, Floats] = {}
        """Output of each module in the last step."""

    def step(self, window: Floats) -> Floats:
        """Features (L, 80) → results (T / 2, V)."""
        weights = self._weights
        x, outputs = self._embedded(window), []
        for number, stack in enumerate(weights.stacks):
            x = self._stack(f"encoders.{number}", stack, channels_of(x, stack.width))
            outputs.append(x)
        self._processed += weights.frames
        pieces = [outputs[-1]]
        for output in outputs[-2::-1]:
            width = sum(each.shape[1] for each in pieces)
            pieces += [output[:, width:]] if output.shape[1] > width else []
        x = linear(weights.head, downsample(np.concatenate(pieces, axis=1), weights.downsampling))
        return np.asarray(np.log(softmax(x)) if weights.log_probs else x, np.float32)

    def _joined(self, name: str, x: Floats, kept: int) -> Floats:
        """Cached frames followed by x; the last ones are the next cache."""
        cache = self._caches.get(name, np.zeros((kept, *x.shape[1:]), np.float32))
        joined = np.concatenate([cache, x])
        self._caches[name] = joined[len(joined) - kept :]
        return joined

    def _embedded(self, window: Floats) -> Floats:
        embedding = self._weights.embedding
        x = np.pad(window, ((0, 0), (1, 1)))[:, :, None]  # (L, 82, 1)
        for (weight, bias), (down, across) in zip(embedding.convolutions, ((1, 1), (2, 2), (1, 2)), strict=True):
            windows = sliding_window_view(x, (3, 3), axis=(0, 1))[::down, ::across]
            x = swoosh_r(np.einsum("tfcij,ocij->tfo", windows, weight, optimize=True).astype(np.float32) + bias)
        frames = len(x) - 3
        cache = self._caches.get("embed", np.zeros((3, *x.shape[1:]), np.float32))
        joined = np.concatenate([cache, x])
        self._caches["embed"] = joined[frames : frames + 3]
        weight, bias = embedding.depthwise
        windows = sliding_window_view(np.pad(joined, ((0, 0), (3, 3), (0, 0))), (7, 7), axis=(0, 1))
        mixed = np.einsum("tfcij,cij->tfc", windows, weight[:, 0], optimize=True).astype(np.float32) + bias
        x = x[:frames] + linear(embedding.narrow, swoosh_l(linear(embedding.wide, mixed)))
        self.values["embedding.convnext"] = x
        x = x.transpose(0, 2, 1).reshape(frames, -1)  # channels before bins
        x = self.values["embedding"] = bias_norm(embedding.norm, linear(embedding.out, x))
        return x

    def _stack(self, name: str, stack: Stack, before: Floats) -> Floats:
        x = downsample(before, stack.downsampling) if stack.factor > 1 else before
        for number, layer in enumerate(stack.layers):
            x = self._layer(f"{name}.layers.{number}", stack, layer, x)
        if stack.combination is not None:
            x = bypass(before, np.repeat(x, stack.factor, axis=0), stack.combination)
        self.values[name] = x
        return x

    def _layer(self, name: str, stack: Stack, layer: Layer, x: Floats) -> Floats:
        product = dict(zip(PRODUCTS, layer.products, strict=True))
        before = x

        def keep(part: str, value: Floats) -> Floats:
            self.values[f"{name}.{part}"] = value
            return value

        def forward(number: int) -> Floats:
            inner = linear(product[f"feed_forward{number}.in_proj"], x)
            return keep(f"feed_forward{number}", linear(product[f"feed_forward{number}.out_proj"], swoosh_l(inner)))

        def attend(number: int) -> Floats:
            values = linear(product[f"self_attn{number}.in_proj"], x)
            joined = self._joined(f"{name}.value{number}", values, stack.left)
            by_head = joined.reshape(len(joined), stack.heads, -1)
            mixed = np.einsum("hts,shv->thv", weights, by_head).reshape(stack.frames, -1)
            return keep(f"self_attn{number}", linear(product[f"self_attn{number}.out_proj"], mixed))

        def convolve(number: int) -> Floats:
            inner, gate = np.split(linear(product[f"conv_module{number}.in_proj"], x), 2, axis=1)
            y = self._convolved(
                f"{name}.conv{number}",
                layer.convolutions[number - 1],
                inner * np.exp(-np.logaddexp(np.float32(0), -gate)),
            )
            return keep(f"conv_module{number}", linear(product[f"conv_module{number}.out_proj"], swoosh_r(y)))

        weights = keep("self_attn_weights", self._attention(name, stack, layer, x))
        x = x + forward(1)
        gate, inner, after = np.split(linear(product["nonlin_attention.in_proj"], x), 3, axis=1)
        joined = self._joined(f"{name}.nonlinear", inner * np.tanh(gate), stack.left)
        mixed = linear(product["nonlin_attention.out_proj"], weights[0] @ joined * after)
        x = x + keep("nonlin_attention", mixed)
        x = x + attend(1)
        x = x + convolve(1)
        x = x + forward(2)
        x = bypass(before, x, layer.middle)
        x = x + attend(2)
        x = x + convolve(2)
        x = x + forward(3)
        return keep("end", bypass(before, bias_norm(layer.norm, x), layer.end))

    def _attention(self, name: str, stack: Stack, layer: Layer, x: Floats) -> Floats:
        """Attention weights (heads, T, left + T)."""
        heads, frames, wide = stack.heads, stack.frames, stack.heads * stack.query
        projected = linear(layer.products[0], x)
        query, key, place = np.split(projected, [wide, 2 * wide], axis=1)
        keys = self._joined(f"{name}.key", key, stack.left).reshape(-1, heads, stack.query)
        scores: Any = np.einsum("thd,shd->hts", query.reshape(frames, heads, -1), keys)
        relative = np.einsum("thp,hpr->htr", place.reshape(frames, heads, -1), layer.positions)
        for frame in range(frames):
            first = frames - 1 - frame
            scores[:, frame] += relative[:, frame, first : first + len(keys)]
        missing = max(0, stack.left - self._processed // stack.factor)
        scores[:, :, :missing] = -1000
        return softmax(scores)

    def _convolved(self, name: str, weights: Depthwise, x: Floats) -> Floats:
        half, frames = len(weights.causal) - 1, len(x)
        joined = self._joined(name, x, half)
        causal = np.einsum("tdk,kd->td", sliding_window_view(joined, half + 1, axis=0), weights.causal)
        padded = np.pad(x, ((half, half), (0, 0)))
        chunk = np.einsum("tdk,kd->td", sliding_window_view(padded, 2 * half + 1, axis=0), weights.chunk)
        assert len(causal) == len(chunk) == frames
        return np.asarray(causal + weights.causal_bias + (chunk + weights.chunk_bias) * weights.edge, np.float32)
