"""Checks of the model, for `tutti doctor`: weights, device, precision, reproducible arithmetic, batch invariance."""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from model import checkpoint
from model.acoustic import load_model, load_segment_model
from model.ctc.interface import Decoder
from model.ctc.search import kernel
from model.decoder import SENTENCES, SHIPPED_LM, accurate_of, decoder_of, grammars_of, language_model_path
from model.errors import ModelError, PrecisionError, PublishedModelError, VocabularyError, install_hint
from model.evaluation.ceiling import SLOW_NS, read_ns
from model.evaluation.digest import committed_digest, log_probs_digest, scores_digest
from model.facts import AcousticModel
from model.lm.recurrent.model import kept_model
from model.machine.compiled import kept_in
from model.machine.device import Device
from model.machine.instructions import instruction_set
from model.segment_model import other_of
from server.configuration.variables import spelled
from server.models.engine_source import TILE_ROWS
from server.models.loading import VAD_HZ, load_vad
from server.models.service import TURN_HZ
from server.settings import Settings
from server.tools.doctor import Check, Finding, fail, ok, warn
from server.tools.doctor_machine import GIB, free_memory

SUMS = "SHA256SUMS"
STEPS = 4
SIZES = (2, 3, 5, 8, 16, 32)
"""Batch sizes compared with a single stream: small, odd, and widths at which kernels change."""
MODEL_BYTES = GIB


def weights(settings: Settings) -> Iterator[Finding]:
    """Check the checksums of the shipped files."""
    folder = checkpoint.WEIGHTS
    try:
        rows = (folder / SUMS).read_text(encoding="ascii").split("\n")
    except OSError:
        yield fail("weights", f"{folder / SUMS} is missing", "reinstall: the shipped weights are incomplete")
        return
    wrong = [
        name for digest, _, name in (row.partition("  ") for row in rows if row) if _sha256(folder / name) != digest
    ]
    if wrong:
        yield fail("weights", f"damaged or missing: {', '.join(wrong)}", "reinstall, or check the disk")
    else:
        chosen = "" if settings.model is None else f"; another model is chosen: {settings.model}"
        yield ok("weights", f"as shipped{chosen}")


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def model(settings: Settings) -> Iterator[Finding]:
    """Run the checks of each model to be served; with several models, each finding names its model."""
    for entry, own in settings.of_models():
        chosen = "model" if settings.models_file is None else "models_file"
        for finding in _one_model(own, chosen):
            yield finding if entry is None else replace(finding, name=f"{entry.name}: {finding.name}")


def _one_model(settings: Settings, chosen: str) -> Iterator[Finding]:
    """Check device, precision, arithmetic, memory of stream states, caches, batch invariance and decoder."""
    try:
        served = load_model(
            settings.model,
            device=settings.device,
            precision=settings.precision,
            threads=settings.threads,
            rewriting=settings.graph_rewriting,
        )
    except PrecisionError as error:
        found, _, advice = str(error).partition("; ")
        setting = "device" if settings.device == "cuda" and "device" in found else "precision"
        yield fail(setting, found, f"{spelled(setting)}: {advice}")
        return
    except ModelError as error:
        takes = "a shipped model (small, mandarin), a checkpoint, or a published model's folder: docs/models.md"
        yield fail("model", str(error), f"correct {spelled(chosen)}: {takes}")
        return
    yield _device(served.facts.device)
    yield _precision(settings, served)
    yield from _arithmetic(settings, served)
    yield _states(settings, served)
    if served.facts.device.type == "cpu":
        yield _caches(served.weight_bytes)
    yield from _invariance(settings, served)
    yield from _voice_activity(settings, served)
    yield from _turn_model(settings, served)
    yield from _decoder(settings, served)


def _device(device: Device) -> Finding:
    if device.type == "cuda":
        import torch

        facts = torch.cuda.get_device_properties(device.type)
        return ok("device", f"{facts.name}, {facts.total_memory / GIB:.0f} GiB, CUDA {torch.version.cuda}")
    if Path("/dev/nvidia0").exists():
        advice = "torch cannot use the GPU: install its CUDA build and a matching driver"
        return warn("device", f"cpu, although this machine has a GPU; {_torch_version()}", advice)
    return ok("device", f"cpu, {_torch_version()}")


def _torch_version() -> str:
    try:
        return f"torch {version('torch')}"
    except PackageNotFoundError:
        return f"without torch, which GPUs and precisions other than int8 need: {install_hint('torch')}"


def _free_on(device: Device) -> int:
    """Free memory in bytes."""
    if device.type != "cuda":
        return free_memory()
    import torch

    return int(torch.cuda.mem_get_info(device.type)[0])


def _precision(settings: Settings, served: AcousticModel) -> Finding:
    """Check the precision and the instructions for 8-bit products; warns of slow combinations."""
    name, way, asked = "precision", instruction_set(), settings.precision != "auto"
    if served.facts.device.type == "cuda":
        kernels = f", kernels: {served.rung}" if hasattr(served, "rung") else ""
        return ok(name, f"{served.facts.precision}: the device is a GPU{kernels}")
    if served.facts.published:
        return ok(name, f"{served.facts.precision} in ONNX Runtime, as stored in the graph")
    portable = way == "portable"
    by = "portable code: AVX2 and VNNI are missing or disabled" if portable else f"{way} instructions"
    if served.facts.precision == "int8":
        found = f"int8 with {by}"
        return (
            warn(name, found, f"set {spelled('precision', 'auto')}, or use a processor with AVX2 or VNNI")
            if portable
            else ok(name, found)
        )
    if asked:
        return ok(name, f"{served.facts.precision}, as requested; int8 would use {by}")
    found = f"{served.facts.precision}; int8 would use {by}" + (
        "" if portable else ", but this checkpoint has no 8-bit weights"
    )
    if served.facts.precision != "fp32":
        return ok(name, found)
    quantize = "make a checkpoint with 8-bit weights by `tutti quantize`: much faster"
    return warn(name, found, "use a processor with AVX2 or VNNI: much faster" if portable else quantize)


def _arithmetic(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Check that log-probs of shipped 8-bit models on the sample recordings equal the committed ones."""
    path = checkpoint.SHIPPED if settings.model is None else checkpoint.named(settings.model)
    if served.facts.precision == "int8":
        advice = f"words may change on another replica: set {spelled('precision', 'fp32')}; please report"
        yield from _compared("arithmetic", path, lambda: log_probs_digest(served), advice)
    if settings.finals != "accurate" or served.facts.published:
        return
    config = served.facts.own_config
    if (other := other_of(config)) is not None:
        advice = f"finals may differ between replicas: set {spelled('finals', 'fast')}; please report"
        name = "arithmetic of accurate finals"
        yield from _compared(name, other[0], lambda: log_probs_digest(load_segment_model(other[0])), advice)
        if language_model_path(settings.lm, config.language) == SHIPPED_LM:
            yield from _compared(f"{name}' texts", SENTENCES, lambda: scores_digest(kept_model(SENTENCES)), advice)


def _compared(name: str, path: Path, find: Callable[[], str], advice: str) -> Iterator[Finding]:
    expected = committed_digest(path.name) if path.parent == checkpoint.SHIPPED.parent else None
    if expected is None:
        return
    if find() == expected:
        yield ok(name, "log-probs of the sample recordings are bit-identical to those of other processors")
    else:
        yield fail(name, "log-probs of the sample recordings differ from those of other processors", advice)


def _states(settings: Settings, served: AcousticModel) -> Finding:
    row = served.slots(capacity=1, largest=1).state_bytes
    total = row * settings.all_slots
    free = _free_on(served.facts.device)
    found = (
        f"{row / 1024:.0f} KiB per stream, {total / GIB:.2f} GiB for {settings.all_slots}, {free / GIB:.1f} GiB free"
    )
    if total + (MODEL_BYTES if served.facts.device.type == "cpu" else 0) > free:
        return warn("states", found, f"lower {spelled('max_streams')}, or add memory")
    return ok("states", found)


def _caches(size: int) -> Finding:
    """Check whether the weights stay in the CPU caches between two steps."""
    rounds = read_ns(size)
    middle_ns = statistics.median(rounds)
    found = f"{size / 2**20:.0f} MiB of weights, {middle_ns:.0f} ns per read, {min(rounds):.0f} at best"
    if middle_ns <= SLOW_NS:
        return ok("caches", found)
    advice = "the weights do not stay in the CPU caches, so steps are slow: use a host with less CPU contention"
    return warn("caches", found, advice)


def _invariance(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Check that outputs of streams alone and in batches are bit-identical."""
    name, differs = "batch invariance", differing(served, TILE_ROWS if settings.reproducible else None)
    if not differs:
        yield ok(name, f"alone and in batches of {', '.join(map(str, SIZES))}: bit-identical, {served.facts.precision}")
        return
    found = f"log-probs differ in batches of {', '.join(map(str, differs))}, {served.facts.precision}"
    if settings.reproducible or differing(served, TILE_ROWS):
        advice = f"set {spelled('precision', 'fp32')}; please report: rows should be independent in tiles"
        yield fail(name, found, advice)
    else:
        yield warn(name, found, f"set {spelled('reproducible', 'true')}: tiles of fixed size are bit-identical here")


def differing(served: AcousticModel, tile_rows: int | None) -> list[int]:
    """Return the batch sizes at which a stream's outputs differ from its outputs alone."""
    largest = max(SIZES)
    slots = served.slots(capacity=largest, largest=largest, tile_rows=tile_rows)
    audio = np.random.default_rng(7).integers(-8_000, 8_000, (STEPS, *slots.inputs.shape), dtype=np.int16)

    def outputs(rows: Sequence[int]) -> np.ndarray:
        """Reset these rows and run them as one batch: (STEPS, B, frames, V)."""
        for row in rows:
            slots.reset(row)
        found = []
        for step in audio:
            slots.inputs[: len(rows)] = step[rows]
            found.append(slots.run(rows))
        return np.stack(found)

    alone = np.concatenate([outputs([row]) for row in range(largest)], axis=1)
    return [size for size in SIZES if not np.array_equal(alone[:, :size], outputs(range(size)))]


def _decoder(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Check the decoder, and whether its compiled code is cached between starts."""
    try:
        decoder = decoder_of(served.facts, decoder=settings.decoder, beams=settings.beams, lm=settings.lm)
    except ModelError as error:
        yield _undecodable(settings, error)
        return
    language = "en" if served.facts.published else served.facts.own_config.language
    path = language_model_path(settings.lm, language) if decoder.supports_bias else None
    kind = "beam search" if decoder.supports_bias else "greedy"
    yield ok("decoder", f"{kind}, {'no language model' if path is None else path.name}")
    yield from _accurate(settings, served, decoder)
    if not decoder.supports_bias:
        return
    try:
        grammars = grammars_of(served.facts, settings.beams, settings.grammars)
    except ModelError as error:
        advice = f"correct {spelled('grammars')}: a folder of LANGUAGE-NAME.arpa files, or leave it out"
        yield fail("grammars", str(error), advice)
    else:
        yield ok("grammars", ", ".join(grammars) or "none")
    folder = kept_in(kernel.advance_streams)
    if folder is None or not os.access(folder, os.W_OK):
        advice = "each start compiles for a minute: set NUMBA_CACHE_DIR to a writable folder"
        yield warn("compiled code", "not cached" if folder is None else f"{folder} is not writable", advice)
    else:
        yield ok("compiled code", f"cached in {folder}")


def _undecodable(settings: Settings, error: ModelError) -> Finding:
    """Return the finding of a decoder that cannot be created, with advice on the setting that causes it."""
    takes = "an .arpa, .arpa.gz or .lm file, or off; if unset, the shipped one is used"
    if isinstance(error, VocabularyError):
        advice = f"set {spelled('decoder', 'greedy')}, which supports any symbols"
    elif isinstance(error, PublishedModelError):
        advice = f"leave out {spelled('decoder')} and {spelled('lm')}"
    elif isinstance(settings.lm, Path):
        advice = f"correct {spelled('lm')}: {takes}"
    else:
        advice = "reinstall: the shipped language model is incomplete"
    return fail("decoder", str(error), advice)


def _accurate(settings: Settings, served: AcousticModel, decoder: Decoder) -> Iterator[Finding]:
    """Check whether this model supports accurate finals, if they are the default."""
    if settings.finals != "accurate":
        return
    try:
        found = accurate_of(served.facts, decoder, settings.lm)
    except ModelError as error:
        yield fail("accurate finals", str(error), f"set {spelled('finals', 'fast')}")
        return
    if found is None:
        advice = f"streams get fast ones: set {spelled('finals', 'fast')}, or use beam search and a shipped model"
        yield warn("accurate finals", "not supported by this model and decoder", advice)


def _voice_activity(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Check that the voice activity detector can be loaded and has the model's sample rate."""
    if settings.vad == "off":
        return
    rate = served.config.sample_rate
    try:
        load_vad(settings)
    except ModelError as error:
        yield fail("voice activity", str(error), f"install what is missing, or set {spelled('vad', 'off')}")
        return
    if rate != VAD_HZ and settings.vad == "auto":
        advice = f"`SpeechStarted` comes with the first word: it has {rate} Hz, and the detector needs {VAD_HZ}"
        yield warn("voice activity", "not used for this model", advice)
    elif rate != VAD_HZ:
        found = f"{settings.vad} needs {VAD_HZ} Hz, this model has {rate} Hz"
        yield fail("voice activity", found, f"set {spelled('vad', 'off')}")
    else:
        yield ok("voice activity", settings.vad)


def _turn_model(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Check that the turn model can be loaded and has the model's sample rate."""
    if settings.turn_model is None:
        return
    from model.turn_ends.turn_model import TurnModel

    rate = served.config.sample_rate
    try:
        TurnModel.load(settings.turn_model)
    except ModelError as error:
        yield fail("turn model", str(error), "set a file of Smart Turn's form, or none")
        return
    if rate != TURN_HZ:
        yield fail("turn model", f"it needs {TURN_HZ} Hz, this model has {rate} Hz", "set none")
    else:
        yield ok("turn model", str(settings.turn_model))


CHECKS: tuple[Check, ...] = (weights, model)
