"""Benchmark of the beam search on outputs of the shipped model: `python -m tests.support.decoding.beam_bench`.

Prints microseconds per step of a stream (two frames), including Python, by number of beams, with and without the
shipped language model, alone and in batches. Other programs affect processor time only through the caches.
The last line is a JSON document.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from model.acoustic import load_model, log_probs_of
from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.greedy import GreedyDecoder
from model.ctc.words import Decoder, LogProbs
from model.lm.language_model import LanguageModel
from model.recordings import read_pcm

ROOT = Path(__file__).parents[3]
NAMES = ("garden_gate", "hold_the_line", "porch_fan", "order", "call_back", "account_number")
STREAMS_PER_CORE_S = 12.5  # steps per second of one live stream
TERMS = ("garden gate", "kubernetes", "porch fan", "new york city", "siobhan", "quarterly report", "tutti")


def recordings(paths: list[Path]) -> list[LogProbs]:
    """Log-probabilities (T, V) of recordings, an even number of frames each."""
    import torch

    torch.set_num_threads(1)
    model = load_model()
    tail = 4 * model.config.step_samples
    return log_probs_of(model, [np.pad(read_pcm(path), (0, tail)) for path in paths])


def measure(decoder: Decoder, rows: list[LogProbs], batch: int, bias: Bias, limit_s: float = 0.5) -> float:
    """Microseconds of this thread per step of a stream, with `batch` streams at different positions."""
    frames = np.concatenate(rows)
    steps = len(frames) // 2
    tape = frames[: 2 * steps].reshape(steps, 2, -1)
    starts = np.arange(batch) * (steps // batch + 7)
    states = [decoder.start(0, bias) for _ in range(batch)]
    began, done = time.thread_time(), 0
    while (spent := time.thread_time() - began) < limit_s or done < steps:
        picked = np.ascontiguousarray(tape[(starts + done) % steps])  # (B, 2, V)
        decoder.advance(states, picked)
        for state in states:
            if done % 8 == 0:  # partials and finals as often as in a server
                decoder.words(state)
            if done % 64 == 63:
                decoder.take(state)
        done += 1
    return spent / done / batch * 1e6


def main() -> None:
    """Print the table."""
    paths = [Path(p) for p in sys.argv[1:]] or [ROOT / "model" / "samples" / f"{name}.flac" for name in NAMES]
    rows = recordings(paths)
    vocabulary = load_model().config.vocabulary
    shipped = ROOT / "model" / "weights" / "tutti-words.arpa.gz"
    lm = LanguageModel.load(shipped) if shipped.exists() else None
    terms = Bias.of([(term, None) for term in TERMS])
    figures: dict[str, float] = {}
    for batch in (1, 2, 16):
        figures[f"greedy/{batch}"] = measure(GreedyDecoder(vocabulary, 0.04), rows, batch, NO_BIAS)
        for beams in (1, 4, 16, 64):
            for name, model, bias in (("none", None, NO_BIAS), ("lm", lm, NO_BIAS), ("lm+terms", lm, terms)):
                decoder = BeamDecoder(vocabulary, 0.04, beams=beams, lm=model)
                decoder.warm_up()
                figures[f"beam {beams} {name}/{batch}"] = measure(decoder, rows, batch, bias)
    for name, value in figures.items():
        share = value * 1e-6 * STREAMS_PER_CORE_S * 100
        print(f"{name:24s} {value:8.1f} µs a stream-step   100 streams: {100 * share:6.1f} % of a core")  # noqa: T201
    rounded = {name: round(value, 1) for name, value in figures.items()}
    print(json.dumps({"frames": sum(map(len, rows)), "us_per_stream_step": rounded}))  # noqa: T201


if __name__ == "__main__":
    main()
