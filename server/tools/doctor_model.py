"""Checks of the model, for `tutti doctor`: weights, device, precision, exact arithmetic, code, independence of rows."""

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
from model.acoustic import AcousticModel, load_model, load_segment_model
from model.ctc.search import kernel
from model.ctc.words import Decoder
from model.decoder import SENTENCES, SHIPPED_LM, accurate_of, decoder_of, grammars_of, language_model_path
from model.description import Place
from model.errors import ModelError, PrecisionError, PublishedModelError, VocabularyError, install_hint
from model.evaluation.ceiling import SLOW_NS, read_ns
from model.evaluation.digest import committed_digest, log_probs_digest, scores_digest
from model.lm.recurrent.model import kept_model
from model.machine.compiled import kept_in
from model.machine.instructions import instruction_set
from model.published.published_model import PublishedModel
from model.segment_model import other_of
from server.configuration.variables import spelled
from server.models.loading import load_vad
from server.models.service import TILE_ROWS, VAD_HZ
from server.settings import Settings
from server.tools.doctor import Check, Finding, fail, ok, warn
from server.tools.doctor_machine import GIB, free_memory

SUMS = "SHA256SUMS"
STEPS = 4
SIZES = (2, 3, 5, 8, 16, 32)
"""Batch sizes that are compared with a stream alone: small, odd, and widths at which kernels change."""
BESIDE_MODEL = GIB


def weights(settings: Settings) -> Iterator[Finding]:
    """Checksums of the files that ship with the program."""
    folder = checkpoint.WEIGHTS
    try:
        rows = (folder / SUMS).read_text(encoding="ascii").split("\n")
    except OSError:
        yield fail("weights", f"{folder / SUMS} is missing", "install anew: the shipped weights are not complete")
        return
    wrong = [
        name for digest, _, name in (row.partition("  ") for row in rows if row) if _sha256(folder / name) != digest
    ]
    if wrong:
        yield fail("weights", f"damaged or missing: {', '.join(wrong)}", "install anew, or check the disk")
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
    """The checks of each model that would be served; of several, each finding names its model."""
    for entry, own in settings.of_models():
        chosen = "model" if settings.models_file is None else "models_file"
        for finding in _one_model(own, chosen):
            yield finding if entry is None else replace(finding, name=f"{entry.name}: {finding.name}")


def _one_model(settings: Settings, chosen: str) -> Iterator[Finding]:
    """Device, precision, exact arithmetic, memory of the streams' states, caches, batch invariance and decoder."""
    try:
        served = load_model(
            settings.model, device=settings.device, precision=settings.precision, threads=settings.threads
        )
    except PrecisionError as error:
        found, _, advice = str(error).partition(": ")
        setting = "device" if settings.device == "cuda" and "device" in found else "precision"
        yield fail(setting, found, f"{spelled(setting)}: {advice}")
        return
    except ModelError as error:
        takes = "a shipped model's name (small, medium, mandarin), a checkpoint, or a published folder: docs/models.md"
        yield fail("model", str(error), f"correct {spelled(chosen)}: {takes}")
        return
    yield _device(served.device)
    yield _precision(settings, served)
    yield from _arithmetic(settings, served)
    yield _states(settings, served)
    if served.device.type == "cpu":
        yield _caches(served.weight_bytes)
    yield from _invariance(settings, served)
    yield from _voice_activity(settings, served)
    yield from _decoder(settings, served)


def _device(device: Place) -> Finding:
    if device.type == "cuda":
        import torch

        facts = torch.cuda.get_device_properties(device.type)
        return ok("device", f"{facts.name}, {facts.total_memory / GIB:.0f} GiB, CUDA {torch.version.cuda}")
    if Path("/dev/nvidia0").exists():
        advice = "this torch sees no GPU: install its CUDA build, and a driver that fits"
        return warn("device", f"cpu, though there is a GPU; {_torch_version()}", advice)
    return ok("device", f"cpu, {_torch_version()}")


def _torch_version() -> str:
    try:
        return f"torch {version('torch')}"
    except PackageNotFoundError:
        return f"without torch, which GPUs and other precisions than int8 need: {install_hint('torch')}"


def _free_on(device: Place) -> int:
    """Free memory in bytes."""
    if device.type != "cuda":
        return free_memory()
    import torch

    return int(torch.cuda.mem_get_info(device.type)[0])


def _precision(settings: Settings, served: AcousticModel) -> Finding:
    """The arithmetic, why it was chosen, and the instructions of 8-bit products; the slow ways are warned of."""
    name, way, asked = "precision", instruction_set(), settings.precision != "auto"
    if served.device.type == "cuda":
        kernels = f", kernels: {served.rung}" if hasattr(served, "rung") else ""
        return ok(name, f"{served.precision}: the device is a GPU{kernels}")
    if isinstance(served, PublishedModel):
        return ok(name, f"{served.precision} by ONNX Runtime, as the graph is")
    portable = way == "portable"
    by = "portable code: neither AVX2 nor VNNI here, or held back" if portable else f"{way} instructions"
    if served.precision == "int8":
        found = f"int8 by {by}"
        return (
            warn(name, found, f"{spelled('precision', 'auto')}, or a processor with AVX2 or VNNI")
            if portable
            else ok(name, found)
        )
    if asked:
        return ok(name, f"{served.precision}, as asked for; int8 would be by {by}")
    found = f"{served.precision}; int8 would be by {by}" + ("" if portable else ", but this checkpoint has no integers")
    if served.precision != "fp32":
        return ok(name, found)
    quantize = "`tutti quantize` makes a checkpoint that has them, which is much faster"
    return warn(name, found, "a processor with AVX2 or VNNI multiplies integers fast" if portable else quantize)


def _arithmetic(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Compare shipped 8-bit models' log-probs on the sample recordings with those of every processor."""
    path = checkpoint.SHIPPED if settings.model is None else checkpoint.named(settings.model)
    if served.precision == "int8":
        mend = f"streams that move to another replica may change words: {spelled('precision', 'fp32')}; and report it"
        yield from _compared("arithmetic", path, lambda: log_probs_digest(served), mend)
    if settings.finals != "accurate" or isinstance(served, PublishedModel):
        return
    if (other := other_of(served.config)) is not None:
        mend = f"finals may differ from those of another replica: {spelled('finals', 'fast')}; and report it"
        name = "arithmetic of accurate finals"
        yield from _compared(name, other[0], lambda: log_probs_digest(load_segment_model(other[0])), mend)
        if language_model_path(settings.lm, served.config.language) == SHIPPED_LM:
            yield from _compared(f"{name}' texts", SENTENCES, lambda: scores_digest(kept_model(SENTENCES)), mend)


def _compared(name: str, path: Path, find: Callable[[], str], mend: str) -> Iterator[Finding]:
    expected = committed_digest(path.name) if path.parent == checkpoint.SHIPPED.parent else None
    if expected is None:
        return
    if find() == expected:
        yield ok(name, "log-probs of the sample recordings are those of every processor, to the bit")
    else:
        yield fail(name, "log-probs of the sample recordings differ from those of other processors", mend)


def _states(settings: Settings, served: AcousticModel) -> Finding:
    row = served.slots(capacity=1, largest=1).state_bytes
    total = row * settings.all_slots
    free = _free_on(served.device)
    found = f"{row / 1024:.0f} KiB a stream, {total / GIB:.2f} GiB for {settings.all_slots}, {free / GIB:.1f} GiB free"
    if total + (BESIDE_MODEL if served.device.type == "cpu" else 0) > free:
        return warn("states", found, f"fewer streams: {spelled('max_streams')}, or more memory")
    return ok("states", found)


def _caches(size: int) -> Finding:
    """Whether the weights stay in the caches between two steps."""
    rounds = read_ns(size)
    middle_ns = statistics.median(rounds)
    found = f"{size / 2**20:.0f} MiB of weights, {middle_ns:.0f} ns a read, {min(rounds):.0f} at best"
    if middle_ns <= SLOW_NS:
        return ok("caches", found)
    advice = "the weights do not stay in this machine's caches, so steps are slow: a host with fewer neighbours"
    return warn("caches", found, advice)


def _invariance(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Step streams alone and together, and compare to the bit."""
    name, differs = "batch invariance", differing(served, TILE_ROWS if settings.reproducible else None)
    if not differs:
        yield ok(name, f"alone and in batches of {', '.join(map(str, SIZES))}: equal to the bit, {served.precision}")
        return
    found = f"log-probs differ in batches of {', '.join(map(str, differs))}, {served.precision}"
    if settings.reproducible or differing(served, TILE_ROWS):
        advice = f"{spelled('precision', 'fp32')}; and report it: rows should be independent in tiles"
        yield fail(name, found, advice)
    else:
        yield warn(name, found, f"{spelled('reproducible', 'true')}: tiles of a fixed shape are equal to the bit here")


def differing(served: AcousticModel, tile_rows: int | None) -> list[int]:
    """Sizes of batches in which a stream's outputs differ from those alone."""
    largest = max(SIZES)
    slots = served.slots(capacity=largest, largest=largest, tile_rows=tile_rows)
    audio = np.random.default_rng(7).integers(-8_000, 8_000, (STEPS, *slots.inputs.shape), dtype=np.int16)

    def outputs(rows: Sequence[int]) -> np.ndarray:
        """These rows from their beginning, in one batch: (STEPS, B, frames, V)."""
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
    """The decoder that would be served, and whether its machine code is kept between starts."""
    try:
        decoder = decoder_of(served, decoder=settings.decoder, beams=settings.beams, lm=settings.lm)
    except ModelError as error:
        yield _undecodable(settings, error)
        return
    language = "en" if isinstance(served, PublishedModel) else served.config.language
    path = language_model_path(settings.lm, language) if decoder.supports_bias else None
    kind = "beam search" if decoder.supports_bias else "greedy"
    yield ok("decoder", f"{kind}, {'no language model' if path is None else path.name}")
    yield from _accurate(settings, served, decoder)
    if not decoder.supports_bias:
        return
    try:
        grammars = grammars_of(served, settings.beams, settings.grammars)
    except ModelError as error:
        advice = f"correct {spelled('grammars')}: a folder of LANGUAGE-NAME.arpa, or leave it out"
        yield fail("grammars", str(error), advice)
    else:
        yield ok("grammars", ", ".join(grammars) or "none")
    folder = kept_in(kernel.advance_streams)
    if folder is None or not os.access(folder, os.W_OK):
        advice = "each start compiles for a minute: NUMBA_CACHE_DIR=<a folder that can be written>"
        yield warn("compiled code", "is not kept" if folder is None else f"{folder} cannot be written", advice)
    else:
        yield ok("compiled code", f"kept in {folder}")


def _undecodable(settings: Settings, error: ModelError) -> Finding:
    """The finding of a decoder that cannot be made, with the setting that is to blame."""
    takes = "an .arpa, .arpa.gz or .lm file, or off; left out, the shipped one is used"
    if isinstance(error, VocabularyError):
        advice = f"{spelled('decoder', 'greedy')}, which takes any symbols"
    elif isinstance(error, PublishedModelError):
        advice = f"leave out {spelled('decoder')} and {spelled('lm')}"
    elif isinstance(settings.lm, Path):
        advice = f"correct {spelled('lm')}: {takes}"
    else:
        advice = "install anew: the shipped language model is not complete"
    return fail("decoder", str(error), advice)


def _accurate(settings: Settings, served: AcousticModel, decoder: Decoder) -> Iterator[Finding]:
    """Whether accurate finals, if they are the default, can be had of this model."""
    if settings.finals != "accurate":
        return
    try:
        found = accurate_of(served, decoder, settings.lm)
    except ModelError as error:
        yield fail("accurate finals", str(error), spelled("finals", "fast"))
        return
    if found is None:
        advice = (
            f"streams get fast ones: {spelled('finals', 'fast')} says so, or choose beam search and a shipped model"
        )
        yield warn("accurate finals", "this model and decoder have none", advice)


def _voice_activity(settings: Settings, served: AcousticModel) -> Iterator[Finding]:
    """Whether the detector of speech can be loaded, and takes what the model takes."""
    if settings.vad == "off":
        return
    rate = served.config.sample_rate
    try:
        load_vad(settings)
    except ModelError as error:
        yield fail("voice activity", str(error), f"install what is missing, or {spelled('vad', 'off')}")
        return
    if rate != VAD_HZ:
        found = f"{settings.vad} takes {VAD_HZ} Hz, this model {rate}"
        yield fail("voice activity", found, spelled("vad", "off"))
    else:
        yield ok("voice activity", settings.vad)


CHECKS: tuple[Check, ...] = (weights, model)
