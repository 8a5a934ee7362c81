"""A loaded and validated published model: its description, symbols and slots.

All errors in the files are detected when it is loaded, before the first stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from model.ctc.tokens import Tokens
from model.facts import ModelFacts
from model.machine.device import Device
from model.machine.precision import resolve_device
from model.published.contracts import Contract
from model.published.features import windows_of
from model.published.files import INT8, PublishedFiles, find_files
from model.published.metadata import THREADS, Graph
from model.published.reading import Search, contract_for, description_of, network_of, symbols_and_search
from model.published.rewriting.verdicts import Rewriting, Verdict
from model.published.slots import PublishedSlots
from model.published.stepping import GraphSlots, check_graph, least_rows, why_undivided
from model.published.timing import PublishedDescription
from model.published.transducer import Recurrent

if TYPE_CHECKING:
    from model.published.compiled.slots import CompiledSlots, CompiledStep
    from model.published.rewriting.rewriting import Rewritten
    from model.published.scales import Scales

LARGEST_BATCH = 32
"""Most rows of a batch for each thread: larger batches gain little and delay every stream."""


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A CTC graph, or the graphs of a transducer; implements `model.facts.AcousticModel` by structure."""

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
    transducer: Search | None
    rewrites: tuple[Verdict, ...] = ()
    scales: Scales | None = None  # of the products in 8-bit integers
    compiled: CompiledStep | None = None  # runs instead of the graph
    threads: int = THREADS  # of a step
    undivided: str = ""  # why a step has one thread though more were asked for

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: str = "auto",
        precision: str = "auto",
        rewriting: Rewriting = "auto",
        threads: int = THREADS,
    ) -> PublishedModel:
        """Load a folder, or one of its graphs, in the format of sherpa-onnx.

        On a CPU, its graph or encoder is rewritten, and its products are in 8-bit integers if the folder has scales for
        them and the precision is `auto` or `int8`. `threads`: most of a step. Raises: PublishedModelError.
        """
        place = _device(device)
        scales = None
        if place.type == "cpu" and precision != "fp32" and not path.name.endswith(INT8):
            from model.published.scales import Scales

            scales = Scales.read(path if path.is_dir() else path.parent)
        if scales is None:
            return cls.load_with_source(find_files(path, precision), place, rewriting)[0].with_threads(threads)
        files = find_files(path, "fp32")
        model = cls.load_compiled(files, scales, place) if rewriting == "auto" else None
        if model is None:
            floats, found = cls.load_with_source(files, place, rewriting, from_integers=True)
            model = floats.quantized(found, scales)
        return model.with_threads(threads)

    @classmethod
    def load_compiled(cls, files: PublishedFiles, scales: Scales, place: Device) -> PublishedModel | None:
        """Return the model with its compiled step, without a session of its network.

        None if it has no compiled step, or none that is known to give what the graph gives.
        Raises: PublishedModelError.
        """
        from model.published.compiled.compiling import digest_of, verified_before

        found = verified_before(files, scales)
        if found is None:
            return None
        graphs = {
            role: Graph.load(file, device=place.type) for role, file in files.graphs.items() if role != found.role
        }
        graphs[found.role] = found.graph
        contract = contract_for(graphs)
        frames, width = found.step.result_shape
        tokens, transducer = symbols_and_search(graphs, files, contract, width)
        digest = digest_of(scales)
        return cls(
            config=description_of(files, contract, frames, digest),
            tokens=tokens,
            digest=digest,
            precision="int8",
            device=place,
            files=files,
            contract=contract,
            graph=found.graph,
            result_shape=found.step.result_shape,
            least_rows=1,
            transducer=transducer,
            rewrites=(found.verdict,),
            scales=scales,
            compiled=found.step,
        )

    @classmethod
    def load_with_source(
        cls, files: PublishedFiles, place: Device, rewriting: Rewriting = "auto", *, from_integers: bool = False
    ) -> tuple[PublishedModel, Rewritten]:
        """Load files, and return the rewritten graph as well. Raises: PublishedModelError.

        `from_integers`: the graph or encoder is run in floats if its file is in 8 bits.
        """
        # with onnx, which other models do not need
        from model.published.rewriting.rewriting import in_floats, rewritten
        from model.published.rewriting.verification import speech_windows

        graphs = {role: Graph.load(file, device=place.type) for role, file in files.graphs.items()}
        from_integers = from_integers and files.precision == "int8"
        if from_integers:
            role = "model" if "model" in graphs else "encoder"
            graphs[role] = in_floats(graphs[role])
        graph, contract = network_of(graphs), contract_for(graphs)
        shape = check_graph(graph, contract)
        width, frames = shape if contract.kind == "nemo-transducer" else shape[::-1]
        tokens, transducer = symbols_and_search(graphs, files, contract, width)
        digest = files.digest()
        description = description_of(files, contract, frames, digest)
        found = rewritten(
            graph,
            contract,
            shape,
            lambda: speech_windows(description, contract.fbank),
            rewriting=rewriting if place.type == "cpu" else "off",
            digest=digest,
            from_integers=from_integers,
        )
        graph, contract, digest = found.graph, found.contract, found.digest(digest)
        model = cls(
            config=replace(description, version=digest[:12]),
            tokens=tokens,
            digest=digest,
            precision="fp32" if from_integers else files.precision,
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

    def quantized(self, found: Rewritten, scales: Scales) -> PublishedModel:
        """Return the model with products in 8-bit integers, from its rewritten graph. Raises: PublishedModelError.

        If its kind has a compiled step that gives what the graph gives, that runs.
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
        step, verdict = compile_step(
            found, graph, scales, self.result_shape, lambda: speech_windows(self.config, self.contract.fbank)
        )
        model = replace(model, rewrites=(*self.rewrites, verdict))
        if step is None:
            return model
        digest = digest_of(scales)
        return replace(
            model,
            config=replace(self.config, version=digest[:12]),
            digest=digest,
            graph=graph.closed(),
            result_shape=step.result_shape,
            least_rows=1,
            compiled=step,
        )

    def with_threads(self, threads: int) -> PublishedModel:
        """Return the model with the rows of a batch divided among threads, if that changes no bit."""
        if threads == 1:
            return self
        reason = ""
        if self.device.type != "cpu":
            reason = "a GPU runs the batch"
        elif self.compiled is None:
            reason = why_undivided(self.graph, self.contract, self.result_shape, least=self.least_rows, threads=threads)
        return replace(self, undivided=reason) if reason else replace(self, threads=threads)

    @property
    def facts(self) -> ModelFacts:
        """What decoders and a server need of it."""
        return ModelFacts(
            self.config,
            self.digest,
            self.precision,
            self.device,
            self.tokens,
            transducer=self.transducer is not None,
            one_row=self.contract.one_row,
            undivided=self.undivided,
        )

    @property
    def bins_first(self) -> bool:
        """Whether the frames are the last axis of the encoder's output, as in NeMo's transducers."""
        return isinstance(self.transducer, Recurrent) and self.compiled is None

    @property
    def weight_bytes(self) -> int:
        """Size of the graph files in bytes, which is about that of the weights."""
        return sum(path.stat().st_size for path in self.files.graphs.values())

    def recurrent_product(self, rows: int) -> None:
        """None: its products are not known."""

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> PublishedSlots:
        """Return the model with slots for `capacity` streams, in batches of at most `largest` rows.

        A batch has at most `LARGEST_BATCH` rows for each thread. With any value of `tile_rows` each row is run alone,
        so that no row can depend on others; the decoder and joiner of a transducer run rows alone only if their rows do
        depend on others. Without it, a batch of one row is padded if that makes its outputs bit-identical to those in
        larger batches.
        """
        largest = min(largest, capacity, LARGEST_BATCH * self.threads)
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

            return CompiledSlots(self.compiled, capacity=capacity, threads=self.threads)
        return GraphSlots(
            self.graph,
            self.contract,
            self.result_shape,
            capacity=capacity,
            largest=largest,
            least=least,
            threads=self.threads,
        )


def _device(asked: str) -> Device:
    if asked == "auto":
        import onnxruntime

        return Device("cuda" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu")
    return resolve_device(asked)
