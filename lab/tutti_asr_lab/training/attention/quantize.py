"""Quantize a fine-tuned network: `python -m tutti_asr_lab.training.attention.quantize RUN --out FILE`.

Products as in `tutti_asr_lab.training.quantization.quantize`. Queries, keys and values become integers of the step:
their scales move into the weights before and after attention, so that the step needs one factor a head.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.acoustic import log_probs_of
from model.attention.checkpoint import AttentionModel, save_attention
from model.attention.quantized import (
    BLOCK_LINEARS,
    LARGEST_KEY,
    LARGEST_QUERY,
    NORMS,
    QuantizedAttention,
    tensor_shapes,
)
from model.attention_config import HOPS, AttentionConfig, StepForm
from model.ctc.greedy import best_path
from model.errors import ModelError
from model.evaluation.scoring import by_source, report
from model.int8.quantized import QuantizedProduct
from model.recordings import Utterance, read_manifests, read_pcm
from tutti_asr_lab.training.attention.network import AttentionNetwork, Block
from tutti_asr_lab.training.quantization.calibration import KEPT, in_rows
from tutti_asr_lab.training.quantization.quantize import fold_norm, quantize_product

CHUNKS = (20, 0)  # how far the frames see while the ranges are measured: as a stream's, and the whole row
ROW_STEPS = 50  # of 160 ms
RANGE = 0.9999  # quantile of the magnitudes of queries, keys and values that their integers reach
RECORDINGS = 160
_LEAST = 1e-6

Inputs = dict[str, Tensor]


@torch.no_grad()
def quantize(
    network: AttentionNetwork, recordings: Sequence[NDArray[np.int16]], announce: Callable[[str], None] = lambda _: None
) -> QuantizedAttention:
    """Quantize a float32 network with the ranges of its activations on the recordings, (S,) int16 each.

    Deterministic; the given network is not changed.
    """
    config = network.config
    pcm = in_rows(recordings, config, ROW_STEPS)
    folded = copy.deepcopy(network).float().eval()
    inputs = inputs_of(folded, pcm)
    for number, block in enumerate(folded.blocks):
        prefix = f"blocks.{number}."
        for linear, norm in NORMS.items():
            fold_norm(_norm(block, norm), _linear(block, linear), inputs[prefix + linear])
    inputs = inputs_of(folded, pcm)
    tensors: dict[str, NDArray[np.float32]] = {}
    for number, block in enumerate(folded.blocks):
        prefix = f"blocks.{number}."
        steps, factors = fold_attention(cast(Block, block), inputs[prefix + "attention_in"])
        inputs[prefix + "attention_out"] /= steps
        tensors[prefix + "factors"] = factors
        for name in ("feed1.outer", "feed2.outer"):
            _linear(block, name).weight.mul_(0.5)
            _linear(block, name).bias.mul_(0.5)
    products: dict[str, QuantizedProduct] = {}
    linears = linears_of(folded)
    for number, (name, product) in enumerate(linears.items(), 1):
        products[name] = quantize_product(product, inputs[name])
        announce(f"rounded {name}, {number} of {len(linears)}")
    state = {name: value.numpy().copy() for name, value in folded.state_dict().items()}
    for name, shape in tensor_shapes(config).items():
        if name not in tensors:
            tensors[name] = state[name].reshape(shape)
    return QuantizedAttention(config, products, tensors)


def linears_of(network: AttentionNetwork) -> dict[str, nn.Linear]:
    """Products of a network by name; that of the stem takes three frames of features one after the other."""
    stem = nn.Linear(3 * network.config.mel_bins, network.config.width)
    stem.weight.copy_(network.stem.weight.transpose(1, 2).flatten(1))
    stem.bias.copy_(cast(Tensor, network.stem.bias))
    found = {"stem": stem}
    for number, block in enumerate(network.blocks):
        found |= {f"blocks.{number}.{name}": _linear(block, name) for name in BLOCK_LINEARS}
    return found | {"head": network.head}


@torch.no_grad()
def inputs_of(network: AttentionNetwork, pcm: Tensor) -> Inputs:
    """Inputs of every product by name, (N, in) float32, on rows of audio (B, S) int16."""
    found: dict[str, list[Tensor]] = {}
    batches = torch.split(pcm, 8)
    share = max(1, KEPT // (len(batches) * len(CHUNKS)))

    def keep(name: str, x: Tensor) -> None:
        rows = x.flatten(0, -2)
        found.setdefault(name, []).append(rows[:: max(1, -(-len(rows) // share))].clone())

    def hook(name: str) -> Callable[..., None]:
        return lambda _module, arguments: keep(name, arguments[0])

    named = {f"blocks.{number}.{name}": block.get_submodule(name) for number, block in enumerate(network.blocks)
             for name in BLOCK_LINEARS} | {"head": network.head}  # fmt: skip
    hooks = [module.register_forward_pre_hook(hook(name)) for name, module in named.items()]
    try:
        for rows in batches:
            features = network.read(rows)
            padded = nn.functional.pad(features, (0, 0, 1, 0))  # (B, 2T + 1, F)
            keep("stem", padded.unfold(1, HOPS + 1, HOPS).transpose(2, 3).flatten(2))
            frames = torch.full((len(rows),), features.shape[1] // HOPS)
            for chunk in CHUNKS:
                network(features, frames, chunk, network.config.form.left)
    finally:
        for each in hooks:
            each.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


@torch.no_grad()
def fold_attention(block: Block, x: Tensor) -> tuple[Tensor, NDArray[np.float32]]:
    """Scale the products around attention, in place, so that queries, keys and values are integers.

    `x` (N, D): inputs of the first product. Returns: the unit of each value's channel, (D,), by which the inputs of the
    second product are to be divided; factors of the scores (heads,).
    """
    width = x.shape[1]
    deep = width // block.heads
    incoming, outgoing = block.attention_in, block.attention_out
    queries, keys, values = (highest(part) for part in incoming(x).split(width, 1))  # (D,) each
    balance = (queries / keys).sqrt()  # of a channel: then both have the same range
    both = (queries * keys).sqrt().view(block.heads, deep).amax(1)  # (heads,)
    query_units = (both / LARGEST_QUERY).repeat_interleave(deep)
    key_units = (both / LARGEST_KEY).repeat_interleave(deep)
    value_units = values / LARGEST_KEY
    units = torch.cat([query_units * balance, key_units / balance, value_units])
    incoming.weight.div_(units[:, None])
    incoming.bias.div_(units)
    outgoing.weight.mul_(value_units)
    factors = both.square() / (LARGEST_QUERY * LARGEST_KEY * math.sqrt(deep))
    return value_units, factors.numpy().astype(np.float32)


def highest(x: Tensor) -> Tensor:
    """Range of each column of x (N, C): (C,)."""
    return torch.quantile(x.abs(), RANGE, dim=0).clamp_min(_LEAST)


def load(folder: Path, others: Sequence[tuple[Path, float]] = ()) -> AttentionNetwork:
    """Network of a finished run, with the record of its training.

    `others`: weights of other runs from the same start, and their shares in the mean; the run's own has what is left.
    Source of the mean: Wortsman et al. 2022, "Model soups".
    """
    described: dict[str, Any] = json.loads((folder / "average.json").read_text())
    described["form"] = dataclasses.asdict(StepForm())
    parts = [(folder / "average.pt", 1 - sum(share for _, share in others)), *others]
    described["training"] |= {"mean_of": {f"{path.parent.name}/{path.name}": share for path, share in parts}}
    network = AttentionNetwork(AttentionConfig.from_dict(described))
    states = [(torch.load(path, weights_only=True), share) for path, share in parts]
    network.load_state_dict({name: sum(state[name] * share for state, share in states) for name in states[0][0]})
    return network.eval()


def _linear(block: nn.Module, name: str) -> nn.Linear:
    return cast(nn.Linear, block.get_submodule(name))


def _norm(block: nn.Module, name: str) -> nn.LayerNorm:
    return cast(nn.LayerNorm, block.get_submodule(name))


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - progress of a program


def validated(network: QuantizedAttention, utterances: Sequence[Utterance]) -> QuantizedAttention:
    """Record error rates of the letters' best paths, as a stream outputs them, in the network's training record."""
    model = AttentionModel(network, "")
    config = model.config
    outputs = log_probs_of(model, [read_pcm(utterance.audio, config.sample_rate) for utterance in utterances])
    letters = [best_path(rows[config.delay_frames :, : len(config.vocabulary)], config.vocabulary) for rows in outputs]
    scored = ((utterance.source, utterance.text, text) for utterance, text in zip(utterances, letters, strict=True))
    record = network.config.training | {"validation": report(by_source(scored))}
    return dataclasses.replace(network, config=dataclasses.replace(network.config, training=record))


def main() -> None:
    """Quantize the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--manifest", type=Path, action="append", required=True, help="recordings of training")
    parser.add_argument("--validation", type=Path, required=True, help="recordings to validate on")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write")
    parser.add_argument(
        "--mean", nargs=2, action="append", default=[], metavar=("FILE", "SHARE"), help="weights to average with"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        utterances = read_manifests(options.manifest)
        spread = utterances[:: max(1, len(utterances) // RECORDINGS)]
        network = load(options.run, [(Path(path), float(share)) for path, share in options.mean])
        recordings = [read_pcm(utterance.audio, network.config.sample_rate) for utterance in spread]
        quantized = quantize(network, recordings, _say)
        save_attention(validated(quantized, read_manifests([options.validation])), options.out)
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
