"""Run of `tutti quantize`: from a float32 checkpoint to one of 8-bit integers, with the word error rates of both."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model import checkpoint
from model.config import ModelConfig
from model.ctc.greedy import GreedyDecoder
from model.ctc.interface import Decoder
from model.decoder import decoder_of, resolve_decoder
from model.errors import CheckpointError, TrainingError
from model.evaluation.scoring import report
from model.facts import ModelFacts
from model.int8.quantized import QuantizedNetwork
from model.recordings import Utterance, read_manifests, read_pcm
from model.torch_network.checkpoint import load_network
from model.torch_network.network import Network
from tutti_asr_lab.training.acoustic.augment import Augmentation, Augmenter, to_tensor
from tutti_asr_lab.training.acoustic.data.transcripts import spelled
from tutti_asr_lab.training.evaluation.outputs import RecordingOutput, decode
from tutti_asr_lab.training.evaluation.whole import log_probs_of
from tutti_asr_lab.training.quantization.calibration import ROWS, in_rows
from tutti_asr_lab.training.quantization.quantize import quantize
from tutti_asr_lab.training.quantization.simulated import SimulatedNetwork

CALIBRATED = 400  # recordings for calibration: half an hour of speech
COMPARED = 160  # recordings for the divergence
SUFFIX = "-int8"  # appended to the version of the quantized checkpoint

Announce = Callable[[str], None]
Figures = dict[str, Any]  # results of `report` by decoder


@dataclass(frozen=True, slots=True)
class Places:
    """Files that a run reads and writes."""

    checkpoint: Path
    manifests: Sequence[Path]
    out: Path
    validation: Sequence[Path]


def run(places: Places, *, draws: int, seed: int, announce: Announce) -> Path:
    """Quantize, validate and write; return the path. Raises: ModelError.

    This is done for several `draws` of calibration recordings, with `seed` and the numbers after it. The draw with the
    fewest word errors on the held-out recordings is kept; without these, the one with the least divergence.
    """
    if places.out.resolve() == places.checkpoint.resolve():
        raise TrainingError(f"--out {places.out} is the checkpoint itself and would be overwritten; give another path")
    integers, digest = checkpoint.load_quantized(places.checkpoint)
    if integers is not None:
        raise CheckpointError(f"{places.checkpoint} is already quantized; give the float32 checkpoint it was made from")
    network, _ = load_network(places.checkpoint)
    utterances = spelled(read_manifests(places.manifests), network.config)
    if not utterances:
        raise TrainingError("the manifests have no recording with a text")
    held_out = spelled(read_manifests(places.validation), network.config)
    judge = Judge(network, utterances, held_out, seed, announce)
    found: list[Draw] = []
    for each in range(seed, seed + draws):
        recordings = calibration_speech(utterances, network.config, each, announce)
        found.append(judge(each, quantize(network, recordings, announce)))
    best = min(found, key=Draw.errors)
    if draws > 1:
        announce(f"the best of {draws}: seed {best.seed}")
    facts = {
        "from_sha256": digest,
        "calibrated_on": min(CALIBRATED, len(utterances)),
        "seed": best.seed,
        "draws": {str(draw.seed): draw.summary() for draw in found},
        "validation": {key: {"fp32": judge.exact[key], "int8": best.figures[key]} for key in judge.exact},
    }
    checkpoint.save_quantized(_with_facts(best.quantized, facts), places.out)
    return places.out


@dataclass(frozen=True, slots=True)
class Draw:
    """Result of one draw of calibration recordings: divergence in nats per frame, error rates by decoder."""

    seed: int
    quantized: QuantizedNetwork
    divergence: float
    figures: Figures

    def errors(self) -> float:
        """Criterion for comparing draws: the sum of the decoders' word error rates, or else the divergence."""
        return sum(figure["wer"] for figure in self.figures.values()) if self.figures else self.divergence

    def summary(self) -> dict[str, float]:
        """Divergence and error rates, for the checkpoint."""
        rates = {f"wer_{key}": each["wer"] for key, each in self.figures.items()}
        return {"divergence": round(self.divergence, 6), **rates}


class Judge:
    """Comparison of quantized networks with the original; `exact` has the original's results by decoder."""

    def __init__(
        self,
        network: Network,
        utterances: Sequence[Utterance],
        held_out: Sequence[Utterance],
        seed: int,
        announce: Announce,
    ) -> None:
        """Read `COMPARED` training recordings for the divergence, and the held-out recordings for error rates."""
        config = network.config
        compared = balanced(utterances, COMPARED, np.random.default_rng((seed, COMPARED)))
        self._pcm = in_rows([read_pcm(u.audio, config.sample_rate) for u in compared], config)
        self._network, self._held_out, self._announce = network, held_out, announce
        self._recordings = [read_pcm(u.audio, config.sample_rate) for u in held_out]
        self._decoders: dict[str, Decoder] = {}
        if held_out:
            self._decoders["greedy"] = GreedyDecoder(config.vocabulary, config.frame_s)
            if resolve_decoder("auto", None) == "beam":
                self._decoders["beam"] = decoder_of(ModelFacts.own(config))
        self.exact = self._score("fp32", network)

    def __call__(self, seed: int, quantized: QuantizedNetwork) -> Draw:
        """Measure one draw and announce the results."""
        found = divergence(self._network, quantized, self._pcm)
        self._announce(f"seed {seed}: divergence {found:.6f}")
        figures = self._score("int8", SimulatedNetwork(quantized))
        for key, each in figures.items():
            before, after = self.exact[key]["wer"], each["wer"]
            self._announce(f"WER {key}: fp32 {before:.4f}, int8 {after:.4f}, difference {after - before:+.4f}")
        if figures:
            self._announce("simulated, on whole recordings; `tutti evaluate` measures the quantized model itself")
        return Draw(seed, quantized, found, figures)

    def _score(self, name: str, network: Network) -> Figures:
        if not self._held_out:
            return {}
        of = f"of {len(self._held_out)} recordings done"
        log_probs = log_probs_of(network, self._recordings, lambda done: self._announce(f"{name}: {done} {of}"))
        outputs = list(map(RecordingOutput, self._held_out, log_probs))
        with ThreadPoolExecutor() as executor:
            return {key: report(decode(each, outputs, executor)) for key, each in self._decoders.items()}


def balanced(utterances: Sequence[Utterance], count: int, rng: np.random.Generator) -> list[Utterance]:
    """Draw utterances from the sources in turn, and within each source from its speakers in turn."""
    left: dict[str, dict[str, list[Utterance]]] = defaultdict(lambda: defaultdict(list))
    for i in rng.permutation(len(utterances)).tolist():
        left[utterances[i].source][utterances[i].speaker].append(utterances[i])
    queues = [_in_turn(list(speakers.values())) for _, speakers in sorted(left.items())]
    return list(_in_turn([list(queue) for queue in queues]))[:count]


def _in_turn(lists: Sequence[list[Utterance]]) -> Iterator[Utterance]:
    for place in range(max(map(len, lists))):
        yield from (each[place] for each in lists if place < len(each))


def calibration_speech(
    utterances: Sequence[Utterance], config: ModelConfig, seed: int, announce: Announce
) -> list[NDArray[np.int16]]:
    """Read a balanced choice of recordings; every second one is augmented, so that ranges fit other conditions."""
    rng = np.random.default_rng(seed)
    augmenter = Augmenter(Augmentation(), [], [], config.sample_rate)
    chosen = balanced(utterances, CALIBRATED, rng)
    recordings: list[NDArray[np.int16]] = []
    for number, utterance in enumerate(chosen):
        pcm = read_pcm(utterance.audio, config.sample_rate)
        if number % 2:
            pcm = to_tensor(augmenter(pcm.astype(np.float32) / np.float32(32768), rng)).numpy()
        recordings.append(pcm)
    minutes = sum(map(len, recordings)) / config.sample_rate / 60
    announce(f"read {len(recordings)} recordings for calibration, {minutes:.0f} minutes")
    return recordings


@torch.inference_mode()
def divergence(network: Network, quantized: QuantizedNetwork, pcm: Tensor) -> float:
    """Mean divergence of the quantized network's outputs on audio (B, S) int16, in nats per frame.

    The sum for letters and phones, each of which is a distribution.
    """
    simulated = SimulatedNetwork(quantized)
    total = 0.0
    for rows in torch.split(pcm, ROWS):
        exact, seen = (each(rows, each.fresh_state(len(rows)))[0] for each in (network.eval(), simulated))
        total += float((exact.exp() * (exact - seen)).sum(-1).mean(-1).sum())  # of (B, T, outputs)
    return total / len(pcm)


def _with_facts(quantized: QuantizedNetwork, facts: dict[str, Any]) -> QuantizedNetwork:
    config = quantized.config
    described = dataclasses.replace(
        config, version=config.version + SUFFIX, training={**config.training, "quantization": facts}
    )
    return dataclasses.replace(quantized, config=described)
