"""The encoder-decoder network of `model.moonshine` once more, in numpy and floats, from its weights as they ship."""

import math

import numpy as np

HEADS, DEEP, ROTATED = 8, 36, 32
_erf = np.vectorize(math.erf, otypes=[np.float32])


def read(tensors, pcm, most=60):
    """Return the symbols of samples, and the mean of their log-probabilities with that of the end."""
    hidden = encode(tensors, pcm.astype(np.float32) / 32_768)
    return decode(tensors, hidden, most)


def encode(tensors, samples):
    x = np.tanh(convolved(samples[:, None], tensors["encoder.first"][:, :, None], 0, 64))
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * tensors["encoder.group_gain"] + tensors["encoder.group_bias"]
    for name, taps, stride in (("second", 7, 3), ("third", 3, 2)):
        weight = weights(tensors, f"encoder.{name}")
        x = gelu(convolved(x, weight.reshape(len(weight), taps, -1), tensors[f"encoder.{name}.bias"], stride))
    places = np.arange(len(x))
    for block in range(6):
        at = f"encoder.{block}."
        y = norm(x, tensors[f"{at}attention_norm"])
        query, key, value = (heads(linear(tensors, f"{at}{part}", y)) for part in ("query", "key", "value"))
        x = x + linear(tensors, f"{at}attended", attended(turned(query, places), turned(key, places), value))
        y = gelu(linear(tensors, f"{at}inner", norm(x, tensors[f"{at}feed_norm"])))
        x = x + linear(tensors, f"{at}outer", y)
    return norm(x, tensors["encoder.norm"])


def decode(tensors, hidden, most):
    own = [([], []) for _ in range(6)]
    symbol, symbols, total = 1, [], 0.0
    for place in range(most):
        x = weights(tensors, "symbols")[symbol][None]
        for block, (keys, values) in enumerate(own):
            at = f"decoder.{block}."
            y = norm(x, tensors[f"{at}attention_norm"])
            query, key, value = (heads(linear(tensors, f"{at}{part}", y)) for part in ("query", "key", "value"))
            keys.append(turned(key, np.array([place])))
            values.append(value)
            mixed = attended(turned(query, np.array([place])), np.concatenate(keys), np.concatenate(values))
            x = x + linear(tensors, f"{at}attended", mixed)
            query = heads(linear(tensors, f"{at}cross_query", norm(x, tensors[f"{at}cross_norm"])))
            key, value = (heads(linear(tensors, f"{at}cross_{part}", hidden)) for part in ("key", "value"))
            x = x + linear(tensors, f"{at}crossed", attended(query, key, value))
            left, gate = np.split(linear(tensors, f"{at}inner", norm(x, tensors[f"{at}feed_norm"])), 2, axis=1)
            x = x + linear(tensors, f"{at}outer", left * gate / (1 + np.exp(-gate)))
        scores = linear(tensors, "symbols", norm(x, tensors["decoder.norm"]))[0]
        symbol = int(scores.argmax())
        total -= math.log(np.exp(scores - scores.max()).sum())
        if symbol == 2:
            break
        symbols.append(symbol)
    return symbols, total / (len(symbols) + 1)


def weights(tensors, name):
    return tensors[f"{name}.weight"] * tensors[f"{name}.weight_scale"][:, None]


def linear(tensors, name, x):
    return x @ weights(tensors, name).T + tensors[f"{name}.bias"]


def convolved(x, weight, bias, stride):
    taps = weight.shape[1]
    places = np.arange((len(x) - taps) // stride + 1)[:, None] * stride + np.arange(taps)
    return np.einsum("tki,oki->to", x[places], weight, optimize=True) + bias


def gelu(x):
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def norm(x, gain):
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * gain


def heads(x):
    return x.reshape(len(x), HEADS, DEEP)


def turned(x, places):
    angles = (places[:, None] * 10_000.0 ** (-2.0 * np.arange(ROTATED // 2) / ROTATED))[:, None]
    left, right = x[..., 0:ROTATED:2], x[..., 1:ROTATED:2]
    out = x.copy()
    out[..., 0:ROTATED:2] = left * np.cos(angles) - right * np.sin(angles)
    out[..., 1:ROTATED:2] = right * np.cos(angles) + left * np.sin(angles)
    return out


def attended(query, key, value):
    scores = np.einsum("qhd,khd->hqk", query, key) / math.sqrt(DEEP)
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", powers / powers.sum(axis=2, keepdims=True), value)
    return mixed.reshape(len(query), -1)
