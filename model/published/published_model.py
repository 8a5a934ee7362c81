"""A loaded and validated published model: its description, symbols and slots.

All errors in the files are detected here, before the first stream: a missing graph or key, symbols that do not fit, a
graph that does not match its metadata.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from model.ctc.tokens import Tokens
from model.description import Device
from model.errors import PublishedModelError
from model.machine.precision import resolve_device
from model.published import contracts
from model.published.contracts import KINDS, Contract, check_batches, for_batches_of, recognize
from model.published.features import windows_of
from model.published.files import INT8, PublishedFiles, find_files
from model.published.metadata import THREADS, Graph
from model.published.rewriting.verdicts import Rewriting, Verdict
from model.published.slots import PublishedSlots
from model.published.stepping import GraphSlots, check_graph, least_rows
from model.published.timing import PublishedDescription
from model.published.transducer import Recurrent, Stateless

if TYPE_CHECKING:
    from model.published.compiled.slots import CompiledSlots, CompiledStep
    from model.published.quantization.scales import Scales
    from model.published.rewriting.rewriting import Rewritten

LARGEST_BATCH = 32
"""Most rows of a batch: larger batches gain little and delay every stream."""

_CODES = ("en", "zh", "ru", "de", "es", "fr", "ko", "ja", "it", "pt", "vi", "th", "id", "ar", "bn")
_NAMES = {
    "english": "en",
    "chinese": "zh",
    "russian": "ru",
    "german": "de",
    "spanish": "es",
    "french": "fr",
    "korean": "ko",
    "japanese": "ja",
    "italian": "it",
    "portuguese": "pt",
    "vietnamese": "vi",
    "cantonese": "yue",
}


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A CTC graph, or the graphs of a transducer; implements `server.models.loading.AcousticModel` by structure."""

    config: PublishedDescription
    tokens: Tokens
    digest: str
    precision: str
    device: Device
    files: PublishedFiles
    contract: Contract
    graph: Graph
    result_shape: tuple[int, ...]
    least_rows: int
    transducer: Stateless | Recurrent | None
    rewrites: tuple[Verdict, ...] = ()
    scales: Scales | None = None  # of the products in 8-bit integers
    compiled: CompiledStep | None = None  # runs instead of the graph

    @classmethod
    def load(
        cls, path: Path, *, device: str = "auto", precision: str = "auto", rewriting: Rewriting = "auto"
    ) -> PublishedModel:
        """Load a folder, or one of its graphs, in the format of sherpa-onnx.

        On a CPU, its graph or encoder is rewritten, and its products are in 8-bit integers if the folder has scales for
        them and the precision is `auto` or `int8`. Raises: PublishedModelError.
        """
        place = _device(device)
        scales = None
        if place.type == "cpu" and precision != "fp32" and not path.name.endswith(INT8):
            from model.published.quantization.scales import Scales

            scales = Scales.read(path if path.is_dir() else path.parent)
        if scales is None:
            return cls.load_with_source(find_files(path, precision), place, rewriting)[0]
        model, found = cls.load_with_source(find_files(path, "fp32"), place, rewriting)
        return model.quantized(found, scales, rewriting)

    @classmethod
    def load_with_source(
        cls, files: PublishedFiles, place: Device, rewriting: Rewriting = "auto"
    ) -> tuple[PublishedModel, Rewritten]:
        """Load files, and return the rewritten graph as well. Raises: PublishedModelError."""
        from model.published.rewriting.rewriting import rewritten  # with onnx, which other models do not need
        from model.published.rewriting.verification import speech_windows

        graphs = {role: Graph.load(file, device=place.type) for role, file in files.graphs.items()}
        if "encoder" not in graphs:
            graph = graphs["model"]
            contract = for_batches_of(graph, KINDS[recognize(graph)][1](graph))
            shape = check_graph(graph, contract)
            tokens = Tokens.read(files.tokens, shape[1])
            _check_vocabulary(graph, contract, shape[1])
            transducer, frames = None, shape[0]
        else:
            graph, decoder, joiner = (graphs[role] for role in ("encoder", "decoder", "joiner"))
            recurrent = any(key.startswith("cache_last_") for key in graph.metadata)  # NeMo's
            if not recurrent:
                _check_encoder_kind(graph)
            contract = (
                contracts.nemo(graph, "nemo-transducer")
                if recurrent
                else contracts.zipformer2(graph, "zipformer2-transducer")
            )
            contract = for_batches_of(graph, contract)
            if not recurrent:
                check_batches(decoder)
                check_batches(joiner)
            shape = check_graph(graph, contract)
            size = graph.number("vocab_size") + 1 if recurrent else decoder.number("vocab_size")
            tokens = Tokens.read(files.tokens, size)
            width, frames = shape if recurrent else shape[::-1]
            transducer = (
                Recurrent.of(graph, decoder, joiner, tokens, width)
                if recurrent
                else Stateless.of(decoder, joiner, tokens, width)
            )
        digest = files.digest()
        description = _description(files, contract, frames, digest)
        found = rewritten(
            graph,
            contract,
            shape,
            lambda: speech_windows(description, contract.fbank),
            rewriting=rewriting if place.type == "cpu" else "off",
            digest=digest,
        )
        graph, contract, digest = found.graph, found.contract, found.digest(digest)
        model = cls(
            config=replace(description, version=digest[:12]),
            tokens=tokens,
            digest=digest,
            precision=files.precision,
            device=place,
            files=files,
            contract=contract,
            graph=graph,
            result_shape=shape,
            least_rows=least_rows(graph, contract, shape),
            transducer=transducer,
            rewrites=found.verdicts,
        )
        return model, found

    def quantized(self, found: Rewritten, scales: Scales, rewriting: Rewriting = "auto") -> PublishedModel:
        """Return the model with products in 8-bit integers, from its rewritten graph. Raises: PublishedModelError.

        If its kind has a compiled step that gives what the graph gives, that runs; not if `rewriting` is `exact`.
        """
        from model.published.compiled.compiling import compile_step, digest_of
        from model.published.rewriting.verification import speech_windows

        source = scales.applied(found.source, self.digest)
        graph = Graph.of(self.graph.path, source.proto().SerializeToString())
        model = replace(
            self,
            config=replace(self.config, version=scales.digest[:12]),
            digest=scales.digest,
            precision="int8",
            scales=scales,
            graph=graph,
            least_rows=least_rows(graph, self.contract, self.result_shape),
        )
        if rewriting != "auto":
            return model
        windows = lambda: speech_windows(self.config, self.contract.fbank)  # noqa: E731
        step, verdict = compile_step(found, graph, scales, self.result_shape, windows)
        model = replace(model, rewrites=(*self.rewrites, verdict))
        if step is None:
            return model
        digest = digest_of(scales)
        return replace(
            model,
            config=replace(self.config, version=digest[:12]),
            digest=digest,
            graph=graph.closed(),
            least_rows=1,
            compiled=step,
        )

    @property
    def threads(self) -> int:
        """Number of compute threads of a step."""
        return THREADS

    @property
    def bins_first(self) -> bool:
        """Whether the frames are the last axis of the encoder's output, as in NeMo's transducers."""
        return isinstance(self.transducer, Recurrent) and self.compiled is None

    @property
    def weight_bytes(self) -> int:
        """Size of the graph files in bytes, which is about that of the weights."""
        return sum(path.stat().st_size for path in self.files.graphs.values())

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> PublishedSlots:
        """Return the model with slots for `capacity` streams, in batches of at most `largest` and `LARGEST_BATCH` rows.

        With any value of `tile_rows` each row is run alone, so that no row can depend on others; the decoder and joiner
        of a transducer run rows alone only if their rows do depend on others. Without it, a batch of one row is padded
        if that makes its outputs bit-identical to those in larger batches.
        """
        largest = min(largest, capacity, LARGEST_BATCH)
        at_once = 1 if tile_rows is not None else largest
        return PublishedSlots(
            windows_of(self.config, self.contract.fbank, capacity=capacity),
            self._network(capacity, at_once, least=1 if tile_rows is not None else self.least_rows),
            None if self.transducer is None else self.transducer.over(capacity),
            searched_alone=tile_rows is not None and self.transducer is not None and self.transducer.rows.dependent,
            step_samples=self.config.step_samples,
            bins_first=self.bins_first,
            capacity=capacity,
            largest=largest,
        )

    def _network(self, capacity: int, largest: int, *, least: int) -> GraphSlots | CompiledSlots:
        if self.compiled is not None:
            from model.published.compiled.slots import CompiledSlots

            return CompiledSlots(self.compiled, capacity=capacity)
        return GraphSlots(self.graph, self.contract, self.result_shape, capacity=capacity, largest=largest, least=least)


def _device(asked: str) -> Device:
    if asked == "auto":
        import onnxruntime

        return Device("cuda" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu")
    return resolve_device(asked)


def _check_encoder_kind(encoder: Graph) -> None:
    kind = encoder.metadata.get("model_type")
    if kind is None:
        raise PublishedModelError(f"{encoder.path.name} has no 'model_type' in its metadata")
    if kind != "zipformer2":
        raise PublishedModelError(
            f"{encoder.path.name}: transducers of kind {kind!r} are not supported, only those of zipformer2 and NeMo"
        )


def _check_vocabulary(graph: Graph, contract: Contract, size: int) -> None:
    declared = {"nemo-ctc": 1, "wenet-ctc": 0}.get(contract.kind)  # NeMo does not count the blank
    if declared is not None and graph.number("vocab_size") + declared != size:
        raise PublishedModelError(
            f"{graph.path.name}: 'vocab_size' in the metadata is {graph.metadata['vocab_size']}, "
            f"but the model has {size} outputs"
        )


def _description(files: PublishedFiles, contract: Contract, frames: int, digest: str) -> PublishedDescription:
    raw = contract.fbank is None
    return PublishedDescription(
        name=files.folder.resolve().name,
        version=digest[:12],
        architecture=contract.kind,
        languages=languages_of(files.folder.resolve().name),
        sample_rate=contract.sample_rate,
        window=contract.window,
        shift=contract.shift,
        frames_per_step=frames,
        frame_s=contract.shift * 0.01 / frames if raw else contract.subsampling * 0.01,
        hop=contract.sample_rate // 100,
        raw=raw,
    )


def languages_of(name: str) -> tuple[str, ...]:
    """Return the languages in a release name such as `sherpa-onnx-streaming-zipformer-en-2023-06-26`; else ()."""
    if not name.startswith("sherpa-onnx"):
        return ()
    parts = re.split(r"[-_.]", name.lower())
    return tuple(dict.fromkeys(_NAMES.get(part, part) for part in parts if part in _NAMES or part in _CODES))
