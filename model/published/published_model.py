"""A loaded and validated published model: its description, symbols and slots.

All errors in the files are detected when it is loaded, before the first stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from model.ctc.tokens import Tokens
from model.errors import PublishedModelError
from model.facts import ModelFacts
from model.machine.device import Device
from model.machine.precision import resolve_device
from model.published.compiled.compiling import Verdict, compiled_network
from model.published.compiled.slots import CompiledSlots, CompiledStep
from model.published.contracts import Contract
from model.published.features import windows_of
from model.published.files import INT8, PublishedFiles, Rewriting, find_files, require_runtime
from model.published.graphs.metadata import THREADS, Graph
from model.published.reading import contract_for, description_of, network_of
from model.published.scales import FILE, Scales
from model.published.slots import PublishedSlots
from model.published.stepping import GraphSlots, check_graph, least_rows, why_undivided
from model.published.timing import PublishedDescription
from model.published.transducer.networks import TransducerNetworks
from model.published.transducer_files import NetworkForm, TransducerFiles, symbols_and_files

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
    transducer: TransducerFiles | None
    networks: TransducerNetworks | None  # of a transducer, kept for its decoder
    verdict: Verdict | None = None  # on the compiled step; None if none was tried
    compiled: CompiledStep | None = None  # runs instead of the graph
    scales: Scales | None = None  # of the compiled step's products in 8-bit integers
    graph_search: str = ""  # why decoder and joiner are not compiled though the network is
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

        On a CPU its products are in 8-bit integers if the folder has scales for them and the precision is `auto` or
        `int8`. `threads`: most of a step. Raises: PublishedModelError, MissingPackage.
        """
        require_runtime(path)
        chosen = _device(device)
        scales = None
        if chosen.type == "cpu" and precision != "fp32" and not path.name.endswith(INT8):
            scales = Scales.read(path if path.is_dir() else path.parent)
        files = find_files(path, precision if scales is None else "fp32")
        model = cls.of(files, chosen, scales=scales, rewriting=rewriting, in_floats=scales is not None)
        return model.with_threads(threads)

    @classmethod
    def of(
        cls,
        files: PublishedFiles,
        device: Device,
        *,
        scales: Scales | None = None,
        rewriting: Rewriting = "auto",
        in_floats: bool = False,
    ) -> PublishedModel:
        """Load files: with a compiled step if there is one, on a CPU, else the graph as published.

        `in_floats`: the weights of a released file in 8 bits are read as floats; it needs a compiled step, as `scales`
        do. Raises: PublishedModelError.
        """
        digest = files.digest()
        if scales is not None:
            scales.check(digest)
        in_floats = in_floats and files.network.name.endswith(INT8)
        network, verdict = None, None
        if device.type == "cpu" and rewriting == "auto":
            network, verdict = compiled_network(files, digest, in_floats=in_floats)
        if network is None and (in_floats or scales is not None):
            reason = "TUTTI_GRAPH_REWRITING=off" if verdict is None else verdict.reason
            raise PublishedModelError(
                f"{files.network.name} has no compiled step ({reason}), which {FILE} is for; use --precision fp32"
            )
        graphs = {
            role: network.graph if network is not None and path == files.network else Graph.load(path, device.type)
            for role, path in files.graphs.items()
        }
        contract = contract_for(graphs)
        if network is None:
            step, graph = None, network_of(graphs)
            shape = check_graph(graph, contract)
            least = least_rows(graph, contract, shape)
            width, frames = shape if contract.recurrent else shape[::-1]
            frames = frames if contract.kept is None else contract.kept[1]
        else:
            packed = None if scales is None else network.packed(files, scales)
            step, graph = network.step(scales, packed), network.graph
            shape, least = step.result_shape, 1
            frames, width = shape
            digest = (Scales(digest, {}, {}) if scales is None else scales).digest
        form = NetworkForm() if network is None else NetworkForm(True, scales, in_floats or scales is not None)
        tokens, transducer = symbols_and_files(graphs, files, digest, contract, width, form=form)
        networks, graph_search = None, ""
        if transducer is not None:
            networks, graph_search = transducer.of(graphs["decoder"], graphs["joiner"])
        return cls(
            config=description_of(files, contract, frames, digest),
            tokens=tokens,
            digest=digest,
            precision="int8" if scales is not None else "fp32" if in_floats else files.precision,
            device=device,
            files=files,
            contract=contract,
            graph=graph,
            result_shape=shape,
            least_rows=least,
            transducer=transducer,
            networks=networks,
            verdict=verdict,
            compiled=step,
            scales=scales,
            graph_search=graph_search,
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
            transducer=self.transducer,
            one_row=self.contract.one_row and self.compiled is None,
            undivided=self.undivided,
            prompts=self.contract.prompts,
        )

    @property
    def bins_first(self) -> bool:
        """Whether the frames are the last axis of the encoder's output, as in NeMo's transducers."""
        return self.contract.recurrent and self.compiled is None

    @property
    def weight_bytes(self) -> int:
        """Size of the files in bytes, which is about that of the weights."""
        return sum(path.stat().st_size for path in (*self.files.graphs.values(), *self.files.data))

    def recurrent_product(self, rows: int) -> None:
        """None: its products are not known."""

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> PublishedSlots:
        """Return the model with slots for `capacity` streams, in batches of at most `largest` rows.

        A batch has at most `LARGEST_BATCH` rows for each thread. With any value of `tile_rows` each row is run alone,
        so that no row can depend on others. Without it, a batch of one row is padded if that makes its outputs
        bit-identical to those in larger batches.
        """
        largest = min(largest, capacity, LARGEST_BATCH * self.threads)
        at_once = 1 if tile_rows is not None else largest
        return PublishedSlots(
            windows_of(self.config, self.contract.fbank, capacity=capacity),
            self._network(capacity, at_once, least=1 if tile_rows is not None else self.least_rows),
            step_samples=self.config.step_samples,
            prompts=self.contract.prompts,
            bins_first=self.bins_first,
            capacity=capacity,
            largest=largest,
        )

    def _network(self, capacity: int, largest: int, *, least: int) -> GraphSlots | CompiledSlots:
        if self.compiled is not None:
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


def _device(name: str) -> Device:
    if name == "auto":
        import onnxruntime

        return Device("cuda" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu")
    return resolve_device(name)
