"""A FastConformer in floats, layer by layer over whole recordings: the weights of one layer at a time are read.

Each frame attends to the same frames as when it is streamed, so the results are those of the streaming network but for
the order of sums. Every product passes its inputs to an observer, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from model.published.compiled.fastconformer.weights import (
    LAYER_NORM_EPSILON,
    TAPS,
    FastConformerWeights,
    Layer,
    Part,
    Sizes,
)
from model.published.compiled.linears import Linear

Floats = NDArray[np.float32]
Observer = Callable[[str, Floats], None]
"""(name of a product, inputs (N, K))"""

WINDOWS = 32  # of a recording that are subsampled at once
CHUNKS = 64  # of a recording whose scores are computed at once
MASKED = np.float32(-1e30)


def encode(
    weights: FastConformerWeights, recordings: Sequence[Floats], observe: Observer, language: int = 0
) -> list[Floats]:
    """Return the frames (T, D) of recordings, each given as its windows (W, L, bins); T = W times frames of a step.

    `language`: number of the one that all of them choose, for a network with languages.
    """
    encoded = [_subsampled(weights, windows, observe) for windows in recordings]
    for layer in weights.layers:
        positions = _positions(layer, weights)
        encoded = [_layer(layer, weights.sizes, positions, x, observe) for x in encoded]
    return [_prompted(weights, language, x, observe) for x in encoded] if weights.prompt else encoded


def _prompted(weights: FastConformerWeights, language: int, x: Floats, observe: Observer) -> Floats:
    """Apply the layers that read a frame and a one for the language."""
    first, second = weights.prompt
    chosen = np.zeros((len(x), weights.sizes.prompts), np.float32)
    chosen[:, language] = 1
    return _apply(second, np.maximum(_apply(first, np.concatenate([x, chosen], axis=1), observe), 0), observe)


def _subsampled(weights: FastConformerWeights, windows: Floats, observe: Observer) -> Floats:
    parts = [_image(weights, windows[at : at + WINDOWS], observe) for at in range(0, len(windows), WINDOWS)]
    flat = np.concatenate(parts)
    return _apply(weights.subsampling[2], flat, observe) * np.float32(weights.sizes.scale)


def _image(weights: FastConformerWeights, windows: Floats, observe: Observer) -> Floats:
    """Return the flat images (frames, C * bins) of the new frames of windows."""
    first, second, third = weights.images
    x = np.maximum(_convolved(windows[..., np.newaxis], first), 0)
    for image, linear in zip((second, third), weights.subsampling[:2], strict=True):
        x = np.maximum(_apply(linear, _convolved(x, image), observe), 0)
    x = x[:, -weights.sizes.frames :]
    return x.transpose(0, 1, 3, 2).reshape(len(windows) * weights.sizes.frames, -1)


def _convolved(x: Floats, part: Part) -> Floats:
    """Convolve each channel of (W, T, F, C), or one channel to all, with stride 2; two zeros before, one after."""
    frames, bins = (size // 2 + 1 for size in x.shape[1:3])
    padded = np.pad(x, ((0, 0), (2, 1), (2, 1), (0, 0)))
    total = np.broadcast_to(part.bias, (len(x), frames, bins, len(part.bias))).copy()
    for tap, weight in enumerate(part.weight):
        row, column = divmod(tap, TAPS)
        total += padded[:, row : row + 2 * frames - 1 : 2, column : column + 2 * bins - 1 : 2] * weight
    return total


def _layer(layer: Layer, sizes: Sizes, positions: Floats, x: Floats, observe: Observer) -> Floats:
    first, second, query, key, value, attended, gated, mixed, third, fourth = layer.linears
    feed, attend, convolve, feed_again, end = layer.norms
    half = np.float32(0.5)
    x = x + half * _apply(second, _silu(_apply(first, _norm(feed, x), observe)), observe)
    normed = _norm(attend, x)
    heads = [_apply(each, normed, observe).reshape(len(x), sizes.heads, -1) for each in (query, key, value)]
    x = x + _apply(attended, _attention(layer, sizes, positions, heads), observe)
    left, right = np.split(_apply(gated, _norm(convolve, x), observe), 2, axis=1)
    y = _depthwise(layer.depthwise, left / (1 + np.exp(-right)))
    if layer.convolution_norm is not None:
        y = _norm(layer.convolution_norm, y)
    x = x + _apply(mixed, _silu(y), observe)
    x = x + half * _apply(fourth, _silu(_apply(third, _norm(feed_again, x), observe)), observe)
    return _norm(end, x)


def _positions(layer: Layer, weights: FastConformerWeights) -> Floats:
    """Project the positions left + frames - 1 … 1 - frames: (P, H, D / H)."""
    sizes, middle = weights.sizes, len(weights.positions) // 2
    furthest = sizes.left + sizes.frames - 1
    wanted = weights.positions[middle - furthest : middle + sizes.frames]
    return (wanted @ layer.position.weight + layer.position.bias).reshape(len(wanted), sizes.heads, -1)


def _attention(layer: Layer, sizes: Sizes, positions: Floats, heads: Sequence[Floats]) -> Floats:
    """Attend from each chunk of `frames` frames to itself and the `left` frames before it: (T, D)."""
    query, key, value = heads
    frames, seen = sizes.frames, sizes.left + sizes.frames
    before = ((sizes.left, 0), (0, 0), (0, 0))
    key, value = np.pad(key, before), np.pad(value, before)
    content, placed = query + layer.content_offset, query + layer.position_offset
    by_place = np.einsum("thd,phd->htp", placed, positions, optimize=True)
    shifts = np.arange(seen) + frames - 1 - np.arange(frames)[:, np.newaxis]  # (frames, seen): places of distances
    results = []
    for first in range(0, len(query) // frames, CHUNKS):
        starts = np.arange(first, min(first + CHUNKS, len(query) // frames)) * frames
        attended = starts[:, np.newaxis] + np.arange(seen)  # rows of the padded keys
        rows = starts[:, np.newaxis] + np.arange(frames)
        scores = content[rows].transpose(0, 2, 1, 3) @ key[attended].transpose(0, 2, 3, 1)  # (chunks, H, frames, seen)
        scores += by_place[:, rows[:, :, np.newaxis], shifts].transpose(1, 0, 2, 3)
        scores *= np.float32(query.shape[2] ** -0.5)
        scores = np.where((attended < sizes.left)[:, np.newaxis, np.newaxis], MASKED, scores)
        power = np.exp(scores - scores.max(axis=-1, keepdims=True))
        share = power / power.sum(axis=-1, keepdims=True)
        mixed = share @ value[attended].transpose(0, 2, 1, 3)
        results.append(mixed.transpose(0, 2, 1, 3).reshape(len(starts) * frames, -1))
    return np.concatenate(results)


def _depthwise(part: Part, x: Floats) -> Floats:
    """Convolve each channel of (T, D) with the frames before."""
    padded = np.pad(x, ((len(part.weight) - 1, 0), (0, 0)))
    total = np.broadcast_to(part.bias, x.shape).copy()
    for tap, weight in enumerate(part.weight):
        total += padded[tap : tap + len(x)] * weight
    return total


def _norm(part: Part, x: Floats) -> Floats:
    distance = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(distance).mean(axis=-1, keepdims=True)
    scaled = distance / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON))
    return np.asarray(scaled * part.weight + part.bias, np.float32)


def _silu(x: Floats) -> Floats:
    return np.asarray(x / (1 + np.exp(-x)), np.float32)


def _apply(linear: Linear, x: Floats, observe: Observer) -> Floats:
    observe(linear.name, x.reshape(-1, x.shape[-1]))
    return np.asarray(x @ linear.weight + linear.bias, np.float32)
