"""`tutti quantize` for published models: scales from recordings, compared with the model in floats, and written.

The products that lose most are left in floats until the texts agree; no file is written if they still differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.acoustic import log_probs_of
from model.ctc.words import joined
from model.decoder import decoder_of
from model.errors import PublishedModelError
from model.evaluation.scoring import Score, report_with_intervals, score
from model.machine.device import Device
from model.published.compiled.compiling import PublishedNetwork, compiled_network
from model.published.compiled.fastconformer.network import FastConformer
from model.published.files import INT8, Rewriting, find_files
from model.published.published_model import PublishedModel
from model.published.rows import searched
from model.published.scales import Scales, digest_of_weights
from tutti_asr_lab.training.published.calibration import Calibrated, calibrate, calibrate_layers
from tutti_asr_lab.training.published.search_calibration import calibrate_search

MOST_DIFFERENT = 0.02  # word error rate of the text in 8-bit integers against that in floats
MORE_ERRORS = 0.005  # that the 8-bit text may have against transcripts, as a word error rate, if more words differ
FEWEST_WORDS = 20  # fewer differ by chance
LEAST_SOUND_S = 2.0  # scales of silence or of a single sound fit nothing else
QUIET_DBFS = -60.0
LEVEL_S = 0.02  # window in which the level is measured
ROUNDS = 4
LEFT_OUT = 0.08  # share of the products that each round leaves in floats
WORTH = 0.5  # share of the errors that may remain if more products in floats are to be worth their time
ENOUGH_S = 600.0  # of recordings; less gives ranges that other speech may exceed


@dataclass(frozen=True, slots=True)
class Spoken:
    """A recording for calibration: samples (S,) at the model's rate, and its transcript if there is one."""

    pcm: NDArray[np.int16]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """The scales, and what was measured with them."""

    scales: Scales
    report: Mapping[str, Any]

    @property
    def acceptable(self) -> bool:
        """Whether the texts are close enough to those in floats, or to the transcripts if there are any."""
        return self.objection is None

    @property
    def objection(self) -> str | None:
        """Why the scales should not be used, None if nothing speaks against them."""
        words, differing = self.report["words"], self.report["wer_to_floats"]
        if words < FEWEST_WORDS:
            return f"the model finds {words} words in the recordings, too few to compare (at least {FEWEST_WORDS})"
        if differing <= MOST_DIFFERENT:
            return None
        floats, integers = self.report.get("wer_floats"), self.report.get("wer_int8")
        if floats is None or integers is None:
            return f"{differing:.2%} of the words differ from those in floats, more than {MOST_DIFFERENT:.0%}"
        more = integers["wer"] - floats["wer"]
        if more <= MORE_ERRORS:
            return None
        return f"the word error rate rises by {more:.2%}, more than {MORE_ERRORS:.1%}"


def load_floats(path: Path, rewriting: Rewriting = "auto") -> tuple[PublishedModel, PublishedNetwork]:
    """Load the model in floats, from its file in 8 bits if there is no other, and its network.

    Raises: PublishedModelError if it cannot be quantized. `rewriting`: of the servers.
    """
    if rewriting == "off":
        raise PublishedModelError("TUTTI_GRAPH_REWRITING=off: 8-bit scales need a compiled step; use auto")
    files = find_files(path, "fp32")
    network, verdict = compiled_network(files, files.digest(), in_floats=files.network.name.endswith(INT8))
    if network is None:
        raise PublishedModelError(f"{files.network.name} cannot be quantized: {verdict.reason}")
    return PublishedModel.of(files, Device("cpu"), in_floats=True), network


def quantize(
    model: PublishedModel, network: PublishedNetwork, recordings: Sequence[Spoken], announce: Callable[[str], None]
) -> Quantized:
    """Find scales for the products of a model, and compare texts. Raises: PublishedModelError."""
    pcm = [recording.pcm for recording in recordings]
    seconds = sum(map(len, pcm)) / model.config.sample_rate
    announce(
        f"{len(pcm)} recordings, {seconds:.0f} s" + ("" if seconds >= ENOUGH_S else "; 10 minutes are recommended")
    )
    _check_sound(pcm, model.config.sample_rate)
    counted = _counter(len(pcm), announce)
    announce("running the model in floats")
    in_floats, products = run_in_floats(model, network, pcm, counted)
    expected = _outcome(model, in_floats)
    candidates = sorted(products, key=lambda each: each.snr_db)
    layers = [linear.name for linear in network.compiled.linears]
    names = list(dict.fromkeys([*layers, *(product.name for product in products)]))
    outputs = layers[-1] if model.transducer is None else ""  # rounding them reaches the scores directly
    chosen = [each for each in candidates if each.name != outputs]
    if not chosen:
        raise PublishedModelError(f"{model.graph.path.name} has no products that could be quantized")
    released = _released_text(model, recordings, expected, announce)
    files = model.files.digest()
    weights = {each.name: digest_of_weights(each.linear.weight) for each in candidates}
    step = max(1, round(LEFT_OUT * len(names)))
    best: Quantized | None = None
    for attempt in range(ROUNDS):
        kept = chosen[attempt * step :]  # the noisiest are first
        if not kept:
            break
        chosen_scales = {each.name: each.scale for each in sorted(kept, key=lambda each: each.name)}
        scales = Scales(files, chosen_scales, weights)
        quantized = PublishedModel.of(model.files, Device("cpu"), scales=scales, in_floats=True)
        announce(f"comparing texts with {len(kept)} of {len(names)} products in 8-bit integers")
        report = _report(recordings, expected, _outcome(quantized, log_probs_of(quantized, pcm)))
        report |= {"products": len(kept), "of": len(names), "seconds": round(seconds, 1)}
        report |= {"least_snr_db": round(kept[0].snr_db, 1), **released}
        left_out = [name for name in names if name not in chosen_scales]
        current = Quantized(replace(scales, left_out=left_out, report=report), report)
        words = report["words"]
        differing = f"{report['wer_to_floats']:.2%} of {words} words differ" if words else "no words"
        announce(f"  symbols {report['equal_symbols']:.2%} equal, {differing}")
        if best is None or current.acceptable or report["wer_to_floats"] <= WORTH * best.report["wer_to_floats"]:
            best = current
        if current.acceptable:
            break
    assert best is not None
    return best


def run_in_floats(
    model: PublishedModel, network: PublishedNetwork, pcm: Sequence[NDArray[np.int16]], progress: Callable[[int], None]
) -> tuple[list[NDArray[np.float32]], list[Calibrated]]:
    """Return the outputs (T, …) of each recording, and the products that can be quantized with their scales."""
    if isinstance(network.compiled, FastConformer):
        results, products = calibrate_layers(model, network.compiled, pcm)
        outputs = [np.pad(each, ((model.config.delay_frames, 0), (0, 0))) for each in results]
        progress(len(pcm))
    else:
        products = calibrate(model, network, pcm, progress)
        outputs = log_probs_of(model, pcm)
    return outputs, [*products, *calibrate_search(model, outputs)]


def _check_sound(recordings: Sequence[NDArray[np.int16]], sample_rate: int) -> None:
    """Refuse recordings of silence, or shorter than a step. Raises: PublishedModelError."""
    size = round(LEVEL_S * sample_rate)
    loud = 10 ** (QUIET_DBFS / 10) * 32768**2
    windows = [pcm[: len(pcm) // size * size].reshape(-1, size).astype(np.float64) for pcm in recordings]
    sound_s = LEVEL_S * sum(int((np.square(window).mean(axis=1) > loud).sum()) for window in windows)
    if sound_s < LEAST_SOUND_S:
        raise PublishedModelError(
            f"the recordings have {sound_s:.1f} s of sound above {QUIET_DBFS:.0f} dBFS; 8-bit scales need at least "
            f"{LEAST_SOUND_S:.0f} s of speech"
        )


@dataclass(frozen=True, slots=True)
class _Outcome:
    symbols: Sequence[NDArray[np.float32]]  # by recording: of each frame
    texts: Sequence[str]


def _outcome(model: PublishedModel, outputs: Sequence[NDArray[np.float32]]) -> _Outcome:
    decoder = decoder_of(model.facts, decoder="greedy")
    texts = []
    for frames in outputs:
        state = decoder.start(model.config.delay_frames)
        decoder.advance([state], frames[np.newaxis])
        texts.append(joined(word.text for word in decoder.take(state)))
    found = [searched(model.facts, output[np.newaxis])[0] for output in outputs]
    symbols = [output.argmax(-1) if model.transducer is None else output[..., 0] for output in found]
    return _Outcome([np.asarray(symbol, np.float32) for symbol in symbols], texts)


def _released_text(
    model: PublishedModel, recordings: Sequence[Spoken], floats: _Outcome, announce: Callable[[str], None]
) -> dict[str, float]:
    """Return how far the text in floats is from that of a file in 8 bits, run as released; {} for other files."""
    if model.files.precision != "int8":
        return {}
    announce(f"running {model.graph.path.name} as released")
    as_released = PublishedModel.of(model.files, Device("cpu"), rewriting="off")
    texts = _outcome(as_released, log_probs_of(as_released, [recording.pcm for recording in recordings])).texts
    different = sum((score(one, other) for one, other in zip(texts, floats.texts, strict=True)), start=Score())
    announce(f"  the same weights in floats: word error rate {different.wer:.2%} to its text")
    return {"wer_of_floats_to_released": round(different.wer, 6)}


def _report(recordings: Sequence[Spoken], floats: _Outcome, integers: _Outcome) -> dict[str, Any]:
    pairs = list(zip(floats.symbols, integers.symbols, strict=True))
    equal = sum(int((one == other).sum()) for one, other in pairs)
    to_floats = sum((score(one, other) for one, other in zip(floats.texts, integers.texts, strict=True)), start=Score())
    report: dict[str, Any] = {
        "equal_symbols": round(equal / max(1, sum(one.size for one, _ in pairs)), 6),
        "wer_to_floats": round(to_floats.wer, 6),
        "words": to_floats.words,
    }
    for name, texts in (("floats", floats.texts), ("int8", integers.texts)):
        scored = [("", score(each.text, text)) for each, text in zip(recordings, texts, strict=True) if each.text]
        if scored:
            figures = report_with_intervals(scored)
            report[f"wer_{name}"] = {key: figures[key] for key in ("wer", "wer_interval")}
    return report


def _counter(total: int, announce: Callable[[str], None]) -> Callable[[int], None]:
    tenth = max(1, total // 10)
    announced = 0

    def finished(count: int) -> None:
        nonlocal announced
        if count >= announced + tenth or count == total:
            announced = count
            announce(f"calibrated with {count} of {total} recordings")

    return finished
