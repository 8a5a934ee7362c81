"""Histogram of a network's weights by binary exponent: what fp16 and bf16 can hold of them.

A weight of exponent e has a magnitude from 2^e to 2^(e + 1). fp16 has 11 significant bits from 2^-14 on, fewer below
and none below 2^-24; bf16 and fp32 begin at 2^-126. An update smaller than 2^-12 of a weight changes nothing in fp16
(2^-9 in bf16), which is why the weights that updates are added to are float32 in every precision.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from loadtest.measurement.plot import picture

FP16_NORMAL, FP16_LEAST = -14, -24  # exponents of the smallest normal and the smallest positive number


def exponents(weights: Iterable[Tensor]) -> dict[int, int]:
    """Number of weights by exponent, in increasing order; zeros are left out."""
    found: dict[int, int] = {}
    for weight in weights:
        values = weight.detach().float().flatten()
        exponent = torch.frexp(values[values != 0]).exponent - 1  # frexp's mantissas are in [0.5, 1)
        numbers, counts = torch.unique(exponent, return_counts=True)
        for value, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            found[value] = found.get(value, 0) + count
    return dict(sorted(found.items()))


def below(counted: Mapping[int, int], exponent: int) -> float:
    """Share of the weights below 2^exponent."""
    total = sum(counted.values())
    return sum(count for value, count in counted.items() if value < exponent) / total if total else 0.0


def write(counted: Mapping[int, int], path: Path) -> None:
    """Write a CSV file with a row per exponent."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("exponent", "weights"))
        writer.writerows(counted.items())


def draw(counted: Mapping[int, int], path: Path) -> None:
    """Plot the histogram with the limits of fp16."""
    total = sum(counted.values())
    small, lost = below(counted, FP16_NORMAL), below(counted, FP16_LEAST)
    with picture(path, 1, 1, (7, 4)) as (axes,):
        axes.bar(list(counted), [count / total for count in counted.values()], width=0.9)
        for exponent, label in ((FP16_NORMAL, "smallest normal fp16"), (FP16_LEAST, "smallest fp16")):
            axes.axvline(exponent - 0.5, color="C3", linestyle="--" if exponent == FP16_NORMAL else ":", label=label)
        axes.set(title=f"{small:.2%} below the normal numbers of fp16, {lost:.2%} below its smallest")
        axes.set(xlabel="binary exponent of the weight", ylabel="share of weights", yscale="log")
