"""Learns which short segments only acknowledge, for `model.ctc.acknowledgements`, and reports it on other voices.

Positive examples are synthetic; the others are synthetic words of all kinds, and real recordings of manifests. Half of
the voices and speakers are learned from, the other half and dev are reported.

`recipes/acknowledgements.sh` runs both commands.
"""

from __future__ import annotations

import json
import sys
import zlib
from argparse import ArgumentParser
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import soundfile
import soxr
import torch

from model.acoustic import load_model, log_probs_of
from model.ctc.acknowledgements import AFTER_S, BEFORE_S, ONE, features_of, may_be_marked
from model.ctc.beam import BeamDecoder
from model.ctc.words import Word
from model.decoder import decoder_of
from model.recordings import read_manifests, read_pcm
from server.text.acknowledgements import only_acknowledges
from tutti_asr_lab.training.synthesis.kokoro import ENGLISH
from tutti_asr_lab.training.synthesis.voices import SAMPLE_RATE_HZ, random_neural_voice, random_voice, speak

SAID = ("uh-huh", "[[mh'@m]]", "[[h@m]]", "yeah", "yep", "yup", "okay", "all right", "oh, okay", "yeah, yeah",
        "okay okay", "uh-huh, uh-huh", "okay, yeah", "yeah okay")  # fmt: skip
FLITE = {"[[mh'@m]]": "um hum", "[[h@m]]": "hum"}  # no notation of phonemes there; "mm-hmm" is spelled
ALIKE = ("yes", "no", "nope", "right", "sure", "stop", "wait", "hey", "hi", "hello", "what", "who", "go", "you",
         "today", "may", "play", "you know", "oh no", "why", "how", "maybe", "now", "help", "back", "next", "later",
         "a car", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero", "i saw", "i say",
         "a hat", "okra", "all night", "a day", "away", "yes please", "okay then call")  # fmt: skip
PAUSE_S = 1.0  # of silence after each recording, as a flush has
NETS, HIDDEN, UPDATES, RATE, DECAY = 4, 12, 1_500, 3e-3, 0.3
SCALE, OUTPUT_SCALE = 2**18, 2**8
FALSE, FALSE_SYNTHETIC = 0.003, 0.008  # of other turns that are learned from: sets the threshold


def synthesize(out: Path, manifests: list[Path], count: int, seed: int, *, neural: bool) -> None:
    """Write recordings, half of them acknowledgements, and `manifest.jsonl`; other words are from these manifests."""
    rng, noise, rows = Random(seed), np.random.default_rng(seed), []
    others = [row.text.split() for row in read_manifests(manifests) if row.text]
    out.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        voice = random_neural_voice(rng, ENGLISH) if neural else random_voice(rng)
        said = rng.choice(SAID) if number % 2 else (rng.choice(ALIKE) if rng.random() < 0.5 else _piece(rng, others))
        pcm = speak(voice, FLITE.get(said, said) if voice.engine == "flite" else said)
        if rng.random() < 0.25:
            pcm = soxr.resample(soxr.resample(pcm, SAMPLE_RATE_HZ, 8_000), 8_000, SAMPLE_RATE_HZ)
        pcm *= 10 ** (rng.uniform(-18, -1) / 20) / np.abs(pcm).max()
        pcm = np.pad(
            pcm, [round(rng.uniform(0.1, 0.5) * SAMPLE_RATE_HZ), round(rng.uniform(0.3, 0.6) * SAMPLE_RATE_HZ)]
        )
        if rng.random() < 0.6:
            pcm += noise.normal(size=len(pcm)) * 10 ** (rng.uniform(-75, -45) / 20)
        soundfile.write(out / f"{number}.flac", pcm, SAMPLE_RATE_HZ, subtype="PCM_16")
        name, espeak = voice.name, voice.engine == "espeak-ng"
        identity = name.split("+")[-1] if espeak else name.partition(":")[0]  # what voices that sound alike share
        rows.append({"audio": f"{number}.flac", "text": said, "ack": bool(number % 2), "speaker": identity,
                     "source": voice.engine})  # fmt: skip
    (out / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _piece(rng: Random, texts: list[list[str]]) -> str:
    """Return one to three words of a text that do not acknowledge."""
    while True:
        words = rng.choice(texts)
        at = rng.randrange(len(words))
        piece = words[at : at + rng.randint(1, 3)]
        if not any(only_acknowledges([Word(word, 0.0, 0.0, 1.0)]) for word in piece):
            return " ".join(piece)


def learn(manifests: list[Path], out: Path) -> None:
    """Learn from half of the voices, print what the other half gives, and write the network."""
    features, rows, phones = _examples(manifests)
    known = np.array([row is not None for row in features])
    inputs = torch.tensor(np.stack([row for row in features if row is not None]), dtype=torch.float32) / ONE
    acks, marked, held, real = (np.array([row[key] for row in rows]) for key in ("ack", "marked", "held", "real"))
    first = torch.tensor(~held[known])
    hidden, output = [], []
    for seed in range(NETS):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(inputs.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1))
        optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=DECAY)
        targets = torch.tensor(acks[known], dtype=torch.float32)
        for _ in range(UPDATES):
            optimizer.zero_grad()
            scores = net(inputs[first])[:, 0]
            torch.nn.functional.binary_cross_entropy_with_logits(scores, targets[first]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        parts = [parameter.detach().double().numpy() for parameter in net.parameters()]
        hidden.append(np.column_stack([parts[0] * SCALE / ONE, parts[1] * SCALE]))
        output.append(parts[2][0] * OUTPUT_SCALE)
    whole, last = np.rint(np.vstack(hidden)).astype(np.int64), np.rint(np.concatenate(output)).astype(np.int64)
    scores = np.full(len(rows), -np.inf)
    counted = np.stack([row for row in features if row is not None])
    scores[known] = np.maximum(counted @ whole[:, :-1].T + whole[:, -1], 0) @ last
    limits = [np.quantile(scores[~acks & ~held & (real == of)], 1 - share) for of, share in
              ((True, FALSE), (False, FALSE_SYNTHETIC)) if (~acks & ~held & (real == of)).any()]  # fmt: skip
    threshold = int(max(limits))
    for least in (threshold, threshold / 2, threshold * 2, np.inf):  # infinite: by the text alone
        print(json.dumps({"threshold": least} | _figures(rows, (scores >= least) | marked)))  # noqa: T201
    weights = {"phones": phones, "hidden": whole.tolist(), "output": last.tolist(), "threshold": threshold}
    out.write_text(json.dumps(weights, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def _figures(rows: list[dict[str, Any]], marks: Any) -> dict[str, Any]:
    """Return the shares that are marked of each kind and source, of held-back voices."""
    held = [(row, bool(mark)) for row, mark in zip(rows, marks, strict=True) if row["held"]]
    figures: dict[str, Any] = {}
    for kind in (True, False):
        for source in sorted({row["source"] for row, _ in held if row["ack"] == kind}):
            of = [mark for row, mark in held if (row["ack"], row["source"]) == (kind, source)]
            figures[f"{'ack' if kind else 'other'} {source}"] = f"{sum(of)} of {len(of)}"
    return figures


def _examples(manifests: list[Path]) -> tuple[list[Any], list[dict[str, Any]], list[str]]:
    model = load_model()
    decoder, delay = decoder_of(model.facts), model.config.delay_frames
    assert isinstance(decoder, BeamDecoder) and decoder.phone_lexicon is not None, "of the shipped model"  # noqa: PT018
    features, rows = [], []
    for path in manifests:
        table = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        table = [row for row in table if row.get("duration", 0.0) <= 3.0]
        pause = np.zeros(round(PAUSE_S * SAMPLE_RATE_HZ), np.int16)
        audio = [np.concatenate([read_pcm(path.parent / row["audio"]), pause]) for row in table]
        for row, log_probs in zip(table, log_probs_of(model, audio), strict=True):
            words, own = _words(decoder, log_probs, delay)
            texts, real = [Word(text, 0.0, 0.0, 1.0) for text in row["text"].split()], "ack" not in row
            if words and not (real and only_acknowledges(texts)):
                features.append(_features(words, own, decoder.frame_s))
                key = str(row.get("speaker") or row["audio"])
                held = path.name == "dev.jsonl" or bool(zlib.crc32(key.encode()) % 2)
                rows.append({"ack": row.get("ack", False), "real": real, "held": held, "source": row["source"],
                             "marked": only_acknowledges(words)})  # fmt: skip
    return features, rows, list(decoder.phone_lexicon.phones)


def _words(decoder: BeamDecoder, log_probs: Any, delay: int) -> tuple[tuple[Word, ...], Any]:
    state = decoder.start(delay)
    own = decoder.own(log_probs[None])
    decoder.search([state], own)
    words = decoder.take(state)
    decoder.release(state)
    return words, own[0, delay:]


def _features(words: tuple[Word, ...], own: Any, frame_s: float) -> Any:
    if not may_be_marked(words):
        return None
    begin = max(round(words[0].start_s / frame_s) - round(BEFORE_S / frame_s), 0)
    return features_of(own[begin : round(words[-1].end_s / frame_s) + round(AFTER_S / frame_s)])


def main(arguments: list[str]) -> None:
    """Run one of the two commands."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("synthesize", "learn"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=2_500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--voices", choices=("formant", "kokoro"), default="formant")
    parser.add_argument("--manifest", type=Path, action="append", default=[])
    options = parser.parse_args(arguments)
    if options.command == "learn":
        learn(options.manifest, options.out)
    else:
        synthesize(options.out, options.manifest, options.count, options.seed, neural=options.voices == "kokoro")


if __name__ == "__main__":
    main(sys.argv[1:])
