"""Fine-tune hama's network on our phones and letters: `python -m tutti_asr_lab.training.attention.train RECIPE …`.

Each batch draws how far its frames may see (dynamic chunks), so that the same weights serve streams of every form and
whole segments. Source: Zhang et al. 2020, arXiv:2012.05481 (U2). Small learning rates, which end at zero, keep what
the network knew: model/LOG.md. The run continues from its newest snapshot when it is started again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from model import checkpoint
from model.attention.checkpoint import quantized_attention_of
from model.attention_config import AttentionConfig
from model.errors import ModelError, TrainingError
from model.recordings import Utterance, read_manifests
from tutti_asr_lab.training.acoustic.augment import mask
from tutti_asr_lab.training.acoustic.data.batches import Batch, BatchMaker
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.data.draws import Purpose, draws
from tutti_asr_lab.training.acoustic.data.epoch import MicroBatch, epoch_updates
from tutti_asr_lab.training.acoustic.data.transcripts import spelled
from tutti_asr_lab.training.acoustic.losses.ctc import ctc_loss
from tutti_asr_lab.training.acoustic.losses.denominator import Denominator
from tutti_asr_lab.training.acoustic.losses.label_model import label_graph
from tutti_asr_lab.training.acoustic.optimizer.optimizers import Schedule
from tutti_asr_lab.training.acoustic.recipe import Recipe, recipe_of, section
from tutti_asr_lab.training.acoustic.snapshots import Snapshots, exclusive, state_of
from tutti_asr_lab.training.acoustic.trainer import fit, make_augmenter
from tutti_asr_lab.training.attention.dequantize import dequantized
from tutti_asr_lab.training.attention.hama import SHA256, WHEEL, initialize, read_wheel
from tutti_asr_lab.training.attention.network import AttentionNetwork
from tutti_asr_lab.training.lexicon.spoken import Pronunciations

CHUNKS = ((12, 0.15), (16, 0.15), (20, 0.2), (32, 0.2), (64, 0.1), (0, 0.2))  # frames, share of the batches; 0: all
REPORT_UPDATES, SNAPSHOT_UPDATES = 20, 100


@dataclass(frozen=True, slots=True)
class FineTuning:
    """Hyperparameters: those of `Recipe` that have a meaning here, and the head's learning rate."""

    recipe: Recipe = field(default_factory=Recipe)
    head_factor: float = 8.0  # times the body's learning rate, `recipe.matrix_lr`
    chunks: tuple[tuple[int, float], ...] = CHUNKS
    left: int = 100  # frames before its chunk that a frame sees
    averages: tuple[int, ...] = ()  # updates after which the averaged weights are kept, too: average-N.pt

    @classmethod
    def read(cls, path: Path) -> tuple[AttentionConfig, FineTuning]:
        """Read `{"model": …, "recipe": …, "head_factor": …}`. Raises: TrainingError."""
        try:
            values = json.loads(path.read_bytes())
            config = AttentionConfig(**section(values.pop("model", {}), "model", AttentionConfig))
            recipe = recipe_of(values.pop("recipe", {}), config.mel_bins)
            return config, cls(recipe=recipe, **section(values, "the recipe file", cls))
        except OSError as error:
            raise TrainingError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise TrainingError(f"{path} is not a recipe of fine-tuning: {error}") from error


class Run:
    """The network, its optimizer and its position; deterministic given recipe and recordings."""

    def __init__(
        self,
        config: AttentionConfig,
        tuning: FineTuning,
        corpus: Corpus,
        noise: Sequence[Utterance],
        phones: Sequence[str],
    ) -> None:
        recipe = tuning.recipe
        torch.manual_seed(recipe.seed)
        self.tuning, self.recipe, self.corpus = tuning, recipe, corpus
        texts = [utterance.text for utterance in corpus.utterances]
        spoken = Pronunciations.of(texts, config.language, known=phones)
        config = replace(config, phones=spoken.phones)
        self.network = AttentionNetwork(config, recipe.dropout)
        self.average = AttentionNetwork(config).requires_grad_(False)
        self.batches = BatchMaker(
            config, corpus, make_augmenter(recipe, noise, config.sample_rate), recipe.seed, spoken
        )
        self.denominator = None
        if recipe.denominator:
            targets = [spoken.target(text) for text in texts]
            graph = label_graph(targets, recipe.denominator_order, recipe.denominator_states)
            self.denominator = Denominator(graph, torch.device("cpu"))
        groups = [{"params": list(self.network.body()), "factor": 1.0},
                  {"params": list(self.network.head.parameters()), "factor": tuning.head_factor}]  # fmt: skip
        self.optimizer = torch.optim.AdamW(
            groups, lr=recipe.matrix_lr, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
        )
        self.schedule = Schedule(recipe.updates, recipe.warmup, recipe.decay)
        self.done, self.audio_s = 0, 0.0

    def jobs(self) -> Iterator[tuple[int, list[tuple[tuple[int, int], MicroBatch]]]]:
        """Number of each further update, and the keys and recordings of its batches."""
        number, epoch = 0, 0
        while number < self.recipe.last_update:
            updates = epoch_updates(self.corpus.utterances, self.recipe, epoch, by_length=False)
            for at, update in enumerate(updates):
                number += 1
                if self.done < number <= self.recipe.last_update:
                    first = at * self.recipe.micro_batches
                    yield number, [((epoch, first + i), batch) for i, batch in enumerate(update)]
            epoch += 1

    def update(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """Apply one update; returns its losses over phones and over letters, nats a symbol."""
        factor = self.schedule(self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.matrix_lr * factor * group["factor"]
        sums = torch.zeros(2)
        symbols = sum(int(batch.phones.lengths.sum()) for batch in batches if batch.phones is not None)
        for batch in batches:
            total, figures = self.losses(batch)
            (total / symbols).backward()  # type: ignore[no-untyped-call]
            sums += figures
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip_norm)
        if math.isfinite(float(norm)):
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        self.audio_s += sum(batch.audio_s for batch in batches)
        decay = min(self.recipe.moving_average, (1 + self.done) / (10 + self.done))
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.network.parameters(), strict=True):
                mean.lerp_(now, 1 - decay)
        return float(sums[0]) / symbols, float(sums[1]) / symbols

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss to back-propagate (), a sum over symbols; its parts over phones and letters (2,)."""
        rng = draws(self.recipe.seed, Purpose.LEARNING, *batch.key)
        torch.manual_seed(int(rng.integers(2**62)))  # dropout
        chunks, shares = zip(*self.tuning.chunks, strict=True)
        chunk = int(rng.choice(chunks, p=shares))
        with torch.no_grad():
            features = self.network.read(batch.pcm)
        features = mask(features, (2 * batch.frames).tolist(), self.recipe.augmentation, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            logits = self.network(features, batch.frames, chunk, self.tuning.left)
        letters, phones = (functional.log_softmax(part.float(), -1) for part in self.network.parts(logits))
        assert batch.phones is not None
        by_phones, by_letters = (
            ctc_loss(phones, batch.frames, batch.phones),
            ctc_loss(letters, batch.frames, batch.letters),
        )
        figures = torch.stack([by_phones, by_letters]).detach()
        if self.denominator is not None and self.done >= self.recipe.denominator_from:
            by_phones = by_phones + self.recipe.denominator * self.denominator(phones, batch.frames)
        weight = self.recipe.phone_weight
        return weight * by_phones + (1 - weight) * by_letters, figures

    def identity(self) -> dict[str, str]:
        """Inputs that must not change when a run resumes."""
        return {"recipe": repr(self.tuning), "model": repr(self.network.config), "recordings": self.corpus.digest()}

    def state_dict(self) -> dict[str, Any]:
        """State for `resume`."""
        return {
            "identity": self.identity(),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": [self.done, self.audio_s],
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue from `state_dict`. Raises: TrainingError if recipe, network or recordings differ."""
        for name, own in self.identity().items():
            if saved["identity"][name] != own:
                raise TrainingError(f"the run was started with another {name}: use the same, or another --out")
        self.network.load_state_dict(saved["network"])
        self.average.load_state_dict(saved["average"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.done, self.audio_s = saved["position"]


def train(options: argparse.Namespace) -> None:
    """Train, or resume an interrupted run. Raises: ModelError."""
    config, tuning = FineTuning.read(options.recipe)
    utterances = spelled(read_manifests(options.manifest), config)
    corpus = Corpus(utterances, options.cache, config.sample_rate)
    noise = read_manifests([options.noise], texts=False) if options.noise else []
    run = Run(config, tuning, corpus, noise, checkpoint.read_config(checkpoint.named(options.phones)).phones)
    with exclusive(options.out):
        snapshots = Snapshots(options.out)
        newest = snapshots.newest(_say)
        if newest is not None:
            run.resume(state_of(newest[1]))
            _say(f"resuming from update {run.done}")
        elif options.init is not None:
            run.network.load_state_dict(_start_of(options.init)[0])
            run.average.load_state_dict(run.network.state_dict())
        else:
            fit(run.network.features, run.corpus, run.batches, run.recipe)
            initialize(run.network, *read_wheel(options.hama))
            run.average.load_state_dict(run.network.state_dict())
            torch.save(run.network.state_dict(), options.out / "start.pt")
        _loop(run, snapshots, options.out)
        torch.save(run.average.state_dict(), options.out / "average.pt")
        own = {name: value for name, value in asdict(tuning).items() if name != "recipe"}
        record = {
            "updates": run.done,
            "audio_h": round(run.audio_s / 3600, 2),
            "recipe": {**tuning.recipe.to_dict(), **own},
            "started_from": _start_of(options.init)[1] if options.init is not None else f"{WHEEL}, sha256 {SHA256}",
        }
        described = replace(run.network.config, training=record).to_dict()
        (options.out / "average.json").write_text(json.dumps(described, indent=1, ensure_ascii=False))
        _say(f"wrote {options.out / 'average.pt'}")


def _start_of(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights of a run's average.pt or of a checkpoint of integers, and their training record. Raises: ModelError."""
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True), json.loads(path.with_suffix(".json").read_bytes())["training"]
    config, blob = checkpoint.read(checkpoint.named(path))
    if not isinstance(config, AttentionConfig):
        raise TrainingError(f"--init {path}: its network is not the kind that is trained here")
    return dequantized(quantized_attention_of(config, blob)).state_dict(), dict(config.training)


def _loop(run: Run, snapshots: Snapshots, out: Path) -> None:
    run.network.train()
    began, audio_s, figures = time.monotonic(), run.audio_s, []
    for _, batches in run.batches.ahead(run.jobs()):
        figures.append(run.update(batches))
        if run.done % REPORT_UPDATES == 0:
            phones, letters = (sum(column) / len(figures) for column in zip(*figures, strict=True))
            hours, faster = run.audio_s / 3600, (run.audio_s - audio_s) / (time.monotonic() - began)
            _say(
                f"update {run.done} of {run.recipe.last_update}: {hours:.1f} h of audio, {faster:.0f} times real time, "
                f"loss {phones:.3f} a phone, {letters:.3f} a letter"
            )
            figures.clear()
        if run.done in run.tuning.averages:
            torch.save(run.average.state_dict(), out / f"average-{run.done}.pt")
        if run.done % SNAPSHOT_UPDATES == 0:
            snapshots.save(run.done, run.state_dict())
    snapshots.save(run.done, run.state_dict())


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - progress of a program


def main() -> None:
    """Train with the command line's recipe and recordings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="JSON file of hyperparameters")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--hama", type=Path, help="the wheel to start from: pip download hama==1.7.0 --no-deps")
    start.add_argument("--init", type=Path, help="weights to start from instead: another run's average.pt, or a model")
    parser.add_argument("--phones", type=Path, default=Path("tutti-gru"), help="checkpoint with the phones to learn")
    parser.add_argument("--manifest", type=Path, action="append", required=True, help="recordings; may be repeated")
    parser.add_argument("--noise", type=Path, help="noise and room responses")
    parser.add_argument("--cache", type=Path, default=Path("build/audio"), help="folder of decoded audio")
    parser.add_argument("--out", type=Path, required=True, help="folder of snapshots and of the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        train(options)
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; run the same command again to resume from the newest snapshot")


if __name__ == "__main__":
    main()
