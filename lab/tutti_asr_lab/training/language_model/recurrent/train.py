"""Trains the recurrent language model.

Usage: `python -m tutti_asr_lab.training.language_model.recurrent.train TEXT[:TIMES] … --out FILE`.

A text has one sentence per line, as written by `tutti_asr_lab.training.language_model.gathering.texts`; `prompts.txt:4`
is used four times. All lines are shuffled and joined into parallel streams, which are read repeatedly, window by
window, with the state carried over. FILE receives the weights in float32; the pieces are written to the JSON file next
to it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from model import checkpoint
from model.lm.recurrent.pieces import END, Pieces
from model.text.files import read_lines
from tutti_asr_lab.training.language_model.recurrent.network import RecurrentNetwork, loss_of
from tutti_asr_lab.training.language_model.recurrent.pieces import learn_pieces

STREAMS = 256
WINDOW = 32
CLIP_NORM = 1.0
WARMUP = 100
LEAST_RATE = 1e-5
SHOWN_EVERY, CHECKED_EVERY = 50, 500


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters of a training run."""

    pieces: int = 2048
    hidden: int = 512
    updates: int = 5500
    rate: float = 3e-3
    dropout: float = 0.1
    seed: int = 1


def train(
    texts: Sequence[tuple[Path, int]], held_out: Path | None, settings: Settings, out: Path, init: Path | None = None
) -> None:
    """Train on texts, each repeated by its factor, and write the checkpoint; `init` is one to continue from.

    Raises: OSError; ValueError for a text that cannot be read or is too short, or for another kind of checkpoint.
    """
    torch.manual_seed(settings.seed)
    words: Counter[str] = Counter()
    lines: list[str] = []
    for path, times in texts:
        own = read_lines(path, ValueError)
        words.update(word for line in own for word in line.split())
        lines += own * times
    if init is None:
        pieces = learn_pieces(words, settings.pieces)
        network = RecurrentNetwork(len(pieces), settings.hidden, settings.dropout)
    else:
        network, pieces = load_network(init)
        network.dropout.p = settings.dropout
    streams = parallel(lines, pieces, settings.seed)
    say(f"{len(lines)} sentences, {streams.numel()} pieces of {len(pieces)}")
    checked = None
    if held_out is not None:
        checked = parallel(read_lines(held_out, ValueError), pieces, settings.seed, streams=16)
    run(network, streams, checked, settings, lambda: save_network(network, pieces, settings.seed, out))


def parallel(lines: Sequence[str], pieces: Pieces, seed: int, streams: int = STREAMS) -> Tensor:
    """All lines, shuffled, as streams of pieces (T, streams). Raises: ValueError for streams below two windows."""
    order = np.random.default_rng(seed).permutation(len(lines))
    flat: NDArray[np.int32] = np.concatenate([pieces.of_text(lines[at].split()) for at in order])
    length = len(flat) // streams
    if length < 2 * WINDOW:
        raise ValueError(
            f"{len(flat)} pieces of text are too few for {streams} streams: at least {2 * WINDOW * streams} are needed"
        )
    return torch.from_numpy(flat[: length * streams].reshape(streams, length).T.astype(np.int64).copy())


def run(
    network: RecurrentNetwork, streams: Tensor, checked: Tensor | None, settings: Settings, keep: Callable[[], None]
) -> None:
    """Train with a linearly falling learning rate; report progress, and save every `CHECKED_EVERY` updates."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.rate, betas=(0.9, 0.99), weight_decay=0.01)
    state, at, losses, began = torch.zeros(streams.shape[1], network.hidden), 0, [], time.monotonic()
    for update in range(1, settings.updates + 1):
        left = 1 - update / settings.updates
        optimizer.param_groups[0]["lr"] = settings.rate * min(1.0, update / WARMUP) * left + LEAST_RATE
        if at + WINDOW >= len(streams):
            at, state = 0, torch.zeros_like(state)
        with torch.autocast("cpu", torch.bfloat16):
            logits, state = network(streams[at : at + WINDOW], state.detach())
            loss = loss_of(logits, streams[at + 1 : at + 1 + WINDOW])
        at += WINDOW
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
        optimizer.step()
        losses.append(float(loss.detach()))
        if update % SHOWN_EVERY == 0:
            seconds = (time.monotonic() - began) / update
            epoch, left_s = update * WINDOW / len(streams), seconds * (settings.updates - update)
            say(
                f"update {update}/{settings.updates} loss {np.mean(losses):.3f} epoch {epoch:.2f} "
                f"{seconds:.2f} s per update, {left_s / 60:.0f} min left"
            )
            losses = []
        if update % CHECKED_EVERY and update < settings.updates:
            continue
        keep()
        if checked is not None:
            loss_there = held_out_loss(network, checked)
            say(f"update {update} held-out loss {loss_there:.3f} per piece, perplexity {math.exp(loss_there):.1f}")


@torch.no_grad()
def held_out_loss(network: RecurrentNetwork, streams: Tensor) -> float:
    """Mean loss in nats over the pieces (T, B) of a text."""
    network.eval()
    state, losses = torch.zeros(streams.shape[1], network.hidden), []
    for at in range(0, len(streams) - WINDOW, WINDOW):
        logits, state = network(streams[at : at + WINDOW], state)
        losses.append(float(loss_of(logits, streams[at + 1 : at + 1 + WINDOW])))
    network.train()
    return float(np.mean(losses))


def save_network(network: RecurrentNetwork, pieces: Pieces, seed: int, out: Path) -> None:
    """Write the weights as float32, and the pieces to the JSON file next to them."""
    weights = {name: weight.detach().contiguous() for name, weight in network.state_dict().items()}
    checkpoint.write_atomically(out, save(weights))
    described = {"hidden": network.hidden, "seed": seed, "pieces": pieces.symbols[END:]}
    checkpoint.write_atomically(out.with_suffix(".json"), json.dumps(described, indent=1).encode())


def load_network(path: Path) -> tuple[RecurrentNetwork, Pieces]:
    """Load a checkpoint that `save_network` wrote. Raises: OSError; ValueError for other files."""
    try:
        described = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        pieces = Pieces(described["pieces"])
        network = RecurrentNetwork(len(pieces), described["hidden"])
        network.load_state_dict(load_file(path))
    except (ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{path} and its .json are not a float32 recurrent language model: {error}") from error
    return network, pieces


def say(line: str) -> None:
    """Print a line of progress and flush it, also if the output is a file."""
    print(line, flush=True)  # noqa: T201


def _text(given: str) -> tuple[Path, int]:
    name, _, times = given.partition(":")
    return Path(name), int(times or 1)


def main() -> None:
    """Train with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=_text, metavar="TEXT[:TIMES]")
    parser.add_argument("--held-out", type=Path, help="text whose loss is reported; not used for training")
    for name, default in asdict(Settings()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="default: %(default)s")
    parser.add_argument(
        "--init", type=Path, help="checkpoint of this command to continue from, with its size and pieces"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    named = {name: getattr(options, name) for name in asdict(Settings())}
    try:
        train(options.texts, options.held_out, Settings(**named), options.out, options.init)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(options.out)  # noqa: T201


if __name__ == "__main__":
    main()
