"""`tutti model check`: a model's properties, batch invariance, speed on this machine, and transcript of a recording.

All figures are in one document, which the command prints as JSON or as lines.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batching.capacity import LatencyObjective
from batching.stepper import Stepper
from model.acoustic import load_model, log_probs_of
from model.checkpoint import SHIPPED, named, weights_file
from model.ctc.words import joined
from model.decoder import decoder_of
from model.facts import AcousticModel
from model.published.published_model import PublishedModel
from model.published.rows import SIZES, check_rows, searched, tokens_of
from server.settings import Settings
from server.tools.recordings import RecordingReader
from server.tools.sherpa import as_shown, first_difference, sherpa_tokens, sherpa_version

BATCHES = (1, 8, 32, 128)
COMPARED = (1, 8)  # batch sizes at which the graph as published is timed, too
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of the command."""

    model: Path | None
    audio: Path | None
    device: str
    precision: str


def check(options: Asked, settings: Settings) -> Document:
    """Load the model and measure everything. Raises: ModelError, AudioError."""
    started = time.perf_counter()
    model = load_model(
        options.model,
        device=options.device,
        precision=options.precision,
        threads=settings.threads,
        rewriting=settings.graph_rewriting,
    )
    load_s = time.perf_counter() - started
    tokens = model.facts.tokens
    published = model if isinstance(model, PublishedModel) else None
    audio = None if options.audio is None else _recognized(model, published, options.audio)
    rows = _rows(model, tokens.blank)
    wrong = []
    if others := [str(size) for size, same in rows["equal_tokens"].items() if not same]:
        wrong.append(f"symbols in batches of {', '.join(others)} differ from those alone: serve with --reproducible")
    if audio is not None and audio["sherpa"].get("equal") is False:
        wrong.append("sherpa-onnx outputs different tokens")
    return {
        "model": _facts(model, published, named(options.model or SHIPPED)) | {"load_s": round(load_s, 2)},
        "rows": rows,
        "speed": _speed(model, settings),
        **({} if published is None else _compiled(published, options, settings)),
        **({} if audio is None else {"audio": audio}),
        "wrong": wrong,
        "ok": not wrong,
    }


def _facts(model: AcousticModel, published: PublishedModel | None, path: Path) -> Document:
    config, tokens = model.config, model.facts.tokens
    step_ms = 1_000 * config.step_samples / config.sample_rate
    if published is not None:
        described = published.config
        files = (*published.files.graphs.values(), published.files.tokens)
        frame_ms = 1_000.0 * described.hop / described.sample_rate
        context_ms, latency_ms = frame_ms * described.left, 1_000 * described.latency_s
        window_ms = step_ms if described.raw else frame_ms * described.window + context_ms
    else:
        files, window_ms = (weights_file(path),), step_ms
        latency_ms = step_ms + 1_000 * config.delay_frames * config.frame_s
        context_ms = 0.0
    return {
        "kind": config.architecture,
        "name": config.name,
        "version": config.version,
        "precision": model.facts.precision,
        "languages": list(config.languages),
        "sample_rate": config.sample_rate,
        "context_ms": round(context_ms, 1),
        "window_ms": round(window_ms, 1),
        "shift_ms": round(step_ms, 1),
        "frame_ms": round(1_000 * config.frame_s, 1),
        "latency_ms": round(latency_ms, 1),
        "symbols": len(tokens.symbols),
        "spelling": tokens.spelling,
        "file_bytes": sum(file.stat().st_size for file in files),
        "state_bytes": model.slots(capacity=1, largest=1).state_bytes,
        "words_in_noise": "dropped" if config.doubts_steady_audio else "kept",
    }


def _rows(model: AcousticModel, blank: int) -> Document:
    rows = check_rows(model, blank)
    return {
        "one_row": model.facts.one_row,
        "left_out": [size for size in SIZES if size not in rows.equal_bits],
        **asdict(rows),
    }


def _speed(model: AcousticModel, settings: Settings) -> Document:
    """Time batches as a server does at its start, and estimate the number of live streams from them."""
    slots = model.slots(capacity=settings.max_batch, largest=settings.max_batch)
    batch_s = Stepper(slots).warm_up(time.perf_counter)
    step_s, largest = model.config.step_samples / model.config.sample_rate, len(slots.inputs)
    objective_s = settings.latency_budget_ms / 1_000
    measured = {rows: batch_s[rows] for rows in BATCHES if rows in batch_s}
    return {
        "threads": model.threads,
        "undivided": model.facts.undivided,
        "batch_ms": {rows: round(1_000 * seconds, 3) for rows, seconds in measured.items()},
        "real_time_factor": {rows: round(seconds / (rows * step_s), 6) for rows, seconds in measured.items()},
        "largest_batch": largest,
        "left_out": [rows for rows in BATCHES if rows > largest],
        "objective_ms": settings.latency_budget_ms,
        "live_streams": int(LatencyObjective(step_s, objective_s).carried(batch_s)),
    }


def _compiled(model: PublishedModel, options: Asked, settings: Settings) -> Document:
    """Describe the compiled step of a published model, its scales, and the batch times of the graph as published."""
    if model.verdict is None:
        return {}
    largest = model.verdict.largest_difference  # JSON has no infinity: None
    document: Document = {
        "compiled_step": asdict(model.verdict) | {"largest_difference": largest if math.isfinite(largest) else None}
    }
    if model.compiled is not None and model.transducer is not None:
        document["compiled_search"] = {"applied": model.graph_search == "", "reason": model.graph_search}
    if model.compiled is not None:
        path = options.model or model.files.folder
        precision = "fp32" if model.scales is not None else options.precision
        published = PublishedModel.load(
            path, device=options.device, precision=precision, rewriting="off", threads=model.threads
        )
        slots = published.slots(capacity=COMPARED[-1], largest=min(COMPARED[-1], settings.max_batch))
        batch_s = Stepper(slots).warm_up(time.perf_counter)
        measured_ms = {rows: round(1_000 * batch_s[rows], 3) for rows in COMPARED if rows in batch_s}
        document["as_published"] = {"precision": published.precision, "batch_ms": measured_ms}
    if model.scales is not None:
        document["int8"] = {**model.scales.report, "left_out": list(model.scales.left_out)}
    return document


def _recognized(model: AcousticModel, published: PublishedModel | None, path: Path) -> Document:
    """Transcribe a recording, and compare the tokens with those of sherpa-onnx."""
    pcm = RecordingReader(lambda _: None)(path, model.config.sample_rate)
    config, tokens = model.config, model.facts.tokens
    if published is None:  # a published model needs no silence: its outputs end with the audio
        pcm = np.concatenate([pcm, np.zeros(config.flush_steps * config.step_samples, np.int16)])
    (outputs,) = log_probs_of(model, [pcm])
    decoder = decoder_of(model.facts, decoder="auto" if published is None else "greedy")
    state = decoder.start(config.delay_frames)
    decoder.advance([state], outputs[np.newaxis])
    emitted = searched(model.facts, outputs[np.newaxis])[0]
    numbers = tokens_of(emitted if model.facts.transducer else emitted[:, : len(tokens.symbols)], tokens.blank)
    return {
        "file": path.name,
        "seconds": round(len(pcm) / config.sample_rate, 2),
        "text": joined(word.text for word in decoder.take(state)),
        "sherpa": _sherpa(published, as_shown([tokens.symbols[number] for number in numbers]), pcm),
    }


def _sherpa(model: PublishedModel | None, ours: list[str], pcm: NDArray[np.int16]) -> Document:
    version = sherpa_version()
    if model is None:
        return {"version": version, "left_out": "it cannot read this checkpoint: see `tutti export`"}
    if version is None:
        return {"version": None, "left_out": "it is not installed"}
    different = first_difference(ours, sherpa_tokens(model, pcm))
    return {
        "version": version,
        "equal": different is None,
        "tokens": len(ours),
        **({} if different is None else {"first_difference": asdict(different)}),
    }
