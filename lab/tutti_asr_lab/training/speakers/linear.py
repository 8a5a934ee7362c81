"""Trains the linear layer of the network of voices, and the mean that is subtracted, on conversations.

`python -m tutti_asr_lab.training.speakers.linear DATA WEIGHTS OUT`: WEIGHTS are those of `convert`; DATA is the folder
of speech, of whose speakers those of training are used, without the readers. The loss wants a vector nearer to the
mean of its voice in the other turns of its conversation than to those of the other voices (Wan et al. 2018,
https://arxiv.org/abs/1710.10467). The layer that is written is half way from the encoder's to the trained one, which
is better for the trained groups and worse for others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import Tensor
from torch.nn import functional

from model.checkpoint import product_arrays, write_atomically
from model.speakers.slot_model import OUTPUT_SCALE, STEP_SAMPLES, ZERO, SpeakerModel, SpeakerWeights
from model.speakers.step import CELLS, CONTROLS, COUNTS, HIDDEN, LAYERS, OUTPUTS, RUNS, fields
from tutti_asr_lab.training.quantization.rounding import rounded_outputs
from tutti_asr_lab.training.speakers.conversations import Band, Conversation, mix, voices_of
from tutti_asr_lab.training.speakers.diarization import recordings_of

CONVERSATIONS, VOICES, TURNS, TELEPHONE = 400, 4, 16, 0.4
SHARES = {"learners": 0.6, "own microphones": 0.4}  # of the conversations
EPOCHS, TOGETHER, RATE, SCALE, DECAY = 16, 4, 1e-3, 8.0, 0.3
PART = 0.5  # of the way to the trained layer

Layer = tuple[Tensor, Tensor, Tensor]  # weight (SIZE, HIDDEN), bias (SIZE,), mean (SIZE,)


@dataclass(frozen=True, slots=True)
class Turns:
    """Outputs of the LSTM where the network has vectors (N, HIDDEN), and the voice and the turn of each (N,)."""

    outputs: Tensor
    voices: Tensor
    turns: Tensor


def vectors_of(outputs: Tensor, layer: Layer) -> Tensor:
    """Return the vectors (N, SIZE), norm 1, of outputs of the LSTM (N, HIDDEN)."""
    weight, bias, mean = layer
    return functional.normalize(functional.normalize(torch.relu(outputs @ weight.T + bias)) - mean)


def loss_of(turns: Turns, layer: Layer) -> Tensor:
    """Return the cross entropy of the right voice, by similarities to the means of the voices of a conversation."""
    vectors = vectors_of(turns.outputs, layer)
    own = functional.one_hot(turns.voices)
    totals = own.T.float() @ vectors
    of_turns = functional.one_hot(turns.turns).T.float() @ vectors
    others = totals[turns.voices] - of_turns[turns.turns]  # of the own voice, without this turn
    similarities = vectors @ functional.normalize(totals).T
    own_similarity = (vectors * functional.normalize(others + 1e-9)).sum(dim=1)
    similarities = torch.where(own.bool(), own_similarity[:, None], similarities)
    known = others.norm(dim=1) > PART
    return functional.cross_entropy(SCALE * similarities[known], turns.voices[known])


def trained(conversations: Sequence[Turns], start: Layer, epochs: int = EPOCHS) -> Layer:
    """Return the layer `PART` of the way from `start` to the trained one."""
    torch.manual_seed(0)
    weight, bias, mean = (part.clone().requires_grad_() for part in start)
    optimizer = torch.optim.Adam([weight, bias, mean], lr=RATE)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = RATE * (1 - epoch / epochs)
        order = torch.randperm(len(conversations)).tolist()
        for begin in range(0, len(order), TOGETHER):
            losses = [loss_of(conversations[at], (weight, bias, mean)) for at in order[begin : begin + TOGETHER]]
            far = ((weight - start[0]) / start[0].std()).square().mean()
            optimizer.zero_grad()
            (torch.stack(losses).mean() + DECAY * far).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    ends = (weight, bias, mean)
    first, second, third = (a + PART * (b.detach() - a) for a, b in zip(start, ends, strict=True))
    return first, second, third


def turns_of(conversation: Conversation, model: SpeakerModel) -> Turns:
    """Run a conversation alone; vectors whose middle is in no turn are left out."""
    model.reset(0)
    outputs, voices, turns = [], [], []
    for step in range(len(conversation.pcm) // STEP_SAMPLES):
        model.inputs[0] = conversation.pcm[step * STEP_SAMPLES : (step + 1) * STEP_SAMPLES]
        length_s = float(model.run([0])[0, 0])
        middle = (step + 1) * STEP_SAMPLES / model.sample_rate - length_s / 2
        places = [at for at, turn in enumerate(conversation.turns) if turn.start_s <= middle <= turn.end_s]
        if length_s and places:
            outputs.append(_outputs(model.export(0)))
            voices.append(conversation.turns[places[0]].speaker)
            turns.append(places[0])
    return Turns(torch.from_numpy(np.stack(outputs)), torch.tensor(voices), torch.tensor(turns))


def _outputs(state: bytes) -> NDArray[np.float32]:
    """Return the outputs of the last layer of the oldest run."""
    numbers = np.frombuffer(state, np.int64, CONTROLS)
    oldest = int(numbers[COUNTS : COUNTS + RUNS].argmax())
    begin = fields()[0].runs + oldest * (OUTPUTS + CELLS) + (LAYERS - 1) * HIDDEN
    integers = np.frombuffer(state, np.uint8, HIDDEN, begin).astype(np.float32)
    return np.asarray((integers - ZERO) * np.float32(OUTPUT_SCALE), np.float32)


def layer_of(weights: SpeakerWeights) -> Layer:
    """Return the linear layer of weights in floats."""
    last = weights.products[-1]
    weight = last.weight.astype(np.float32) * last.scale[:, None]
    return torch.from_numpy(weight), torch.from_numpy(last.bias), torch.from_numpy(weights.center)


def with_layer(path: Path, layer: Layer) -> bytes:
    """Return the weights of a file with another linear layer."""
    weight, bias, mean = (part.numpy() for part in layer)
    integers, scale = rounded_outputs(weight)
    last = replace(SpeakerWeights.load(path).products[-1], weight=integers, scale=scale, bias=bias)
    return save(load(path.read_bytes()) | product_arrays(f"layers.{LAYERS}", last) | {"center": mean})


def conversations_of(data: Path) -> list[Conversation]:
    """Mix conversations of speakers of training."""
    dice, groups = np.random.default_rng(77), recordings_of(data, "train")
    mixed = []
    for _ in range(CONVERSATIONS):
        group = str(dice.choice(list(SHARES), p=list(SHARES.values())))
        band: Band = "mulaw" if dice.random() < TELEPHONE else "wide"
        voices = voices_of(groups[group], dice, VOICES)
        mixed.append(mix(voices, dice, turns=TURNS, overlap=0.0, band=band))
    return mixed


def main() -> None:
    """Write weights with a trained layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    weights = SpeakerWeights.load(options.weights)
    model = SpeakerModel(weights, 1)
    turns = [turns_of(mixed, model) for mixed in conversations_of(options.data)]
    write_atomically(options.out, with_layer(options.weights, trained(turns, layer_of(weights))))


if __name__ == "__main__":
    main()
