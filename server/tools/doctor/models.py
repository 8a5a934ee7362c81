"""Checks of the models, for `tutti doctor`: weights, speed, reproducible arithmetic, independence of the batch."""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from model import checkpoint
from model.ctc.search import kernel
from model.decoder import SHIPPED_LM, language_model_path
from model.evaluation.ceiling import SLOW_NS, read_ns
from model.evaluation.digest import committed_digest, log_probs_digest, readings_digest
from model.facts import AcousticModel, ModelFacts
from model.machine.compiled import kept_in
from model.machine.compiler import LIBRARY
from model.machine.instructions import instruction_set
from model.moonshine.model import SHIPPED, Moonshine
from server.app import create_app
from server.configuration.variables import spelled
from server.models.engine_source import TILE_ROWS, LocalEngines
from server.models.loading import LoadedModel, load_acoustic, load_auxiliary, load_decoders
from server.operations.process import free_memory
from server.settings import Settings
from server.tools.doctor.findings import Check, Finding, fail, ok, warn
from server.tools.doctor.machine import GIB

SUMS = "SHA256SUMS"
STEPS = 4
SIZES = (2, 3, 5, 8, 16, 32)
"""Batch sizes compared with a single stream: small, odd, and widths at which kernels change."""
MODEL_BYTES = GIB


def weights(_: Settings) -> Iterator[Finding]:
    """Check the checksums of the shipped files."""
    folder = checkpoint.WEIGHTS
    rows = (folder / SUMS).read_text(encoding="ascii").split("\n")
    wrong = [
        name for digest, _, name in (row.partition("  ") for row in rows if row) if _sha256(folder / name) != digest
    ]
    if wrong:
        yield fail("weights", f"damaged or missing: {', '.join(wrong)}", "reinstall, or check the disk")
    else:
        yield ok("weights", "as shipped")


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def models(settings: Settings) -> Iterator[Finding]:
    """Load each model, check it, and build a server of them. Each finding names its model, if it has a name."""
    loaded = []
    for entry, own in settings.of_models():
        served = load_acoustic(own)
        model = load_decoders(served.facts, entry, own, LocalEngines.of(served))
        loaded.append(model)
        for finding in (*of_model(own, served), *_decoder(own, model)):
            yield finding if entry is None else replace(finding, name=f"{entry.name}: {finding.name}")
    create_app(settings.model_copy(update={"usage_log": None}), loaded, load_auxiliary(settings))  # makes no folder
    yield ok("server", "can be built with these settings")


def of_model(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Check precision, arithmetic, memory of stream states, caches and batch invariance."""
    yield _precision(settings, served.facts)
    yield from _arithmetic(settings, served)
    yield _states(settings, served)
    if served.facts.device.type == "cpu":
        yield _caches(served.weight_bytes)
    yield from _invariance(settings, served)


def _precision(settings: Settings, facts: ModelFacts) -> Finding:
    """Check device, precision and the instructions for 8-bit products; warn of slow combinations."""
    way = instruction_set()
    text = f"{facts.precision} on {facts.device}, {way} instructions"
    if facts.device.type == "cuda" or facts.published:
        return ok("precision", text)
    if Path("/dev/nvidia0").exists():
        return warn("precision", text, "torch cannot use the GPU: install its CUDA build and a matching driver")
    if way == "portable" and facts.precision in {"int8", "fp32"}:
        return warn("precision", text, "use a processor with AVX2 or VNNI: much faster")
    if facts.precision == "fp32" and settings.precision == "auto":
        return warn("precision", text, "make a checkpoint with 8-bit weights by `tutti quantize`: much faster")
    return ok("precision", text)


def _arithmetic(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Check that log-probs of shipped 8-bit models on the sample recordings equal the committed ones."""
    path = checkpoint.SHIPPED if settings.model is None else checkpoint.named(settings.model)
    if served.facts.precision == "int8":
        advice = f"words may change on another replica: set {spelled('precision', 'fp32')}; please report"
        yield from _compared("arithmetic", path, lambda: log_probs_digest(served), advice)
    if settings.finals == "fast" or served.facts.published:
        return
    if language_model_path(settings.lm, served.facts.own_config.language) == SHIPPED_LM:
        advice = f"finals may differ between replicas: set {spelled('finals', 'fast')}; please report"
        name = "arithmetic of accurate finals' texts"
        yield from _compared(name, SHIPPED, lambda: readings_digest(Moonshine.load()), advice)


def _compared(name: str, path: Path, find: Callable[[], str], advice: str) -> Iterator[Finding]:
    expected = committed_digest(path.name) if path.parent == checkpoint.SHIPPED.parent else None
    if expected is None:
        return
    if find() == expected:
        yield ok(name, "log-probs of the sample recordings are bit-identical to those of other processors")
    else:
        yield fail(name, "log-probs of the sample recordings differ from those of other processors", advice)


def _states(settings: Settings, served: AcousticModel) -> Finding:
    on_cpu = served.facts.device.type == "cpu"
    row, slots = served.slots(capacity=1, largest=1).state_bytes, settings.all_slots
    total, free = row * slots, free_memory() if on_cpu else _free_on_gpu()
    text = f"{row / 1024:.0f} KiB per stream, {total / GIB:.2f} GiB for {slots}, {free / GIB:.1f} GiB free"
    if total + MODEL_BYTES * on_cpu > free:
        return warn("states", text, f"lower {spelled('max_streams')}, or add memory")
    return ok("states", text)


def _free_on_gpu() -> int:
    """Return free memory in bytes."""
    import torch

    return int(torch.cuda.mem_get_info()[0])


def _caches(weight_bytes: int) -> Finding:
    """Check whether the weights stay in the CPU caches between two steps."""
    rounds_ns = read_ns(weight_bytes)
    middle_ns = statistics.median(rounds_ns)
    text = f"{weight_bytes / 2**20:.0f} MiB of weights, {middle_ns:.0f} ns per read, {min(rounds_ns):.0f} at best"
    if middle_ns <= SLOW_NS:
        return ok("caches", text)
    advice = "the weights do not stay in the CPU caches, so steps are slow: use a host with less CPU contention"
    return warn("caches", text, advice)


def _invariance(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Check that outputs of streams alone and in batches are bit-identical."""
    name, differs = "batch invariance", differing(served, TILE_ROWS if settings.reproducible else None)
    if not differs:
        yield ok(name, f"alone and in batches of {', '.join(map(str, SIZES))}: bit-identical, {served.facts.precision}")
        return
    text = f"log-probs differ in batches of {', '.join(map(str, differs))}, {served.facts.precision}"
    if settings.reproducible or differing(served, TILE_ROWS):
        advice = f"set {spelled('precision', 'fp32')}; please report: rows should be independent in tiles"
        yield fail(name, text, advice)
    else:
        yield warn(name, text, f"set {spelled('reproducible', 'true')}: tiles of fixed size are bit-identical here")


def differing(served: AcousticModel, tile_rows: int | None) -> list[int]:
    """Return the batch sizes at which a stream's outputs differ from its outputs alone."""
    largest = max(SIZES)
    slots = served.slots(capacity=largest, largest=largest, tile_rows=tile_rows)
    audio = np.random.default_rng(7).integers(-8_000, 8_000, (STEPS, *slots.inputs.shape), dtype=np.int16)

    def outputs(rows: Sequence[int]) -> np.ndarray:
        """Reset these rows and run them as one batch: (STEPS, B, frames, V)."""
        for row in rows:
            slots.reset(row)
        of_steps = []
        for step in audio:
            slots.inputs[: len(rows)] = step[rows]
            of_steps.append(slots.run(rows))
        return np.stack(of_steps)

    alone = np.concatenate([outputs([row]) for row in range(largest)], axis=1)
    return [size for size in SIZES if not np.array_equal(alone[:, :size], outputs(range(size)))]


def _decoder(settings: Settings, model: LoadedModel) -> Iterator[Finding]:
    """Name the decoder and its grammars; check accurate finals, and that compiled code is cached between starts."""
    if not model.decoder.supports_bias:
        yield ok("decoder", "greedy")
    else:
        language = "en" if model.facts.published else model.facts.own_config.language
        path = language_model_path(settings.lm, language)
        named = "no language model" if path is None else path.name
        yield ok("decoder", f"beam search, {named}, grammars: {', '.join(model.grammars) or 'none'}")
        folder = kept_in(kernel.advance_streams)
        if LIBRARY is not None:
            yield ok("compiled code", f"shipped for {LIBRARY.kind.name}")
        elif folder is None or not os.access(folder, os.W_OK):
            advice = "each start compiles for a minute: set NUMBA_CACHE_DIR to a writable folder"
            yield warn("compiled code", "not cached" if folder is None else f"{folder} is not writable", advice)
    if settings.finals not in {"auto", "fast"} and (settings.finals, "") not in model.passes:
        advice = f"streams get fast ones: set {spelled('finals', 'fast')}, or use beam search and a model trained here"
        yield warn(f"{settings.finals} finals", "not supported by this model and decoder", advice)


CHECKS: tuple[Check, ...] = (weights, models)
